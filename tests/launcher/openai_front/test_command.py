"""The options of OpenAI's API on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.openai_front.settings import ANSWER_TOKENS, DEFAULT_PORT, IN_FLIGHT, FrontSettings
from triton_repo.layouts.native import emit
from trtforge.cli import openai
from trtforge.cli.main import invoke


@pytest.fixture
def bundle(tiny_engine: Path, tmp_path: Path) -> Path:
    (tmp_path / "engine").symlink_to(tiny_engine)
    emit(tmp_path / "engine", tmp_path / "repository", name="tiny")
    return tmp_path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert invoke([*arguments, "--json"]) == 2
    return str(json.loads(capsys.readouterr().out)["error"]["code"])


@pytest.mark.parametrize(
    "option",
    [
        "--openai-keys=keys", "--openai-model=x", "--openai-log=x", "--tool-parser=hermes", "--openai-in-flight=3",
        "--openai-timeout=3", "--openai-max-tokens=3",
    ],
)  # fmt: skip
def test_options_of_an_api_that_is_not_served(bundle: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["serve", str(bundle), option], capsys) == "TF-OAI-030"


def test_one_of_bundle_and_repository(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["openai", "--server", "127.0.0.1:1"]
    both = ["--bundle", str(bundle), "--repository", str(bundle / "repository")]
    assert refused(start, capsys) == refused([*start, *both], capsys) == "TF-OAI-031"
    assert refused([*start, "--repository", str(bundle / "engine")], capsys) == "TF-OAI-023"
    assert refused([*start, "--bundle", str(bundle), "--tool-parser", "none"], capsys) == "TF-OAI-026"
    assert refused([*start, "--bundle", str(bundle), "--keys", str(bundle / "none")], capsys) == "TF-OAI-022"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--port", "65536"], "TF-LCH-004"), (["--port", "-1"], "TF-LCH-004"),
        (["--host", "999.1.1.1"], "TF-LCH-004"), (["--host", "a" * 300], "TF-LCH-004"),
        (["--host", "192.0.2.1"], "TF-LCH-004"),
        (["--log", "/proc/none/x"], "TF-OAI-034"), (["--log", "/tmp"], "TF-OAI-034"),
        (["--server", "x"], "TF-OAI-035"), (["--server", "127.0.0.1:65536"], "TF-OAI-035"),
        (["--server", "127.0.0.1:0"], "TF-OAI-035"), (["--server", "http://127.0.0.1:1"], "TF-OAI-035"),
        (["--metrics", "127.0.0.1"], "TF-OAI-035"),
    ],
)  # fmt: skip
def test_addresses_and_files_that_cannot_be(
    bundle: Path, options: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["openai", "--bundle", str(bundle), "--port", "0", "--server", "127.0.0.1:1"]
    assert refused([*start, *options], capsys) == code


@pytest.mark.parametrize("option", ["--http-port=65536", "--grpc-port=-1", "--openai-port=70000", "--host=999.1.1.1"])
def test_ports_that_are_none(bundle: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["serve", str(bundle), "--no-verify", option], capsys) == "TF-LCH-004"


def test_the_defaults_are_the_settings_own() -> None:
    """The command line names them itself, so that its help imports nothing."""
    assert (openai.IN_FLIGHT, openai.MAX_TOKENS) == (IN_FLIGHT, ANSWER_TOKENS)
    assert (FrontSettings().port, FrontSettings().host) == (DEFAULT_PORT, "127.0.0.1")

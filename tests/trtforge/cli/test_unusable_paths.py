"""Paths that the system cannot look up, files without an end, folders whose names are no UTF-8: coded, at once."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from scripts.fuzz.published import publish_bundle, put_odd
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.cli.app import invoke
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store

COMMANDS = [
    ["verify", "PATH"],
    ["serve", "PATH"],
    ["bench", "PATH"],
    ["compare", "PATH", "PATH"],
    ["eval", "--server", "127.0.0.1:9", "--bundle", "PATH"],
    ["engine", "info", "PATH"],
    ["triton", "lint", "PATH"],
    ["check", "PATH"],
    ["run", "PATH"],
    ["explain", "PATH"],
    ["artifacts", "list", "--store", "PATH"],
    ["artifacts", "show", "PATH"],
    ["artifacts", "gc", "--store", "PATH"],
    ["init", "model", "-o", "PATH"],
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tiny_recipe(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["loop", "one", "loop/x", "x" * 300, "y/" * 3000, "x\0y"], ids=lambda text: text[:8])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_path_that_cannot_be_looked_up_is_refused(
    here: Path, command: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([path if part == "PATH" else part for part in command]) in (2, 3)
    printed = "".join(capsys.readouterr())
    assert "TF-" in printed and "TF-INTERNAL" not in printed


@pytest.mark.parametrize("command", ["check", "run", "explain"])
def test_a_recipe_without_an_end_is_refused(here: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert invoke([command, "/dev/zero"]) == 2
    assert "TF-RCP-002" in "".join(capsys.readouterr())
    assert time.monotonic() - started < 10


def test_a_recipe_may_come_through_a_pipe(here: Path) -> None:
    read, write = os.pipe()
    try:
        os.write(write, (here / "tiny.yaml").read_bytes())
        os.close(write)
        assert load_recipe(f"/dev/fd/{read}").recipe.name == "tiny"
    finally:
        os.close(read)


@pytest.mark.parametrize("name", ["engine", "engine/engine.json", "repository/m/config.pbtxt", "repository/m"])
def test_lint_of_a_repository_beside_links_in_a_circle(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = publish_bundle(Store(tmp_path / "store", durable=False)).path
    (bundle / "repository" / "m" / "config.pbtxt").write_text(
        'name: "m"\nbackend: "python"\nparameters { key: "engine_dir" value { string_value: "../../engine" } }\n'
    )
    put_odd(bundle / name, "loop")
    assert invoke(["triton", "lint", str(bundle / "repository")]) in (0, 1, 2)
    assert "TF-INTERNAL" not in "".join(capsys.readouterr())


def test_a_store_whose_name_is_no_utf8(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = os.fsdecode(b"st\x80re")
    try:
        for _ in range(2):
            assert invoke(["run", "tiny.yaml", "--until", "intake", "--store", store]) == 0
        assert invoke(["artifacts", "list", "--store", store]) == 0
        assert "tiny" in capsys.readouterr().out
    finally:
        shutil.rmtree(store, ignore_errors=True)


def test_what_the_user_may_not_do_is_no_fault_of_trtforge(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/x/tokenizer.json")

    monkeypatch.setattr("quantize.intake.opened.open_files", refused)
    assert invoke(["audit", "model", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "TF-CLI-023" and error["asked"] == "/x/tokenizer.json"
    assert "Permission denied" in error["message"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
@pytest.mark.parametrize("command", [["audit", "PATH"], ["engine", "info", "PATH"], ["compare", "PATH", "PATH"]])
def test_a_folder_without_the_right_to_search_is_refused(
    here: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "model").chmod(0o644)
    try:
        assert invoke(["model" if part == "PATH" else part for part in command]) == 2
    finally:
        (here / "model").chmod(0o755)
    printed = "".join(capsys.readouterr())
    assert "TF-" in printed and "TF-INTERNAL" not in printed

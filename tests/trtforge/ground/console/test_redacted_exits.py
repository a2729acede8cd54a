"""No exit lets a secret through: what is printed in every form, and every file that a run writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.report.model import Report, Section, Table
from evals.report.write import write_report
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.cli.app import invoke
from trtforge.pipeline.stages.bundle import write_recipe
from trtforge.recipe.load import load_recipe

SECRETS = ("hf_" + "Ab3" * 12, "plain words of the environment", "s3cr3tofaurl", "nvapi-" + "x9-" * 12)
WAIVER = "until {} works, or {}; see https://me:{}@host/x, --token {}".format(*SECRETS)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MY_PASSWORD", SECRETS[1])
    monkeypatch.chdir(tmp_path)
    path = write_tiny_recipe(tmp_path)
    text = path.read_text(encoding="utf-8").replace("{tokens: 512,", "{tokens: 100,")
    path.write_text(text + "triton: {queue_delay_us: 1}\n", encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(f'waive: {{TF-K9-009: "{WAIVER}", TF-K9-010: "{WAIVER}"}}\n')
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("check",),
        ("check", "--json"),
        ("check", "--format", "sarif"),
        ("check", "--format", "github"),
        ("check", "--json", "--set", f"name={SECRETS[3]}"),
        ("check", "--set", f"quantize.format={SECRETS[0]}"),
        ("check", "--debug", "--set", f"nothing={SECRETS[0]}"),
    ],
)
def test_what_is_printed(recipe: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    invoke([command, str(recipe), *options])
    printed = "".join(capsys.readouterr())
    assert "***" in printed
    assert [secret for secret in SECRETS if secret in printed] == []


def test_what_a_run_writes(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The waivers enter the store's record and the log; the recipe itself is the user's."""
    store = recipe.parent / "store"
    assert invoke(["run", str(recipe), "--until", "intake", "--store", str(store)]) == 0
    files = [path for path in store.rglob("*") if path.is_file()]
    assert {"manifest.json", "tiny.json"} <= {path.name for path in files} and any(p.suffix == ".log" for p in files)
    found = [(path.name, secret) for path in files for secret in SECRETS if secret.encode() in path.read_bytes()]
    assert found == []
    assert [secret for secret in SECRETS if secret in "".join(capsys.readouterr())] == []


def test_what_a_bundle_carries(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe)
    write_recipe(loaded.recipe, tmp_path / "recipe.yaml")
    again = load_recipe(tmp_path / "recipe.yaml")
    assert again.recipe.waive["TF-K9-009"] == "until *** works, or ***; see https://***@host/x, --token ***"
    table = Table(("code", "justification"), (("TF-K9-009", WAIVER),), "Waivers")
    report = Report(
        "x", "passed", True, [Section("Waivers", WAIVER, tables=[table], preformatted=[WAIVER])], {"w": WAIVER}
    )
    for path in write_report(report, tmp_path / "report"):
        text = path.read_text(encoding="utf-8")
        assert "***" in text
        assert [secret for secret in SECRETS if secret in text] == []

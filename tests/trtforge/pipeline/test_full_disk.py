"""A full disk: what is all there already is used; what must be written is refused with the numbers."""

from __future__ import annotations

import errno
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import synthetic
from tests.support.preflight import SMALL, public, report
from tests.support.public_models import CONFIGS, shape
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.cli import common
from trtforge.ground import files
from trtforge.pipeline.pipeline import Pipeline
from trtforge.preflight import check, look, surroundings
from trtforge.recipe.load import recipe_from_mapping
from trtforge.store.store import Store


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that fills the disk: below tmp_path no new name and no new byte has room."""

    def full(*details: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_up() -> None:
        real_open, real_low, real_mkdir = io.open, os.open, os.mkdir
        inside = str(tmp_path)

        def high(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            return (
                full()
                if str(file).startswith(inside) and set(mode) & set("wax+")
                else real_open(file, mode, *rest, **named)
            )

        def low(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            creates = flags & os.O_CREAT and not os.path.lexists(path)
            return full() if str(path).startswith(inside) and creates else real_low(path, flags, *rest, **named)

        def mkdir(path: Any, *rest: Any, **named: Any) -> None:
            return (
                full()
                if str(path).startswith(inside) and not os.path.lexists(path)
                else real_mkdir(path, *rest, **named)
            )

        monkeypatch.setattr(io, "open", high)
        monkeypatch.setattr(os, "open", low)
        monkeypatch.setattr(os, "mkdir", mkdir)
        monkeypatch.setattr(os, "symlink", full)

    return fill_up


def test_a_run_that_finds_everything_ends_as_ever(tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(synthetic.stages(), Store(tmp_path / ".trtforge"))
    first = pipeline.run(synthetic.recipe())
    fill()
    with pytest.raises(OSError):
        (tmp_path / "new").write_text("x")
    again = Pipeline(synthetic.stages(), Store(tmp_path / ".trtforge")).run(synthetic.recipe())
    assert {outcome.status for outcome in again.outcomes} == {"cached"}
    assert (again.bundle, again.link) == (first.bundle, first.link)


def test_a_run_that_must_write_is_refused_with_the_numbers(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline = Pipeline(synthetic.stages(), Store(tmp_path / ".trtforge"))
    pipeline.run(synthetic.recipe(1))
    fill()
    error = refusal(pipeline.run, synthetic.recipe(2))
    assert error.code == "TF-STO-002"
    assert error.numbers["free_bytes"] == files.free_bytes(tmp_path)


def codes(made: set[str], free: int) -> dict[str, Any]:
    """Numbers of the disk rule's finding, by its code."""
    from trtforge.formats.table import load_formats

    table = load_formats()
    loaded = recipe_from_mapping(
        {"name": "r", "model": {"source": "hf:HuggingFaceTB/SmolLM2-135M-Instruct"}, "quantize": {"format": "fp8"}}
    )
    found = check(
        loaded,
        replace(look(Path("/tmp")), disk_free=free, memory_total=64 << 30),
        model=public("HuggingFaceTB/SmolLM2-135M-Instruct"),
        formats={row.name: row for row in table.formats},
        kv_modes={row.name: row for row in table.kv_modes},
        made=lambda: made,
    )
    return {item.code: item.numbers for item in found if item.code == "TF-K11-002"}


def test_the_disk_rule_counts_what_is_still_to_be_made() -> None:
    everything = {"intake", "quantize", "graph", "build", "bundle"}
    whole = codes(set(), 0)["TF-K11-002"]
    assert whole["copies"] == 2, "the quantized weights, and the copy that a stage is writing"
    assert codes(everything, 0) == {}
    part = codes(everything - {"bundle"}, 0)["TF-K11-002"]
    assert part["copies"] == 1
    assert part["needed"] == whole["quantized"] < whole["needed"]
    assert codes(everything - {"bundle"}, part["needed"]) == {}


def test_which_stages_are_made_is_what_explain_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trtforge.pipeline import catalogue

    store = Store(tmp_path / ".trtforge", durable=False)
    Pipeline(synthetic.stages(), store).run(synthetic.recipe(), until="quantize")
    monkeypatch.setattr(catalogue, "default_stages", synthetic.stages)
    assert common.made_stages(synthetic.recipe(), store.root) == {"intake", "quantize"}
    assert common.made_stages(synthetic.recipe(), tmp_path / "nowhere") == set()


def test_a_check_that_finds_too_little_disk_hashes_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse weights of 3 GB that no run has made anything of: telling so may not read them."""
    from quantize.intake import hashing

    monkeypatch.setenv("TRTFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "sha256_file", lambda *_: pytest.fail("weights were read"))
    folder = tmp_path / "model"
    write_tiny_llama(folder)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.truncate(3 << 30)
    loaded = recipe_from_mapping({"name": "r", "model": {"source": "model"}}, tmp_path)
    assert common.made_stages(loaded, tmp_path / ".trtforge") == set()


#: target, format, copies share blocks -> gigabytes; what five whole copies (checkpoint and four of the stage's) took
THIRTY_FIVE_BILLION = [
    ("torch", "fp8", False, 146, 221),
    ("torch", "fp8", True, 109, 221),
    ("torch", "int4_awq", False, 135, 157),
    ("torch", "int4_awq", True, 114, 157),
    ("torch", "none", False, 142, 355),
    ("torch", "none", True, 71, 355),
    ("trtllm-engine", "fp8", False, 184, 221),
    ("trtllm-engine", "fp8", True, 146, 221),
]


@pytest.mark.parametrize(("target", "format", "shares", "gigabytes", "whole"), THIRTY_FIVE_BILLION)
def test_what_a_model_of_35_billion_parameters_takes(
    target: str, format: str, shares: bool, gigabytes: int, whole: int
) -> None:
    """Llama-3.1-70B's layers, 39 of them. Root's figure is the same: its bundle keeps the copy that others lose."""
    model = shape({**CONFIGS["meta-llama/Llama-3.1-70B-Instruct"], "num_hidden_layers": 39})
    assert round(model.parameters / 1e9, 1) == 35.5
    settings = {"build": {"target": target}, "quantize": {"format": format}}
    found = report(settings, model=model, machine=replace(SMALL, disk_free=0, copies_share=shares)).findings
    [numbers] = [item.numbers for item in found if item.code == "TF-K11-002"]
    assert round(numbers["needed"] / 1e9) == gigabytes
    assert round((numbers["checkpoint"] + 4 * numbers["quantized"]) / 1e9) == whole


def test_whether_copies_share_blocks_is_tried_where_the_store_would_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []
    monkeypatch.setattr(surroundings, "shares_blocks", lambda folder: not tried.append(folder))
    assert look(tmp_path / "not" / "there").copies_share
    assert tried == [tmp_path]
    monkeypatch.setattr(surroundings, "shares_blocks", refused)
    assert not look(tmp_path).copies_share


def refused(folder: Path) -> bool:
    raise PermissionError(errno.EACCES, "no file may be made here")

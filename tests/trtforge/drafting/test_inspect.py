"""Which drafter a folder is, and what the commands print of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trtforge.drafting.checkpoints import Spec, write
from tests.trtforge.preflight import folders
from trtforge.cli.app import invoke
from trtforge.drafting.inspection import inspect_folder
from trtforge.ground.errors import ForgeError

KINDS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "DFlash": ("dflash", {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, ["fc.weight"]),
    "DFlash of speculators": ("dflash", {"speculators_model_type": "dflash"}, ["fc.weight"]),
    "DSpark": ("dspark", {"architectures": ["DFlashDraftModel"]}, ["fc.weight", "markov_w1.weight"]),
    "P-EAGLE": ("p-eagle", {"speculators_model_type": "peagle"}, ["fc.weight"]),
    "P-EAGLE by its mask": ("p-eagle", {"architectures": ["LlamaForCausalLMEagle3"]}, ["fc.weight", "mask_hidden"]),
    "MTP": ("mtp", {"model_type": "deepseek_v3"}, ["model.layers.61.enorm.weight", "model.layers.61.eh_proj.weight"]),
    "MTP of Qwen": ("mtp", {}, ["mtp.pre_fc_norm_hidden.weight"]),
    "MTP of speculators": ("mtp", {"speculators_model_type": "mtp"}, ["layers.0.norm.weight"]),
    "ReDrafter": ("redrafter", {"architectures": ["ReDrafter"]}, ["lm_head.weight"]),
    "ReDrafter by its tensors": ("redrafter", {}, ["drafter.rnn_u.weight"]),
    "MLP speculator": (
        "mlp-speculator",
        {"architectures": ["MLPSpeculatorPreTrainedModel"]},
        ["speculator.emb.0.weight"],
    ),
    "Medusa": ("medusa", {}, ["0.0.linear.weight", "1.0.linear.weight"]),
    "a draft model": ("model", {}, ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"]),
}


def make(folder: Path, config: dict[str, Any], names: list[str]) -> Path:
    folders.write_json(folder / "config.json", config)
    folders.write_weights(folder, {name: folders.zeros(4, 4) for name in names})
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_other_drafters_are_described_and_not_converted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, config, tensors = KINDS[name]
    folder = make(tmp_path / "a", config, tensors)
    assert inspect_folder(folder).kind.name == kind
    assert invoke(["draft", "inspect", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["dialect"], document["tensors"]) == (kind, None, len(tensors))
    assert invoke(["draft", "convert", str(folder), "--to", "modelopt", "-o", str(tmp_path / "b"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-DRF-002"
    assert not (tmp_path / "b").exists()


def test_eagle_1_is_known_by_its_fc(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folders.write_draft(folder, tensors={"fc.weight": folders.zeros(4, 8), "embed_tokens.weight": folders.zeros(8, 4)})
    assert inspect_folder(folder).kind.name == "eagle"


def test_a_head_of_two_taps_is_no_eagle_1(tmp_path: Path) -> None:
    found = inspect_folder(write(tmp_path / "a", Spec("modelopt", taps=(2, 7)), config={"architectures": None}))
    assert found.kind.name == "eagle3" and found.head is not None and found.head.tap_count == 2


@pytest.mark.parametrize("dialect", ["specforge", "speculators", "modelopt", "tensorrt-llm"])
def test_a_dialect_is_named_with_taps_in_one_numbering(
    dialect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "a", Spec(dialect))
    assert invoke(["draft", "inspect", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dialect"] == dialect
    assert document["taps"]["numbering"] == "output of layer k, 0-based"
    assert document["taps"]["layers"] == [1, 5, 8]
    assert document["taps"]["written"] == ([2, 6, 9] if dialect == "speculators" else [1, 5, 8])
    ready = [name for name, missing in document["consumers"].items() if not missing]
    assert len(ready) == (2 if dialect == "tensorrt-llm" else 1), ready
    assert document["vocabulary"]["draft"] == 14 and document["rope"]["theta"] == 500000.0


def test_a_release_that_does_not_know_a_flag_is_told_apart(tmp_path: Path) -> None:
    document = inspect_folder(write(tmp_path / "a", Spec("tensorrt-llm", fc_norm=True, norm_output=True))).to_json()
    old, new = (rows for name, rows in document["consumers"].items() if name.startswith("TensorRT-LLM"))
    assert new == [] and [row.split(" (")[-1] for row in old] == ["fc_norm)", "norm_output)"]


def test_inspect_ends_with_1_for_a_broken_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a", Spec("specforge"), d2t=None, t2d=None)
    assert invoke(["draft", "inspect", str(folder)]) == 1
    assert "error TF-DRF-010" in capsys.readouterr().out


def test_convert_prints_where_and_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "a", Spec("specforge"))
    arguments = ["draft", "convert", str(folder), "--to", "speculators", "-o", str(tmp_path / "b")]
    assert invoke([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["from"], document["to"]) == ("specforge", "speculators")
    assert (document["taps"], document["taps_written"]) == ([1, 5, 8], [2, 6, 9])
    assert invoke(["draft", "inspect", str(tmp_path / "b"), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == "eagle3: no errors"


@pytest.mark.parametrize("content", [None, "{", "[]", '{"a": 1}'])
def test_a_folder_without_a_drafter_is_refused(content: str | None, tmp_path: Path) -> None:
    folders.write_weights(tmp_path, {"something": folders.zeros(2, 2)})
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ForgeError, match="TF-DRF-001"):
        inspect_folder(tmp_path)


def test_inspection_loads_no_torch(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge"))
    code = (
        "import sys; from trtforge.cli.app import invoke; "
        f"code = invoke(['draft', 'inspect', {str(folder)!r}, '--quiet']); "
        "sys.exit(code or sum(name in sys.modules for name in ('torch', 'transformers', 'safetensors')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0

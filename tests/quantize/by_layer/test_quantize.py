"""Layer by layer gives the files of the whole model, byte for byte; a run that was killed goes on at its layer."""

from __future__ import annotations

import hashlib
import json
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quantize.by_layer import parts
from quantize.by_layer.pieces import Pieces
from quantize.checkpoint import quantize_checkpoint
from quantize.export import SUMMARY_FILE
from quantize.ptq import load_model
from tests.quantize.test_ptq import CALIBRATION, FORMATS
from tests.support.decoder_models import variants, write_decoder
from tests.support.forked import Forked
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_moe import write_tiny_moe
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.schema import Quantize
from trtforge.tables.decoders import decoders

pytestmark = pytest.mark.slow

#: an algorithm that runs the text twice, of whose layers one has nothing to quantize but keys and values
HALF = {
    name: FORMATS[name].model_copy(update={"exclude": ("lm_head", "model.layers.0")})
    for name in ("int4_awq", "int4_gptq")
}
SECTIONS = {
    **{name: FORMATS[name] for name in ("fp8", "nvfp4", "int4_awq", "nvfp4_awq", "int4_gptq", "int8_sq", "int8_wo")},
    **{name: FORMATS[name] for name in ("w4a8_awq", "fp8_rowwise", "kv_only", "mixed")},
    **{f"half {name}": section for name, section in HALF.items()},
    "several formats": Quantize(
        format="nvfp4",
        kv_cache="fp8",
        mixed={"fp8": ["layers.0"], "int4_wo:32": ["layers.1.mlp.down_proj"]},
        calibration=CALIBRATION,
    ),
    "head": Quantize(format="nvfp4", kv_cache="fp8", exclude=[], calibration=CALIBRATION),
    "head awq": Quantize(format="int4_awq", group_size=64, exclude=[], calibration=CALIBRATION),
}
SMALL_SHARD = 60_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source"), layers=3, tie=False, shards=2)


def files(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def both(source: Path, out: Path, section: Quantize) -> tuple[dict[str, str], dict[str, str]]:
    """The files of the whole model's quantization and of the one layer by layer."""
    made = []
    for loading in ("whole", "by_layer"):
        told = quantize_checkpoint(source, out / loading, section=section, base_dir=source, loading=loading)
        assert told["loading"] == loading
        made.append(files(out / loading))
    return made[0], made[1]


@pytest.mark.parametrize("name", SECTIONS)
def test_the_files_are_those_of_the_whole_model(source: Path, tmp_path: Path, name: str) -> None:
    """Scales, packed weights, configuration and summary: bit for bit."""
    whole, by_layer = both(source, tmp_path, SECTIONS[name])
    assert by_layer == whole and {"model.safetensors", "config.json", SUMMARY_FILE} <= {*whole}


@pytest.mark.parametrize("name", decoders())
def test_every_class_comes_apart(tmp_path: Path, name: str) -> None:
    """With everything that a class can have: windows by layer, layers that rotate nothing, factors, fused linears."""
    source = write_decoder(tmp_path / "source", name, variants(decoders()[name])["everything"])
    whole, by_layer = both(source, tmp_path, Quantize(format="fp8", kv_cache="fp8", calibration=CALIBRATION))
    assert by_layer == whole


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
def test_a_mixture_of_experts_comes_apart(tmp_path: Path, name: str) -> None:
    source = write_tiny_moe(tmp_path / "source")
    whole, by_layer = both(source, tmp_path, FORMATS[name])
    assert by_layer == whole and any(".experts.3." in key for key in read_headers(tmp_path / "by_layer"))


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "tied", tie=True)
    whole, by_layer = both(source, tmp_path, FORMATS["fp8"])
    assert by_layer == whole and "lm_head.weight" not in read_headers(tmp_path / "by_layer")


def test_shards_are_cut_at_the_same_tensors(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import modelopt.torch.export as mte

    export = mte.export_hf_checkpoint
    monkeypatch.setattr(
        mte, "export_hf_checkpoint", lambda model, **more: export(model, max_shard_size=SMALL_SHARD, **more)
    )
    monkeypatch.setattr(parts, "MAX_SHARD_BYTES", SMALL_SHARD)
    whole, by_layer = both(source, tmp_path, FORMATS["fp8"])
    assert by_layer == whole and sum(name.endswith(".safetensors") for name in whole) > 3


class Killed(BaseException):
    pass


class KillAt:
    """Ends the run when a step's description begins so; counts the layers that were loaded."""

    def __init__(self, step: str = "never") -> None:
        self.step = step
        self.loaded: list[str] = []

    def start(self, description: str, total: float | None = None) -> None:
        if description.startswith(self.step):
            raise Killed
        if description.endswith(": loading"):
            self.loaded.append(description.removesuffix(": loading"))

    def advance(self, amount: float = 1.0) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.mark.parametrize("name", ["fp8", "int4_awq", "int8_wo"])
@pytest.mark.parametrize(
    ("killed_at", "loaded_then"),
    [
        ("layer 1 of 3: exporting", ["layer 1 of 3", "layer 2 of 3", "layer 3 of 3"]),
        ("layer 3 of 3: loading", ["layer 3 of 3"]),
        ("layer 3 of 3: exporting", ["layer 3 of 3"]),
        ("writing the checkpoint", []),
    ],
)
def test_a_killed_run_goes_on_at_its_layer(
    source: Path, tmp_path: Path, name: str, killed_at: str, loaded_then: list[str]
) -> None:
    def run(progress: KillAt, out: str, scratch: Path) -> None:
        quantize_checkpoint(
            source,
            tmp_path / out,
            section=FORMATS[name],
            base_dir=source,
            progress=progress,
            scratch=scratch,
            loading="by_layer",
        )

    with pytest.raises(Killed):
        run(KillAt(killed_at), "killed", tmp_path / "scratch")
    assert not list((tmp_path / "killed").iterdir()), "nothing that looks like an export"
    again = KillAt()
    run(again, "resumed", tmp_path / "scratch")
    assert again.loaded == loaded_then
    run(KillAt(), "undisturbed", tmp_path / "other")
    assert files(tmp_path / "resumed") == files(tmp_path / "undisturbed")


def test_a_process_that_is_killed_leaves_its_layers(source: Path, tmp_path: Path) -> None:
    """By SIGKILL, while the second layer is exported."""
    words = [str(source), str(tmp_path / "killed"), str(tmp_path / "scratch"), "layer 2 of 3: exporting"]
    assert Forked("tests.support.quantize_killed", words).wait(300) == -signal.SIGKILL
    progress, more = KillAt(), {"section": FORMATS["fp8"], "base_dir": source, "loading": "by_layer"}
    quantize_checkpoint(source, tmp_path / "resumed", scratch=tmp_path / "scratch", progress=progress, **more)
    assert progress.loaded == ["layer 2 of 3", "layer 3 of 3"]
    quantize_checkpoint(source, tmp_path / "undisturbed", **more)
    assert files(tmp_path / "resumed") == files(tmp_path / "undisturbed")


def test_what_another_run_left_is_not_taken(source: Path, tmp_path: Path) -> None:
    """Of another format, and of another calibration text."""
    other = Quantize(format="fp8", kv_cache="fp8", calibration={**CALIBRATION, "seed": 1})
    for section in (FORMATS["nvfp4"], other):
        quantize_checkpoint(
            source, tmp_path / "a", section=section, base_dir=source, scratch=tmp_path / "s", loading="by_layer"
        )
    progress = KillAt()
    quantize_checkpoint(
        source,
        tmp_path / "b",
        section=FORMATS["fp8"],
        base_dir=source,
        scratch=tmp_path / "s",
        loading="by_layer",
        progress=progress,
    )
    assert len(progress.loaded) == 3
    quantize_checkpoint(source, tmp_path / "c", section=FORMATS["fp8"], base_dir=source, loading="whole")
    assert files(tmp_path / "b") == files(tmp_path / "c")


def test_no_more_than_a_layer_is_loaded_at_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer is loaded the model of the one before is gone."""
    made: list[weakref.ref[Any]] = []
    original = Pieces.layer

    def counted(self: Pieces, index: int, tensors: Any) -> Any:
        assert [ref() for ref in made] == [None] * index
        model = original(self, index, tensors)
        made.append(weakref.ref(model))
        return model

    monkeypatch.setattr(Pieces, "layer", counted)
    quantize_checkpoint(source, tmp_path, section=FORMATS["nvfp4_awq"], base_dir=source, loading="by_layer")
    assert len(made) == 3


def write_python(directory: Path) -> None:
    (directory / "modeling.py").write_text("raise SystemExit\n")


def more_layers(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))


@pytest.mark.parametrize(("damage", "said"), [(write_python, "Python code"), (more_layers, "missing or left over")])
def test_what_cannot_come_apart_is_refused(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    source = write_tiny_llama(tmp_path / "source")
    damage(source)
    error = refusal(
        quantize_checkpoint,
        source,
        tmp_path / "out",
        section=FORMATS["fp8"],
        base_dir=source,
        loading="by_layer",
        allow_remote_code=True,
    )
    assert error.code == "TF-QNT-060" and said in str(error)


def test_a_layer_that_is_another_one_by_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule by the layer's number that the one-layer configuration does not tell."""
    from transformers.models.llama import modeling_llama

    original = modeling_llama.LlamaAttention.__init__

    def by_number(self: Any, config: Any, layer_idx: int) -> None:
        original(self, config, layer_idx)
        self.scaling *= 1 + layer_idx

    monkeypatch.setattr(modeling_llama.LlamaAttention, "__init__", by_number)
    source = write_tiny_llama(tmp_path / "source")
    error = refusal(
        quantize_checkpoint, source, tmp_path / "out", section=FORMATS["fp8"], base_dir=source, loading="by_layer"
    )
    assert error.code == "TF-QNT-060" and "layer 1 by itself is another one" in str(error) and "scaling" in str(error)


def test_scales_that_are_not_finite_are_refused_at_their_layer(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "nan")
    header = read_headers(directory)["model.layers.1.mlp.up_proj.weight"]
    with (directory / header.file).open("r+b") as file:
        file.seek(header.offset)
        file.write(b"\xc0\x7f" * 8)  # bfloat16 NaN
    with pytest.raises(ForgeError) as caught:
        quantize_checkpoint(directory, tmp_path / "out", section=FORMATS["fp8"], base_dir=tmp_path, loading="by_layer")
    assert caught.value.code == "TF-QNT-011"


@pytest.mark.parametrize(("devices", "spread"), [(0, False), (1, False), (2, True)])
def test_several_gpus_hold_a_model_together(
    source: Path, monkeypatch: pytest.MonkeyPatch, devices: int, spread: bool
) -> None:
    """What transformers is asked for; no GPU takes part."""
    import transformers

    asked: dict[str, Any] = {}

    class Model:
        moved: str | None = None

        def eval(self) -> Model:
            return self

        def to(self, device: str) -> Model:
            self.moved = device
            return self

    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **more: asked.update(more) or Model()
    )
    model = load_model(source)
    assert asked.get("device_map") == ("balanced" if spread else None)
    assert asked["dtype"] == ("auto" if devices else torch.float32)
    assert model.moved == ("cuda" if devices == 1 else None)

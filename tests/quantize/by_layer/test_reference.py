"""The reference layer by layer is the whole one, to the bit."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.layers import Step, layer_errors, stepwise_errors
from evals.perplexity import plan_windows
from evals.windows import measure_windows
from quantize.by_layer import reference as by_layer
from quantize.by_layer.pieces import Pieces
from quantize.by_layer.reference import LayeredReference, rounding
from quantize.checkpoint import quantize_checkpoint
from quantize.reference import ReferenceModel, load_reference_model
from tests.quantize.by_layer.test_quantize import SECTIONS
from tests.quantize.test_ptq import FORMATS, prompt
from tests.support.decoder_models import variants, write_decoder
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.tables.decoders import decoders

pytestmark = pytest.mark.slow

NAMES = ("none", "fp8", "nvfp4", "nvfp4_awq", "int4_awq", "int8_sq", "head", "several formats")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source"), layers=3, tie=False, shards=2)


@pytest.fixture(scope="module")
def checkpoints(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {"none": source}
    for name in NAMES[1:]:
        made[name] = tmp_path_factory.mktemp(name)
        section = SECTIONS[name] if name in SECTIONS else FORMATS[name]
        quantize_checkpoint(source, made[name], section=section, base_dir=source)
    return made


def pair(checkpoint: Path) -> tuple[ReferenceModel, LayeredReference]:
    return load_reference_model(checkpoint), LayeredReference(checkpoint)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_same_bits(checkpoints: dict[str, Path], source: Path, name: str) -> None:
    whole, layered = pair(checkpoints[name])
    ids = prompt(source)
    layered.prepare([ids, ids[:40], ids[3:70]])
    for some in (ids, ids[:40], ids[3:70], ids[5:50]):  # the last was not prepared
        assert torch.equal(whole.logits(some), layered.logits(some))
        assert torch.equal(whole.logits(some, 7), layered.logits(some, 7))
    assert torch.equal(whole.rounded_logits(ids, "bfloat16"), layered.rounded_logits(ids, "bfloat16"))
    assert torch.equal(whole.perturbed_logits(ids, 1e-3, 7), layered.perturbed_logits(ids, 1e-3, 7))
    assert (whole.quant_format, whole.emulated) == (layered.quant_format, layered.emulated)


@pytest.mark.parametrize("name", decoders())
def test_every_class_computes_the_same(tmp_path: Path, name: str) -> None:
    source = write_decoder(tmp_path / "source", name, variants(decoders()[name])["everything"])
    whole, layered = pair(source)
    ids = prompt(source, 40)
    assert torch.equal(whole.logits(ids), layered.logits(ids))
    assert whole.generate_greedy(ids, 4) == layered.generate_greedy(ids, 4)


@pytest.mark.parametrize("name", ["none", "fp8"])
def test_answers_are_written_together(checkpoints: dict[str, Path], source: Path, name: str) -> None:
    whole, layered = pair(checkpoints[name])
    ids = prompt(source)

    def twice(made: list[int]) -> bool:
        return len(made) == 2

    asked: list[Any] = [(ids[:20], 6, None), (ids[:33], 9, None), (ids[:9], 5, twice), (ids[:9], 0, None)]
    wanted = [whole.generate_greedy(*one) for one in asked]
    assert layered.generate_together(asked) == wanted and [len(made) for made in wanted][2:] == [2, 0]


def test_prompts_without_room_for_their_keys_wait(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layered = LayeredReference(source)
    ids = prompt(source, 20)
    asked: list[Any] = [(ids, 3, None)] * 5
    groups: list[int] = []
    generated = LayeredReference._generated

    def counted(self: Any, some: Any) -> Any:
        groups.append(len(some))
        return generated(self, some)

    monkeypatch.setattr(LayeredReference, "_generated", counted)
    monkeypatch.setattr(by_layer, "CACHE_BYTES", 2 * layered._cache_bytes(asked[:1]))
    made = layered.generate_together(asked)
    assert groups == [2, 2, 1] and len({tuple(one) for one in made}) == 1 and len(made) == 5


def test_windows_are_read_once_for_every_layer(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, layered = pair(source)
    loaded: list[int] = []
    layer = LayeredReference.layer

    def counted(self: LayeredReference, index: int) -> Any:
        loaded.append(index)
        return layer(self, index)

    monkeypatch.setattr(LayeredReference, "layer", counted)
    tokens = prompt(source, 96).tolist()
    some: dict[str, Any] = {"window": 32, "stride": 16, "keep": True}
    ours = measure_windows(layered.logits, tokens, prepare=layered.prepare, **some)
    assert loaded == [0, 1, 2] and len(plan_windows(96, 32, 16)) == 5
    theirs = measure_windows(whole.logits, tokens, **some)
    assert (ours.scores.nll == theirs.scores.nll).all()
    for one, other in zip(ours.references, theirs.references, strict=True):
        assert (one.ids == other.ids).all() and (one.log_probs == other.log_probs).all()


def test_no_more_than_a_layer_is_in_memory(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer is read the model of the one before is gone, and the head's too."""
    layered = LayeredReference(checkpoints["nvfp4_awq"])
    made: list[weakref.ref[Any]] = []
    for name in ("layer", "outer"):
        original = getattr(Pieces, name)

        def counted(self: Pieces, *words: Any, original: Any = original, **more: Any) -> Any:
            alive = [model for ref in made if (model := ref()) is not None]
            assert not [name for model in alive for name, one in model.named_parameters() if not one.is_meta]
            del alive
            model = original(self, *words, **more)
            made.append(weakref.ref(model))
            return model

        monkeypatch.setattr(Pieces, name, counted)
    ids = torch.arange(3, 40)
    layered.logits(ids)
    layered.rounded_logits(ids, "bfloat16")
    layered.generate_greedy(ids, 2)
    for _, run, _ in layered.walk(ids):
        run()
    assert len(made) == 5 + 5 + 2 * 5 + 4


class Killed(BaseException):
    pass


def test_a_killed_evaluation_goes_on_at_its_layer(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some of what was asked for then is measured by now."""
    ids = prompt(source)
    sequences = [ids[:32], ids[16:60], ids[20:90]]
    layer = LayeredReference.layer
    loaded: list[int] = []

    def counted(self: LayeredReference, index: int) -> Any:
        if index == limit:
            raise Killed
        loaded.append(index)
        return layer(self, index)

    limit = 2
    monkeypatch.setattr(LayeredReference, "layer", counted)
    with pytest.raises(Killed):
        LayeredReference(source, work=tmp_path).prepare(sequences)
    limit, loaded = -1, []
    again = LayeredReference(source, work=tmp_path)
    again.prepare(sequences[1:])
    assert loaded == [2]
    assert torch.equal(again.logits(sequences[1]), load_reference_model(source).logits(sequences[1]))
    again.prepare(sequences, rounding("bfloat16"))
    assert loaded == [2, 0, 1, 2], "another computation has states of its own"
    LayeredReference(source, work=tmp_path).prepare([ids[:10]])
    assert loaded == [2, 0, 1, 2, 0, 1, 2]


def test_layer_errors_are_the_same(checkpoints: dict[str, Path], source: Path) -> None:
    ids = prompt(source, 32)
    models = [pair(checkpoints[name]) for name in ("none", "nvfp4")]
    wanted = layer_errors(models[0][0].model, models[1][0].model, ids)

    def steps(reference: LayeredReference) -> Iterator[Step]:
        return (Step(*step) for step in reference.walk(ids))

    assert stepwise_errors(steps(models[0][1]), steps(models[1][1])) == wanted and len(wanted) == 9


def test_an_unknown_quantization_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    copied = shutil.copytree(checkpoints["fp8"], tmp_path / "copy")
    path = copied / "hf_quant_config.json"
    path.write_text(path.read_text().replace('"FP8"', '"FP3"'))
    assert refusal(LayeredReference, copied).code == "TF-QNT-030"

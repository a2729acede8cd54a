"""Every trap of a drafter is a coded refusal, a repair or a warning before a weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.support.tiny import write_safetensors
from tests.trtforge.drafting.checkpoints import (
    DRAFT_VOCAB,
    TARGET_LAYERS,
    VOCAB,
    WIDTH,
    Spec,
    config_of,
    tensors_of,
    write,
)
from trtforge.drafting.conversion import convert
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.statements import RECORD
from trtforge.ground.errors import ForgeError

SPECFORGE = Spec("specforge", own_embedding=True)


def table(*shape: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def offsets(change: Callable[[np.ndarray], None]) -> tuple[str, np.ndarray]:
    values = tensors_of(SPECFORGE)["d2t"][1].copy()
    change(values)
    return "I64", values


def set_at(place: int, value: int) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values[place] = value

    return change


def repeats(values: np.ndarray) -> None:
    values[3] = values[2] - 1


def targets_instead(values: np.ndarray) -> None:
    """The map holds the target's ids themselves, as some exports do."""
    values += np.arange(values.size)
    values[-1] = values[-2] - 1


def write_target(folder: Path, *, embedding: np.ndarray | None = None, words: int | None = None, **config: Any) -> Path:
    """A target of the drafters' width and vocabulary."""
    folder.mkdir(parents=True)
    given = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "vocab_size": VOCAB,
        "num_hidden_layers": TARGET_LAYERS,
        "rope_theta": 500000.0,
    }
    (folder / "config.json").write_text(json.dumps({**given, **config}))
    first = table(VOCAB, WIDTH) if embedding is None else embedding
    tensors = {"model.embed_tokens.weight": first, "lm_head.weight": table(VOCAB, WIDTH, seed=6)}
    tensors["model.layers.0.mlp.up_proj.weight"] = table(400, WIDTH)
    write_safetensors(folder / "model.safetensors", {name: ("F32", value) for name, value in tensors.items()})
    if words is not None:
        write_tokenizer(folder, words)
    return folder


def write_tokenizer(folder: Path, shift: int, **more: Any) -> None:
    """A tokenizer of words whose ids begin at ``shift``."""
    vocabulary = {word: place + shift for place, word in enumerate(["the", "[UNK]", "quick", "def", "return"])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    whole = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [], **more}
    (folder / "tokenizer.json").write_text(json.dumps(whole))


ALONE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fc of four taps for three": ("TF-DRF-004", {}, {"fc__weight": ("F32", table(WIDTH, 4 * WIDTH))}),
    "fc no multiple of the width": ("TF-DRF-004", {"eagle_config": {}}, {"fc__weight": ("F32", table(WIDTH, 50))}),
    "an EAGLE-1 head called EAGLE-3": (
        "TF-DRF-004",
        {"eagle_config": {}},
        {
            "fc__weight": ("F32", table(WIDTH, 2 * WIDTH)),
            "midlayer__self_attn__q_proj__weight": ("F32", table(32, WIDTH)),
        },
    ),
    "d2t out of range": ("TF-DRF-008", {}, {"d2t": offsets(set_at(-1, VOCAB))}),
    "d2t below zero": ("TF-DRF-008", {}, {"d2t": offsets(set_at(0, -1))}),
    "d2t repeats a token": ("TF-DRF-008", {}, {"d2t": offsets(repeats)}),
    "d2t holds ids": ("TF-DRF-008", {}, {"d2t": offsets(targets_instead)}),
    "t2d keeps one more": ("TF-DRF-009", {}, {"t2d": ("BOOL", np.ones(VOCAB, dtype=bool))}),
    "t2d of another vocabulary": ("TF-DRF-009", {}, {"t2d": ("BOOL", np.ones(VOCAB + 1, dtype=bool))}),
    "no map for a small vocabulary": ("TF-DRF-010", {}, {"d2t": None, "t2d": None}),
    "d2t of another length": ("TF-DRF-010", {}, {"d2t": ("I64", np.zeros(DRAFT_VOCAB + 1, dtype=np.int64))}),
    "d2t of floats": ("TF-DRF-010", {}, {"d2t": ("F32", np.zeros(DRAFT_VOCAB, dtype=np.float32))}),
    "draft_vocab_size against the head": ("TF-DRF-010", {"draft_vocab_size": 20}, {}),
    "quantized weights": (
        "TF-DRF-007",
        {},
        {"midlayer__mlp__up_proj__weight": ("F8_E4M3", np.zeros((20, WIDTH), dtype=np.uint8))},
    ),
    "quantized by config": ("TF-DRF-007", {"quantization_config": {"quant_algo": "FP8"}}, {}),
    "taps not rising": ("TF-DRF-011", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [5, 1, 8]}}, {}),
    "taps twice": ("TF-DRF-011", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 1, 8]}}, {}),
    "a tap before the first layer": (
        "TF-DRF-011",
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 1, 8]}},
        {},
    ),
    "two bases of the rotation": ("TF-DRF-015", {"rope_parameters": {"rope_theta": 10000.0}}, {}),
    "an unknown scaling": ("TF-DRF-015", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}}, {}),
    "a scaling without its factor": ("TF-DRF-015", {"rope_scaling": {"rope_type": "linear"}}, {}),
    "no lm_head for a small vocabulary": ("TF-DRF-018", {}, {"lm_head__weight": None}),
    "a tensor missing": ("TF-DRF-005", {}, {"midlayer__hidden_norm__weight": None}),
    "a tensor of another shape": ("TF-DRF-005", {}, {"norm__weight": ("F32", table(WIDTH + 1))}),
    "fc_norm in config.json alone": ("TF-DRF-005", {"fc_norm": True}, {}),
    "fc_norm in the tensors alone": ("TF-DRF-006", {}, {"fc_norm__0__weight": ("F32", table(WIDTH))}),
    "another number of layers": ("TF-DRF-003", {"num_hidden_layers": 2}, {}),
    "another activation": ("TF-DRF-003", {"hidden_act": "gelu"}, {}),
    "another number of KV heads": ("TF-DRF-003", {"num_key_value_heads": 4}, {}),
    "a layer far beyond": ("TF-DRF-003", {}, {"layers__999999999999__mlp__up_proj__weight": ("F32", table(2, 2))}),
    "a layer of no number": ("TF-DRF-006", {}, {"layers__x__mlp__up_proj__weight": ("F32", table(2, 2))}),
    "an eps of words": ("TF-DRF-003", {"rms_norm_eps": "small"}, {}),
    "a flag of words": ("TF-DRF-003", {"norm_output": "false"}, {}),
    "a base of words": ("TF-DRF-015", {"rope_theta": "10000"}, {}),
    "an infinite base": ("TF-DRF-015", {"rope_theta": 1e999}, {}),
    "a base beyond all floats": ("TF-DRF-015", {"rope_theta": 10**400}, {}),
    "a base beyond float32": ("TF-DRF-015", {"rope_theta": 1e300}, {}),
    "a scaling by nothing": ("TF-DRF-015", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, {}),
    "a scaling by less than nothing": ("TF-DRF-015", {"rope_scaling": {"rope_type": "linear", "factor": -2.0}}, {}),
    "a scaling by no number": ("TF-DRF-015", {"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, {}),
    "a scaling beyond all floats": ("TF-DRF-015", {"rope_scaling": {"rope_type": "linear", "factor": 10**400}}, {}),
    "a scaling whose borders are one": (
        "TF-DRF-015",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {},
    ),
    "no heads": ("TF-DRF-003", {"num_attention_heads": 0}, {}),
    "architectures that are a number": ("TF-DRF-003", {"architectures": 7, "num_attention_heads": None}, {}),
    "lists for everything": (
        "TF-DRF-003",
        {"eagle_config": [], "layer_types": 3, "vocab_size": [], "head_dim": "x", "num_attention_heads": {}},
        {},
    ),
    "MLA": ("TF-DRF-002", {}, {"midlayer__self_attn__kv_a_proj_with_mqa__weight": ("F32", table(4, 4))}),
    "eh_proj before the attention": ("TF-DRF-002", {"eagle_config": {"eh_proj_before_attn": True}}, {}),
    "a sliding window": ("TF-DRF-002", {"layer_types": ["sliding_attention"]}, {}),
    "the embedding as head": ("TF-DRF-002", {"tie_word_embeddings": True}, {"lm_head__weight": None}),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_broken_drafter_is_refused_by_inspection_and_by_conversion(name: str, tmp_path: Path) -> None:
    code, config, tensors = ALONE[name]
    folder = write(tmp_path / "a", SPECFORGE, config=config, **tensors)
    found = inspect_folder(folder)
    assert code in {finding.code for finding in found.errors}, found.findings
    with pytest.raises(ForgeError) as refused:
        convert(folder, "speculators", tmp_path / "b")
    assert refused.value.code.startswith("TF-DRF-") and refused.value.remedies
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_a_sound_drafter_has_no_findings(tmp_path: Path) -> None:
    drafter = write(tmp_path / "a", SPECFORGE)
    own = tensors_of(SPECFORGE)["embed_tokens.weight"][1]
    target = write_target(tmp_path / "target", embedding=own)
    assert inspect_folder(drafter, target).findings == ()


def test_a_missing_embedding_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge", target_width=24))
    assert [finding.code for finding in inspect_folder(folder).errors] == ["TF-DRF-013"]


PAIRS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "another width": ("TF-DRF-019", "error", {}, {"hidden_size": 32}),
    "another vocabulary": ("TF-DRF-021", "error", {}, {"vocab_size": VOCAB + 8}),
    "taps past the last layer": ("TF-DRF-011", "error", {}, {"num_hidden_layers": 8}),
    "a random embedding": ("TF-DRF-013", "error", {}, {"embedding": table(VOCAB, WIDTH, seed=77)}),
    "the base of the rotation is a default": ("TF-DRF-014", "warning", {"rope_theta": None}, {}),
    "a rotated target": ("TF-DRF-028", "warning", {}, {"quantization_config": {"method": "QuaRot"}}),
    "the other numbering's taps": (
        "TF-DRF-012",
        "warning",
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 6, 9]}},
        {},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_drafter_is_held_against_its_target(name: str, tmp_path: Path) -> None:
    code, severity, config, other = PAIRS[name]
    own = tensors_of(SPECFORGE)["embed_tokens.weight"][1]
    drafter = write(tmp_path / "a", SPECFORGE, config=config)
    target = write_target(tmp_path / "target", **{"embedding": own, **other})
    found = inspect_folder(drafter, target).findings
    assert [(finding.code, finding.severity) for finding in found] == [(code, severity)]
    assert code not in {finding.code for finding in inspect_folder(drafter).findings}


def test_speculators_taps_in_the_numbering_of_the_others_are_named(tmp_path: Path) -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}
    drafter = write(tmp_path / "a", Spec("speculators"), config=ids)
    target = write_target(tmp_path / "target")
    assert [finding.code for finding in inspect_folder(drafter, target).findings] == ["TF-DRF-012"]


def test_a_drafter_larger_than_its_target_is_refused(tmp_path: Path) -> None:
    spec = Spec("modelopt", layers=6)
    drafter = write(tmp_path / "a", spec)
    target = write_target(tmp_path / "target")
    assert [finding.code for finding in inspect_folder(drafter, target).errors] == ["TF-DRF-023"]


def test_tokenizers_are_compared_by_what_they_do(tmp_path: Path) -> None:
    drafter, target = write(tmp_path / "a", Spec("modelopt")), write_target(tmp_path / "target", words=0)
    write_tokenizer(drafter, 0, truncation=None)  # other bytes, the same ids
    assert (drafter / "tokenizer.json").read_bytes() != (target / "tokenizer.json").read_bytes()
    assert inspect_folder(drafter, target).errors == []
    write_tokenizer(drafter, 3)
    (finding,) = inspect_folder(drafter, target).errors
    assert finding.code == "TF-DRF-022" and "quick" in finding.message


def test_an_own_head_of_the_whole_vocabulary_is_a_warning(tmp_path: Path) -> None:
    drafter, target = write(tmp_path / "a", Spec("modelopt", mapped=False)), write_target(tmp_path / "target")
    assert [finding.code for finding in inspect_folder(drafter, target).findings] == ["TF-DRF-017"]


def test_the_residual_after_the_norm_is_an_error_where_no_loader_takes_it(tmp_path: Path) -> None:
    flag = {"norm_before_residual": True}
    loader = write(tmp_path / "a", Spec("tensorrt-llm"), config=flag)
    assert [finding.code for finding in inspect_folder(loader).errors] == ["TF-DRF-016"]
    vllm = write(tmp_path / "b", Spec("modelopt"), config=flag)
    assert [(one.code, one.severity) for one in inspect_folder(vllm).findings] == [("TF-DRF-016", "warning")]
    convert(vllm, "speculators", tmp_path / "c")
    assert json.loads((tmp_path / "c" / "config.json").read_text())["norm_before_residual"] is True


def test_a_conversion_writes_the_base_of_the_rotation_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge", theta=None))
    convert(folder, "modelopt", tmp_path / "b", target=write_target(tmp_path / "target"))
    assert json.loads((tmp_path / "b" / "config.json").read_text())["rope_theta"] == 10000.0


def test_a_loss_is_refused_by_name_and_allowed_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge", own_embedding=True, norm_output=True))
    with pytest.raises(ForgeError) as refused:
        convert(folder, "modelopt", tmp_path / "b", allow_loss=["embed_tokens"])
    assert (refused.value.code, refused.value.numbers["lost"]) == ("TF-DRF-020", ["norm_output"])
    made = convert(folder, "modelopt", tmp_path / "b", allow_loss=["embed_tokens", "norm_output"])
    assert made.losses == ("embed_tokens", "norm_output")
    assert "embed_tokens.weight" not in load_file(tmp_path / "b" / "model.safetensors")
    assert json.loads((tmp_path / "b" / RECORD).read_text())["lost"] == ["embed_tokens", "norm_output"]


def test_the_targets_own_embedding_is_no_loss(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", SPECFORGE)
    target = write_target(tmp_path / "target", embedding=tensors_of(SPECFORGE)["embed_tokens.weight"][1])
    assert convert(folder, "tensorrt-llm", tmp_path / "b", target=target).losses == ()
    assert "embed_tokens.weight" not in load_file(tmp_path / "b" / "model.safetensors")


def test_a_random_embedding_is_repaired_by_leaving_it_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", SPECFORGE)
    target = write_target(tmp_path / "target", embedding=table(VOCAB, WIDTH, seed=77))
    with pytest.raises(ForgeError, match="TF-DRF-013"):
        convert(folder, "speculators", tmp_path / "b", target=target)
    convert(folder, "speculators", tmp_path / "b", target=target, allow_loss=["embed_tokens"])
    assert "embed_tokens.weight" not in load_file(tmp_path / "b" / "model.safetensors")


def test_an_output_head_is_copied_from_the_target(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("modelopt", mapped=False, own_head=False))
    target = write_target(tmp_path / "target")
    made = convert(folder, "specforge", tmp_path / "b", target=target)
    assert made.copied == ("lm_head.weight",)
    one = load_file(tmp_path / "b" / "model.safetensors")["lm_head.weight"]
    assert (one.numpy() == table(VOCAB, WIDTH, seed=6)).all()


def test_maps_change_their_type_and_t2d_comes_and_goes(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("speculators"))
    before = load_file(folder / "model.safetensors")
    convert(folder, "tensorrt-llm", tmp_path / "b")
    there = load_file(tmp_path / "b" / "model.safetensors")
    assert str(there["d2t"].dtype) == "torch.int32" and "t2d" not in there
    assert (there["d2t"].numpy() == before["d2t"].numpy()).all()
    convert(tmp_path / "b", "specforge", tmp_path / "c")
    assert (load_file(tmp_path / "c" / "model.safetensors")["t2d"].numpy() == before["t2d"].numpy()).all()


def test_the_record_names_where_it_came_from_and_no_place(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge"), config={"train_epochs": 3})
    made = convert(folder, "speculators", tmp_path / "b")
    text = (tmp_path / "b" / RECORD).read_text()
    record = json.loads(text)
    assert record["from"]["dialect"] == "specforge" and record["from"]["config"]["train_epochs"] == 3
    assert set(record["from"]["files"]) == {"config.json", "model.safetensors"}
    assert str(tmp_path) not in text
    assert made.left_out == ("train_epochs",) and record["config_keys_left_out"] == ["train_epochs"]


@pytest.mark.parametrize("place", ["there", "a/inside", "link"])
def test_nothing_that_is_there_is_written_over(place: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge"))
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ForgeError, match="TF-DRF-024"):
        convert(folder, "modelopt", tmp_path / place)
    assert list((tmp_path / "there").iterdir()) == []


def test_a_conversion_that_breaks_off_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "a", Spec("specforge"))

    def full(path: Path) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trtforge.drafting.conversion._sha256", full)
    with pytest.raises(ForgeError, match=r"TF-DRF-027.*No space"):
        convert(folder, "modelopt", tmp_path / "out" / "b")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(("to", "loss"), [("vllm", None), ("modelopt", "everything")])
def test_unknown_names_are_refused(to: str, loss: str | None, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", Spec("specforge"))
    with pytest.raises(ForgeError, match="TF-DRF-025"):
        convert(folder, to, tmp_path / "b", allow_loss=[loss] if loss else [])


def test_large_tensors_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtforge.drafting.conversion._CHUNK", 48)
    folder = write(tmp_path / "a", Spec("specforge"))
    convert(folder, "modelopt", tmp_path / "b")
    one, two = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "b"))
    assert (one["fc.weight"].numpy() == two["fc.weight"].numpy()).all()


def test_nested_defaults_are_those_of_the_class(tmp_path: Path) -> None:
    """transformers writes only what differs from its class, so what is missing is that class's value."""
    spec = Spec("speculators")
    nested = {key: value for key, value in config_of(spec)["transformer_layer_config"].items() if key != "rms_norm_eps"}
    folder = write(tmp_path / "a", spec, config={"transformer_layer_config": nested})
    head = inspect_folder(folder).head
    assert head is not None and head.eps == 1e-6

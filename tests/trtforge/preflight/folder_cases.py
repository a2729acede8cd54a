"""Every rule's cases that a folder shows: what is written there, the settings, and the facts beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.preflight import SMOL
from tests.support.public_models import CONFIGS, public
from tests.trtforge.drafting import checkpoints
from tests.trtforge.preflight import folders
from tests.trtforge.preflight.settings import API, ENGINE, RTX, build, merged, speculation, trtllm
from trtforge.models.record import Model

Write = Callable[[Path], Any]
FolderCase = tuple[Write, dict[str, Any], dict[str, Any]]

MODEL = {"model": {"source": "model"}}


def counted(parameters: int) -> Model:
    """A model of so many parameters, whatever its sizes."""
    model = replace(SMOL)
    vars(model)["parameters"] = parameters  # as if it had been asked for before
    return model


SMALL_VOCABULARY = {"model": replace(SMOL, vocab=100)}
ADAPTED = merged(ENGINE, trtllm(lora={"adapters": {"a": "adapter"}, "target_modules": ["attn_q", "attn_k", "attn_v"]}))
DRAFTED = merged(API, speculation(method="draft_target", draft="draft", max_draft_len=4))
DRAFTED_HERE = speculation(method="draft_target", draft="draft", max_draft_len=4)
EAGLE = merged(API, speculation(method="eagle3", draft="draft", max_draft_len=4))
DRAFTED_ENGINE = merged(
    ENGINE,
    trtllm(kv_reuse=True),
    build(limits={"max_seq_len": 2048}),
    speculation(method="draft_target", draft="draft", max_draft_len=4),
)
EAGLE_1 = merged(ENGINE, speculation(method="eagle", draft="draft", max_draft_len=63))
DRAFTER = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 1}
WHOLE_MODEL = {
    "model.embed_tokens.weight": folders.zeros(2, 2),
    "model.layers.29.mlp.up_proj.weight": folders.zeros(2, 2),
}
HEADS = {"fc.weight": folders.zeros(2, 6), "midlayer.mlp.up_proj.weight": folders.zeros(2, 2)}
MEDUSA = merged(ENGINE, speculation(method="medusa", draft="draft", heads=2, max_draft_len=63))


OWN_ITEMS = {"evals": {"custom": [{"path": "file:items.jsonl", "name": "own", "scorer": "regex"}]}}


def items(*lines: str) -> Write:
    return lambda root: (root / "items.jsonl").write_text("\n".join(lines), encoding="utf-8")


def model(**what: Any) -> Write:
    return lambda root: folders.write_model(root / "model", **what)


def quantized(**what: Any) -> Write:
    return lambda root: folders.write_quantized(root / "model", **what)


def adapter(**what: Any) -> Write:
    return lambda root: folders.write_adapter(root / "adapter", **what)


def draft(**what: Any) -> Write:
    return lambda root: folders.write_draft(root / "draft", **what)


def eagle_3(dialect: str = "specforge", *, qk_norm: bool = False, **config: Any) -> Write:
    return lambda root: checkpoints.write(root / "draft", checkpoints.Spec(dialect, qk_norm=qk_norm), config=config)


def nothing(root: Path) -> None:
    pass


def timing_cache(root: Path) -> None:
    (root / "model.cache").write_bytes(b"timings")


def pointer(root: Path) -> None:
    folders.write_model(root / "model")
    (root / "model" / "model.safetensors").write_text(folders.POINTER)


def both(target: Write, other: Write) -> Write:
    def write(root: Path) -> None:
        target(root)
        other(root)

    return write


_CHAT = {"chat_template": folders.TEMPLATE}
PROPOSAL = {
    "algorithm": "eagle3",
    "default_proposal_method": "greedy",
    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
}
_TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 1, "b": 0}}, "added_tokens": []}


def _trace(folder: Path) -> None:
    rows = ('{"isl": 4000, "osl": 100, "timestamp": 0}', '{"isl": 500, "osl": 20, "timestamp": 250}')
    (folder / "trace.jsonl").write_text("\n".join(rows), encoding="utf-8")


_TRACED = {"bench": {"trace": {"file": "file:trace.jsonl"}}}

FOLDER_CASES: dict[str, tuple[FolderCase, FolderCase]] = {
    "TF-K9-020": (
        (_trace, merged(build(limits={"max_seq_len": 4099}), _TRACED), {}),
        (_trace, merged(build(limits={"max_seq_len": 4100}), _TRACED), {}),
    ),
    "TF-K19-008": (
        (lambda folder: None, _TRACED, {}),
        (_trace, merged(build(limits={"max_seq_len": 4100}), _TRACED), {}),
    ),
    "TF-K3-023": (
        (
            model(config=CONFIGS["mistralai/Mixtral-8x7B-Instruct-v0.1"]),
            merged(RTX, MODEL),
            {"model": public("mistralai/Mixtral-8x7B-Instruct-v0.1")},
        ),
        (model(), merged(RTX, MODEL), {}),
    ),
    "TF-K5-005": (
        (
            model(config=CONFIGS["mistralai/Mixtral-8x7B-Instruct-v0.1"]),
            merged(API, MODEL, build(parallel={"tp": 4, "ep": 3})),
            {"model": public("mistralai/Mixtral-8x7B-Instruct-v0.1")},
        ),
        (
            model(config=CONFIGS["mistralai/Mixtral-8x7B-Instruct-v0.1"]),
            merged(API, MODEL, build(parallel={"tp": 4, "ep": 4})),
            {"model": public("mistralai/Mixtral-8x7B-Instruct-v0.1")},
        ),
    ),
    "TF-K6-005": (
        (quantized(changed={"lm_head.weight": folders.zeros(4, 8, dtype="F8_E4M3")}), MODEL, {}),
        (quantized(), MODEL, {}),
    ),
    "TF-K6-006": ((quantized(exclude=()), MODEL, {}), (quantized(), MODEL, {})),
    "TF-K7-001": ((quantized(without="k_scale"), MODEL, {}), (quantized(), MODEL, {})),
    "TF-K7-002": (
        (quantized(tensors=folders.quantized_tensors(k_scale=1.0)), MODEL, {}),
        (quantized(), MODEL, {}),
    ),
    "TF-K7-003": ((quantized(without="weight_scale"), MODEL, {}), (quantized(), MODEL, {})),
    "TF-K7-004": ((quantized(without="input_scale"), MODEL, {}), (quantized(), MODEL, {})),
    "TF-K7-005": (
        (quantized(tensors=folders.quantized_tensors(input_scale=0.0)), MODEL, {}),
        (quantized(), MODEL, {}),
    ),
    "TF-K12-005": ((nothing, DRAFTED, {}), (draft(), DRAFTED, {})),
    "TF-K12-006": (
        (draft(config={"vocab_size": 32_000}), DRAFTED, {}),
        (draft(), DRAFTED, {}),
    ),
    "TF-K12-007": (
        (draft(config={"hidden_size": 4096}), EAGLE, {}),
        (draft(), EAGLE, {}),
    ),
    "TF-K12-008": (
        (draft(), DRAFTED, {"model": counted(16)}),
        (draft(), DRAFTED, {"model": counted(17)}),
    ),
    "TF-K12-039": (
        (draft(), DRAFTED, {"model": counted(8)}),
        (draft(), DRAFTED, {"model": counted(9)}),
    ),
    "TF-K12-040": (
        (eagle_3(num_lookahead_tokens=3), EAGLE, {}),
        (eagle_3(num_lookahead_tokens=4), EAGLE, {}),
    ),
    "TF-K12-041": (
        (eagle_3("speculators", speculators_config=PROPOSAL), EAGLE, {}),
        (eagle_3("speculators", speculators_config=PROPOSAL), merged(EAGLE, speculation(max_draft_len=3)), {}),
    ),
    "TF-K12-022": (
        (draft(config={"num_hidden_layers": 30}, tensors=WHOLE_MODEL), EAGLE, {}),
        (draft(config={"num_hidden_layers": 1}, tensors=HEADS), EAGLE, {}),
    ),
    "TF-K12-018": (
        (model(config={"architectures": ["Qwen2ForCausalLM"]}), merged(MODEL, EAGLE_1), {}),
        (model(config={"architectures": ["MistralForCausalLM"]}), merged(MODEL, EAGLE_1), {}),
    ),
    "TF-K12-024": (
        (draft(config=DRAFTER, tensors={"fc.weight": folders.zeros(2, 6)}), EAGLE_1, {}),
        (draft(config=DRAFTER, tensors={"fc.weight": folders.zeros(2, 4)}), EAGLE_1, {}),
    ),
    "TF-K12-026": (
        (draft(config=DRAFTER, tensors={"fc.weight": folders.zeros(2, 4)}), EAGLE, {}),
        (draft(config=DRAFTER, tensors={"fc.weight": folders.zeros(2, 6)}), EAGLE, {}),
    ),
    "TF-K12-027": (
        (draft(config=DRAFTER, tensors=HEADS), EAGLE, {}),
        (eagle_3(), EAGLE, {}),
    ),
    "TF-K12-028": (
        (eagle_3(norm_before_residual=True), EAGLE, {}),
        (eagle_3(), EAGLE, {}),
    ),
    "TF-K12-029": (
        (draft(config={"architectures": ["DFlashDraftModel"]}), EAGLE, {}),
        (eagle_3(), EAGLE, {}),
    ),
    "TF-K12-035": (
        (eagle_3("speculators", qk_norm=True), EAGLE, {}),
        (eagle_3("speculators"), EAGLE, {}),
    ),
    "TF-K12-025": (
        (draft(config={"max_position_embeddings": 1024}), DRAFTED_ENGINE, {}),
        (draft(config={"max_position_embeddings": 2048}), DRAFTED_ENGINE, {}),
    ),
    "TF-K12-034": (
        (draft(config={"architectures": ["MambaForCausalLM"]}), DRAFTED_HERE, {}),
        (draft(config={"architectures": ["LlamaForCausalLM"]}), DRAFTED_HERE, {}),
    ),
    "TF-K12-013": (
        (draft(), merged(MEDUSA, speculation(heads=4)), {}),
        (draft(), MEDUSA, {}),
    ),
    "TF-K8-007": (
        (items('{"prompt": "a", "answer": "("}'), OWN_ITEMS, {}),
        (items('{"prompt": "a", "answer": "b"}'), OWN_ITEMS, {}),
    ),
    "TF-K13-006": (
        (model(tokenizer=False), merged(API, MODEL, trtllm(guided_decoding="xgrammar")), {}),
        (model(), merged(API, MODEL, trtllm(guided_decoding="xgrammar")), {}),
    ),
    "TF-K15-001": (
        (model(tokenizer_config={**_CHAT, "eos_token": "<|eot_id|>"}), MODEL, SMALL_VOCABULARY),
        (
            model(tokenizer_config={**_CHAT, "eos_token": "<|eot_id|>"}, generation={"eos_token_id": [2, 99]}),
            MODEL,
            SMALL_VOCABULARY,
        ),
    ),
    "TF-K15-003": (
        (model(tokenizer_config={**_CHAT, "eos_token": "</s>"}), MODEL, SMALL_VOCABULARY),
        (model(tokenizer_config={"eos_token": "</s>"}), MODEL, SMALL_VOCABULARY),
    ),
    "TF-K17-001": ((model(tokenizer=False), MODEL, {}), (model(), MODEL, {})),
    "TF-K17-002": (
        (model(tokenizer_config={"auto_map": {"AutoTokenizer": ["tok.Tok", None]}}), MODEL, {}),
        (model(), MODEL, {}),
    ),
    "TF-K17-003": (
        (model(added={"<extra>": 100}), MODEL, SMALL_VOCABULARY),
        (model(added={"<extra>": 99}), MODEL, SMALL_VOCABULARY),
    ),
    "TF-K17-004": (
        (model(tokenizer_config={"added_tokens_decoder": {"98": {"content": "<|eot_id|>"}}}), MODEL, {}),
        (model(tokenizer_config={"added_tokens_decoder": {"99": {"content": "<|eot_id|>"}}}), MODEL, {}),
    ),
    "TF-K9-013": (
        (nothing, merged(ENGINE, trtllm(timing_cache="model.cache")), {}),
        (timing_cache, merged(ENGINE, trtllm(timing_cache="model.cache")), {}),
    ),
    "TF-K13-009": (
        (
            model(config={"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}),
            merged(ENGINE, MODEL),
            {},
        ),
        (
            model(config={"architectures": ["LlamaForCausalLM"], "attention_bias": True}),
            merged(ENGINE, MODEL),
            {},
        ),
    ),
    "TF-K18-006": (
        (model(config={"layer_types": ["full_attention", "sliding_attention"]}), MODEL, {}),
        (model(config={"layer_types": ["full_attention", "full_attention"]}), MODEL, {}),
    ),
    "TF-K18-003": (
        (model(config={"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}}), MODEL, {}),
        (
            model(
                config={
                    "rope_theta": 500_000,
                    "rope_scaling": {"rope_type": "yarn", "factor": 4},
                    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500_000.0},
                }
            ),
            MODEL,
            {},
        ),
    ),
    "TF-K18-004": ((pointer, MODEL, {}), (model(), MODEL, {})),
    "TF-K21-002": ((nothing, ADAPTED, {}), (adapter(), ADAPTED, {})),
    "TF-K21-003": ((adapter(rank=64), ADAPTED, {}), (adapter(rank=8), ADAPTED, {})),
    "TF-K21-004": ((adapter(dtype="BF16"), ADAPTED, {}), (adapter(dtype="F16"), ADAPTED, {})),
    "TF-K21-005": (
        (adapter(modules=("q_proj", "o_proj")), ADAPTED, {}),
        (adapter(modules=("q_proj", "k_proj", "v_proj")), ADAPTED, {}),
    ),
    "TF-K21-006": ((adapter(width=4096), ADAPTED, {}), (adapter(), ADAPTED, {})),
    "TF-K21-007": (
        (adapter(config={"modules_to_save": ["embed_tokens", "lm_head"]}), ADAPTED, {}),
        (adapter(), ADAPTED, {}),
    ),
}

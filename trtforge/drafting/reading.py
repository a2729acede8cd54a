"""Reads an EAGLE-3 folder of any dialect into its :class:`~trtforge.drafting.description.Eagle3`, with every fault."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import Dialect, canonical_names, dialect_of, names_of
from trtforge.drafting.findings import DraftFinding
from trtforge.drafting.maps import map_findings
from trtforge.drafting.rope import read_rope
from trtforge.ground.safetensors_header import TensorInfo

#: types that weights may have; anything else is quantized
FLOATS = ("F32", "BF16", "F16", "F64")
#: what transformers takes where a nested configuration says nothing, because it writes differences only
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
    },
}
_LAYER = re.compile(r"layers\.(\d+)\.")
_FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "tie_word_embeddings")
#: buffers and training leftovers beside the weights, which no reader loads
_BUFFER = re.compile(r"(.+\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|verifier_(norm|lm_head)\.weight")
_COMPLETE = "the publisher's complete checkpoint, config.json as it stands beside the weights"


@dataclass(frozen=True)
class Reading:
    """An EAGLE-3 folder as it was read.

    Attributes:
        head: None when sizes are missing, so that nothing more can be said.
        names: canonical name → stored name, of everything but buffers.
        stored_taps: the taps as the dialect numbers them.
    """

    dialect: Dialect
    head: Eagle3 | None
    names: Mapping[str, str]
    stored_taps: tuple[int, ...] | None
    findings: tuple[DraftFinding, ...]


def read_eagle3(folder: Path, config: Mapping[str, Any], headers: Mapping[str, TensorInfo]) -> Reading:
    """Read config.json and headers; maps are read too, weights are not."""
    dialect = dialect_of(config, headers)
    names = {name: stored for name, stored in canonical_names(headers).items() if not _BUFFER.fullmatch(name)}
    tensors = {name: headers[stored] for name, stored in names.items()}
    flat, eagle = _flat(config, dialect), config.get("eagle_config")
    eagle = eagle if isinstance(eagle, Mapping) else {}
    findings = [*_quantized(config, tensors), *_variants(flat, eagle, tensors)]
    findings += [
        _config(f"{name} is {flat[name]!r}, neither true nor false", {name: flat[name]})
        for name in _FLAGS
        if not isinstance(flat.get(name), bool | None)
    ]
    stored, tap_findings = _stored_taps(flat, eagle)
    findings += tap_findings
    if findings and any(item.code in ("TF-DRF-007", "TF-DRF-002") for item in findings):
        return Reading(dialect, None, names, stored, tuple(findings))
    sizes = _sizes(flat, tensors, stored, findings)
    if sizes is None:
        return Reading(dialect, None, names, stored, tuple(findings))
    rope, rope_findings = read_rope(flat)
    findings += rope_findings
    taps = None if stored is None else tuple(tap - dialect.shift for tap in stored)
    head = Eagle3(
        **sizes,
        taps=taps,
        rope=rope,
        fc_norm=flat.get("fc_norm") is True,
        norm_output=True in (flat.get("norm_output"), eagle.get("return_hidden_post_norm")),
        norm_before_fc=True in (flat.get("norm_before_fc"), eagle.get("norm_before_fc")),
        norm_before_residual=flat.get("norm_before_residual") is True,
        qk_norm="layers.0.self_attn.q_norm.weight" in tensors,
        attention_bias="layers.0.self_attn.q_proj.bias" in tensors,
        mlp_bias="layers.0.mlp.gate_proj.bias" in tensors,
        fc_bias="fc.bias" in tensors,
        mapped="d2t" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        dtype=tensors["fc.weight"].dtype,
    )
    findings += _check(head, dialect, tensors)
    findings += map_findings(
        folder, tensors.get("d2t"), tensors.get("t2d"), vocab=head.vocab_size, draft_vocab=head.draft_vocab_size
    )
    return Reading(dialect, head, names, stored, tuple(findings))


def _flat(config: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """config.json with the nested layer's keys beside the others."""
    if not dialect.nested:
        return dict(config)
    nested = config.get("transformer_layer_config")
    nested = nested if isinstance(nested, Mapping) else {}
    defaults = _CLASS_DEFAULTS.get(str(nested.get("model_type", "llama")), {})
    top = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    return {**defaults, **top, **nested}


def _quantized(config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> list[DraftFinding]:
    packed = sorted(
        name for name, info in tensors.items() if info.dtype not in FLOATS and name.split(".")[-1] not in ("d2t", "t2d")
    )
    given = config.get("quantization_config")
    if not packed and not given:
        return []
    algorithm = None
    if isinstance(given, Mapping):
        algorithm = given.get("quant_algo") or given.get("quant_method")
    return [
        DraftFinding(
            "TF-DRF-007",
            f"the drafter is quantized ({algorithm or tensors[packed[0]].dtype}): {len(packed)} tensors are no floats",
            numbers={"tensors": len(packed), "first": packed[0] if packed else None, "algorithm": algorithm},
            why="No dialect says how another one's quantized weights are read, and a quantized drafter loses "
            "acceptance for weights that are small anyway.",
            remedies=["the drafter's checkpoint in bfloat16 or float16; quantize the target only"],
        )
    ]


def _variants(
    flat: Mapping[str, Any], eagle: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> list[DraftFinding]:
    """Forms of EAGLE-3 that compute something else than the description says."""
    architectures = names_of(flat)
    found = [
        what
        for what, there in (
            ("latent attention (MLA)", any(".kv_a_proj_with_mqa." in name for name in tensors)),
            ("latent attention (MLA)", any("deepseek" in item.lower() for item in architectures)),
            ("eh_proj before the attention", bool(eagle.get("eh_proj_before_attn")) or "eh_proj.weight" in tensors),
            ("no tapped states (use_aux_hidden_state: false)", eagle.get("use_aux_hidden_state") is False),
            ("no norm of the embedding", eagle.get("use_input_layernorm_in_first_layer") is False),
            ("no last norm (use_last_layernorm: false)", eagle.get("use_last_layernorm") is False),
            ("parallel drafting", (eagle.get("parallel_draft_step") or 1) != 1),
            (
                "embeddings before every layer",
                eagle.get("next_layer_regular") is False and (flat.get("num_hidden_layers") or 1) != 1,
            ),
            (
                "an output head that is its embedding",
                bool(flat.get("tie_word_embeddings"))
                and "lm_head.weight" not in tensors
                and "embed_tokens.weight" in tensors,
            ),
            ("a partial rotation", flat.get("partial_rotary_factor") not in (None, 1, 1.0)),
            ("experts", any(".experts." in name for name in tensors)),
            (
                "a sliding window",
                bool(flat.get("use_sliding_window") and flat.get("sliding_window"))
                or "sliding_attention" in str(flat.get("layer_types")),
            ),
        )
        if there
    ]
    if not found:
        return []
    return [
        DraftFinding(
            "TF-DRF-002",
            f"the drafter is an EAGLE-3 one with {' and '.join(dict.fromkeys(found))}",
            numbers={"architectures": architectures},
            why="Only one dialect has such a head, so there is nothing to convert it into.",
            remedies=["serve it with what it was made for", "a drafter with a Llama layer of this target"],
        )
    ]


def _stored_taps(
    flat: Mapping[str, Any], eagle: Mapping[str, Any]
) -> tuple[tuple[int, ...] | None, list[DraftFinding]]:
    key = "eagle_aux_hidden_state_layer_ids"
    given = flat.get(key) or eagle.get(key)
    if not given:
        return None, []
    if isinstance(given, list) and all(isinstance(tap, int) and not isinstance(tap, bool) for tap in given):
        taps = tuple(given)
        if all(one < other for one, other in itertools.pairwise(taps)):
            return taps, []
    return None, [
        DraftFinding(
            "TF-DRF-011",
            f"{key} must be rising layer numbers, not {given!r}",
            numbers={"taps": given},
            why="States are joined in the order of the layers, so a set of layers has one order only.",
            remedies=["the layers that the drafter was trained on, each once, from the first to the last"],
        )
    ]


def _sizes(
    flat: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    stored: tuple[int, ...] | None,
    findings: list[DraftFinding],
) -> dict[str, Any] | None:
    """The sizes by headers, held against config.json; None, with findings, where they cannot be told."""

    def shape(name: str, axis: int) -> int | None:
        info = tensors.get(name)
        return info.shape[axis] if info is not None and len(info.shape) > axis else None

    def config(name: str) -> int | None:
        value = flat.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    width, columns = shape("fc.weight", 0), shape("fc.weight", 1)
    heads, vocab = config("num_attention_heads"), config("vocab_size") or shape("embed_tokens.weight", 0)
    ffn = shape("layers.0.mlp.gate_proj.weight", 0)
    if width is None or columns is None or ffn is None:
        missing = "fc.weight" if columns is None else "layers.0.mlp.gate_proj.weight"
        findings.append(_missing(1, missing, None, None))
        return None
    absent = [name for name, value in (("num_attention_heads", heads), ("vocab_size", vocab)) if value is None]
    if heads is None or vocab is None:
        findings.append(_config(f"config.json gives no {' and no '.join(absent)}", {"missing": absent}))
        return None
    size = config("head_dim") or width // heads
    eps = flat.get("rms_norm_eps", 1e-6)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < 1:
        findings.append(_config(f"rms_norm_eps is {eps!r}, no small number", {"rms_norm_eps": eps}))
        return None
    numbers = {match[1] for name in tensors if (match := _LAYER.match(name))}
    layers = len(numbers)
    if numbers != {str(number) for number in range(layers)}:
        findings.append(_config(f"layers are missing between those that are stored: {sorted(numbers)[:4]}", {}))
        return None
    given = config("hidden_size")
    if given is not None and given != width:
        message = f"hidden_size is {given} in config.json, fc writes a width of {width}"
        findings.append(_config(message, {"config": given, "fc": list(tensors["fc.weight"].shape)}))
    if (said := config("num_hidden_layers")) is not None and said != layers:
        message = f"num_hidden_layers is {said} in config.json, the tensors are of {layers}"
        findings.append(_config(message, {"config": said, "tensors": layers}))
    target = config("target_hidden_size") or width
    reads = shape("layers.0.self_attn.q_proj.weight", 1)
    if columns % target or reads == width or (stored is not None and columns != len(stored) * target):
        wanted = f"{len(stored)} taps" if stored is not None else "three taps"
        attention = ", and the attention reads one state, as EAGLE-1 and -2 do" if reads == width else ""
        findings.append(
            DraftFinding(
                "TF-DRF-004",
                f"fc reads {columns} values; {wanted} of width {target} have "
                f"{len(stored or (0, 0, 0)) * target}{attention}",
                numbers={"fc": list(tensors["fc.weight"].shape), "taps": list(stored or ()), "width": target},
                why="EAGLE-3 joins the tapped states (3 of the target's width by default), EAGLE-1 and -2 an embedding "
                "and one state (2): with the other method fc is skipped or cannot be loaded, and nothing is accepted.",
                remedies=["target_hidden_size in config.json, where the target is wider or narrower", _COMPLETE],
            )
        )
        return None
    keys = shape("layers.0.self_attn.k_proj.weight", 0)
    kv_heads = config("num_key_value_heads") or heads
    if keys is not None and keys != kv_heads * size:
        message = f"k_proj has {keys} rows, {kv_heads} KV heads of {size} have {kv_heads * size}"
        findings.append(_config(message, {"rows": keys, "kv_heads": kv_heads, "head_dim": size}))
    draft = shape("lm_head.weight", 0) or shape("d2t", 0) or config("draft_vocab_size") or vocab
    if (said := config("draft_vocab_size")) is not None and said != draft:
        findings.append(
            DraftFinding(
                "TF-DRF-010",
                f"draft_vocab_size is {said} in config.json, the head has {draft} rows",
                numbers={"config": said, "head": draft},
                remedies=[_COMPLETE],
            )
        )
    if draft > vocab:
        findings.append(_config(f"the head has {draft} tokens, the target {vocab}", {"draft": draft, "vocab": vocab}))
    return {
        "hidden_size": width,
        "target_hidden_size": target,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": size,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "draft_vocab_size": draft,
        "eps": float(eps),
        "act": str(flat.get("hidden_act") or "silu"),
        "tap_count": columns // target,
        "max_positions": config("max_position_embeddings"),
    }


def _check(head: Eagle3, dialect: Dialect, tensors: Mapping[str, TensorInfo]) -> list[DraftFinding]:
    """Every tensor that a head has, no other, and each of its shape."""
    wanted = head.shapes()
    optional = {
        "embed_tokens.weight": (head.vocab_size, head.hidden_size),
        "lm_head.weight": (head.draft_vocab_size, head.hidden_size),
    }
    found: list[DraftFinding] = []
    wrong = [
        name
        for name, shape in {**wanted, **{name: shape for name, shape in optional.items() if name in tensors}}.items()
        if name not in tensors or tensors[name].shape != shape
    ]
    if wrong:
        name = wrong[0]
        shape = list(tensors[name].shape) if name in tensors else None
        found.append(_missing(len(wrong), name, shape, list({**wanted, **optional}[name])))
    more = sorted(
        name for name in tensors if name not in wanted and name not in optional and name not in ("d2t", "t2d")
    )
    if more:
        found.append(
            DraftFinding(
                "TF-DRF-006",
                f"{len(more)} tensors have no place in such a drafter: {', '.join(more[:4])}",
                numbers={"tensors": more[:8]},
                why="A reader that skips them computes something else than was trained; a flag of config.json that "
                "turns them on may be missing (fc_norm, norm_before_fc).",
                remedies=["the flag that they belong to, in config.json", _COMPLETE],
            )
        )
    if head.act != "silu":
        found.append(_config(f"hidden_act is {head.act}, readers compute silu", {"hidden_act": head.act}))
    if head.fc_norm and head.norm_before_fc:
        found.append(_config("fc_norm and norm_before_fc are both true; a head has one of them at most", {}))
    if not head.own_head and head.draft_vocab_size != head.vocab_size:
        found.append(
            DraftFinding(
                "TF-DRF-018",
                f"the drafter has no lm_head of its own, and a map of {head.draft_vocab_size} tokens",
                numbers={"draft_vocab": head.draft_vocab_size, "vocab": head.vocab_size},
                why=f"The target's head has {head.vocab_size} rows; its rows are no draft tokens.",
                remedies=[_COMPLETE],
            )
        )
    if not head.own_embedding and head.target_hidden_size != head.hidden_size:
        found.append(
            DraftFinding(
                "TF-DRF-013",
                f"the drafter has no embed_tokens of its own, and a width of {head.hidden_size} for a target of "
                f"{head.target_hidden_size}",
                numbers={"width": head.hidden_size, "target_width": head.target_hidden_size},
                why="The target's embedding has another width, so there is none to share.",
                remedies=["the export with the embedding (SpecForge: --to hf)", _COMPLETE],
            )
        )
    if head.norm_before_residual and "norm_before_residual" not in dialect.expresses:
        loader = dialect.name == "tensorrt-llm"
        found.append(
            DraftFinding(
                "TF-DRF-016",
                f"norm_before_residual is true, and {dialect.title} has no such key",
                severity="error" if loader else "warning",
                numbers={"dialect": dialect.name},
                why="vLLM reads it in any dialect, the others take the residual before the norm: what one of them "
                "computes is not what was trained.",
                remedies=["vLLM, or the dialect that says it: trtforge draft convert --to speculators"],
            )
        )
    if head.taps is not None and head.taps[0] < 0:
        found.append(
            DraftFinding(
                "TF-DRF-011",
                f"the first tap is layer {head.taps[0]}: id {head.taps[0] + dialect.shift} of {dialect.title} is the "
                "embedding's output",
                numbers={"taps": list(head.taps)},
                why=f"{dialect.title} numbers taps as: {dialect.numbering}.",
                remedies=["ids in the dialect's own numbering"],
            )
        )
    return found


def _missing(count: int, name: str, shape: list[int] | None, wanted: list[int] | None) -> DraftFinding:
    how = "is missing" if shape is None else f"is {shape}, not {wanted}"
    return DraftFinding(
        "TF-DRF-005",
        f"{count} tensors do not fit config.json: {name} {how}",
        numbers={"tensor": name, "found": shape, "wanted": wanted},
        why="The drafter could not be loaded, or would run with what its weights happened to be initialised to.",
        remedies=[_COMPLETE],
    )


def _config(message: str, numbers: Mapping[str, Any]) -> DraftFinding:
    return DraftFinding("TF-DRF-003", message, numbers=numbers, remedies=[_COMPLETE])

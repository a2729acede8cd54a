"""Writes an :class:`~trtforge.drafting.description.Eagle3` as the config.json of a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge import __version__
from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import MODELOPT, SPECFORGE, SPECULATORS, TENSORRT_LLM, Dialect

#: keys that mean nothing to the head's arithmetic and are carried as they stand, with what is written without them
NEUTRAL: dict[str, Any] = {
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
    "transformers_version": None,
    "speculators_config": None,
}
_TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}
#: keys that are read into the description, or follow from it
_READ = frozenset(
    {
        *("architectures", "model_type", "hidden_size", "target_hidden_size", "intermediate_size", "vocab_size"),
        *("draft_vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
        *("eagle_config", "eagle_aux_hidden_state_layer_ids", "transformer_layer_config", "tie_word_embeddings"),
        *("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "attention_bias", "mlp_bias", "bias"),
        *("torch_dtype", "dtype", "speculators_model_type", "speculators_version", "pretraining_tp"),
        *("embed_requires_grad", "has_no_defaults_at_init", "sliding_window", "use_sliding_window", "layer_types"),
        *("max_window_layers", "partial_rotary_factor"),
    }
)


def carried(config: Mapping[str, Any]) -> dict[str, Any]:
    """The neutral keys of a config.json of any dialect."""
    nested = config.get("transformer_layer_config")
    both = {**(nested if isinstance(nested, Mapping) else {}), **config}
    return {name: both[name] for name in NEUTRAL if both.get(name) is not None}


def left_out(config: Mapping[str, Any]) -> list[str]:
    """The keys of a config.json that no reader of a head knows and no conversion carries."""
    nested = config.get("transformer_layer_config")
    both = {**(nested if isinstance(nested, Mapping) else {}), **config}
    return sorted(key for key in both if key not in _READ and key not in NEUTRAL)


def config_of(
    head: Eagle3, dialect: Dialect, neutral: Mapping[str, Any], verifier: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The config.json of ``head`` in ``dialect``.

    Args:
        neutral: as :func:`carried` gives them.
        verifier: the target's config.json, where it is known.
    """
    layer: dict[str, Any] = {
        "model_type": "qwen3" if head.qk_norm else "llama",
        "hidden_size": head.hidden_size,
        "intermediate_size": head.intermediate_size,
        "num_hidden_layers": head.layers,
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_size,
        "hidden_act": head.act,
        "rms_norm_eps": head.eps,
        "vocab_size": head.vocab_size,
        "attention_bias": head.attention_bias,
        "mlp_bias": head.mlp_bias,
        "rope_theta": head.rope.theta,
        "rope_scaling": dict(head.rope.scaling) or None,
        "tie_word_embeddings": False,
    }
    if head.max_positions is not None:
        layer["max_position_embeddings"] = head.max_positions
    plain = {name: value for name, value in neutral.items() if name != "speculators_config"}
    layer |= {**{name: value for name, value in NEUTRAL.items() if value is not None}, **plain}
    torch_dtype = _TORCH[head.dtype]
    taps = [tap + dialect.shift for tap in head.taps] if head.taps is not None else None
    if dialect is SPECULATORS:
        return _speculators(head, layer, torch_dtype, taps, neutral, verifier)
    config: dict[str, Any] = {
        "architectures": [dialect.architectures[0]],
        **layer,
        "draft_vocab_size": head.draft_vocab_size,
        "torch_dtype": torch_dtype,
        "eagle_config": {"use_aux_hidden_state": True, "next_layer_regular": True},
    }
    if neutral.get("speculators_config") is not None:
        config["speculators_config"] = neutral["speculators_config"]
    if taps is not None:
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = taps
    if head.target_hidden_size != head.hidden_size:
        config["target_hidden_size"] = head.target_hidden_size
    if dialect is MODELOPT:
        config["eagle_config"] |= {
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        }
    if dialect is TENSORRT_LLM:
        config["bias"] = head.fc_bias
        config["eagle_config"]["norm_before_fc"] = head.norm_before_fc
    if dialect in (SPECFORGE, TENSORRT_LLM):
        config["fc_norm"] = head.fc_norm
        # SpecForge takes a written false for "no norm before lm_head", which is no head that is described here
        if head.norm_output:
            config["norm_output"] = True
    return config


def _speculators(
    head: Eagle3,
    layer: dict[str, Any],
    torch_dtype: str,
    taps: list[int] | None,
    neutral: Mapping[str, Any],
    verifier: Mapping[str, Any] | None,
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [SPECULATORS.architectures[0]],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": head.draft_vocab_size,
        "norm_before_residual": head.norm_before_residual,
        "norm_before_fc": head.norm_before_fc,
        "fc_norm": head.fc_norm,
        "norm_output": head.norm_output,
        "target_hidden_size": None,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": torch_dtype,
        "transformer_layer_config": {**layer, "torch_dtype": torch_dtype},
        "speculators_config": neutral.get("speculators_config") or _proposal(verifier or {}),
    }
    if taps is not None:
        config["eagle_aux_hidden_state_layer_ids"] = taps
    return config


def _proposal(verifier: Mapping[str, Any]) -> dict[str, Any]:
    """What speculators say of the use of a head: greedy chains, and the target where it names itself."""
    architectures = verifier.get("architectures")
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {
            "name_or_path": verifier.get("_name_or_path") or None,
            "architectures": architectures if isinstance(architectures, list) else [],
        },
    }


def record(origin: Mapping[str, Any], target: Mapping[str, Any] | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Where a converted drafter came from; lies beside it."""
    return {"made_by": f"trtforge {__version__}", "from": dict(origin), "target": target, **changes}

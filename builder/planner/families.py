"""Which decoders the planner's arithmetic is true for: softmax attention, a gated MLP, RMS norms, per layer.

Policy: a type whose layers are something else (state spaces, linear attention, encoders, an MLP of two matrices) is
refused, because its bytes and operations would be wrong and look right. A type that nobody entered here is planned
when its config has every size of such a decoder, and the plan says that it assumes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.planner.types import bad_input


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: types whose modeling files are of this kind: q, k, v, o; gate, up, down; a norm before each half (or MLA)
#: Source: https://github.com/huggingface/transformers/tree/main/src/transformers/models
KNOWN = _types(
    "llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 gemma3_text phi3 phimoe deepseek_v2 "
    "deepseek_v3 kimi_k2 gpt_oss granite granitemoe olmo olmo2 olmo3 olmoe glm glm4 glm4_moe smollm3 cohere cohere2 "
    "stablelm seed_oss exaone4 internlm2 internlm3 baichuan ministral"
)
#: types with routed experts in their layers: one without any is a damaged config
MIXTURES = _types(
    "mixtral qwen2_moe qwen3_moe phimoe deepseek_v2 deepseek_v3 kimi_k2 gpt_oss granitemoe olmoe glm4_moe"
)
_OTHERS = {
    "its layers are recurrent or mix recurrent ones with attention": (
        "mamba mamba2 falcon_mamba jamba rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma zamba zamba2 bamba falcon_h1 "
        "granitemoehybrid nemotron_h lfm2 lfm2_moe qwen3_next xlstm minimax kimi_linear plamo2"
    ),
    "its MLP has two matrices and no gate, its norms have a bias": (
        "gpt2 gpt_neo gpt_neox gptj gpt_bigcode codegen opt bloom falcon mpt phi starcoder2 nemotron persimmon xglm "
        "biogpt arcee openai-gpt"
    ),
    "it is an encoder, or has one": (
        "t5 mt5 umt5 bart mbart marian pegasus whisper bert roberta xlm-roberta albert electra deberta deberta-v2 "
        "distilbert modernbert blenderbot m2m_100"
    ),
}
_BY_TYPE = {kind: why for why, kinds in _OTHERS.items() for kind in kinds.split()}
#: keys that only a config of such layers has
_MARKS = {
    "its layers are recurrent or mix recurrent ones with attention": (
        "state_size ssm_cfg ssm_state_size mamba_d_state mamba_d_conv d_conv time_step_rank attn_layer_period "
        "layers_block_type hybrid_override_pattern linear_num_key_heads linear_attn_config lru_width"
    ),
    "its attention is not that of a decoder with rotary positions": "alibi new_decoder_architecture parallel_attn",
}
_ATTENTION = frozenset({"full_attention", "sliding_attention"})


def check_family(config: Mapping[str, Any], kind: str, architecture: str) -> list[str]:
    """What the plan assumes about a model of this type; empty for a known one.

    Raises:
        ForgeError: ``TF-PLN-015`` its layers are not what the planner computes.
    """
    if kind in _BY_TYPE:
        raise _other(kind, architecture, _BY_TYPE[kind])
    if config.get("is_encoder_decoder") is True:
        raise _other(kind, architecture, "it is an encoder, or has one")
    types = config.get("layer_types")
    if isinstance(types, list):
        strange = sorted({str(name) for name in types} - _ATTENTION)
        if strange:
            raise _other(kind, architecture, f"layer_types names {strange[0][:40]}")
    if kind in KNOWN:
        return []
    for why, keys in _MARKS.items():
        found = next((key for key in keys.split() if config.get(key)), None)
        if found is not None:
            raise _other(kind, architecture, f"{why} (its config has {found})")
    return [
        f"{architecture} (model_type {kind or 'not given'}) is not in the planner's table: every figure assumes "
        "Llama's layers (q, k, v, o; gate, up, down; two norms; softmax attention over every token)"
    ]


def _other(kind: str, architecture: str, why: str) -> Exception:
    return bad_input(
        "TF-PLN-015",
        f"{architecture} is no decoder that the planner can compute: {why}",
        asked=f"model_type {kind}" if kind else architecture,
        why="Weights, KV cache and operations are counted for softmax attention and gated MLPs in every layer.",
        remedies=[
            f"a model of a type that is known: {', '.join(sorted(KNOWN)[:12])} …",
            "measure it on the GPU instead",
        ],
        known=sorted(KNOWN),
    )

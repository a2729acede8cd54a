"""Tiny EAGLE-3 checkpoints of every dialect, written as their trainers write them and without our code."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny import write_safetensors

WIDTH, OTHER_WIDTH, FFN, HEADS, KV_HEADS, SIZE = 16, 24, 20, 4, 2, 8
VOCAB, DRAFT_VOCAB, TARGET_LAYERS = 40, 14, 12
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
YARN_FULL = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.0}
LINEAR = {"rope_type": "linear", "factor": 2.0}


@dataclass(frozen=True)
class Spec:
    """What a checkpoint is to be. ``taps`` are outputs of layers, 0-based; None leaves them to the default."""

    dialect: str
    taps: tuple[int, ...] | None = (1, 5, 8)
    fc_norm: bool = False
    norm_output: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    qk_norm: bool = False
    layers: int = 1
    bias: bool = False
    fc_bias: bool = False
    mapped: bool = True
    identity: bool = False
    own_embedding: bool = False
    own_head: bool = True
    target_width: int = WIDTH
    theta: float | None = 500000.0
    scaling: dict[str, Any] | None = None
    plain_llama: bool = False
    seed: int = field(default=0)

    @property
    def name(self) -> str:
        on = [name for name in FLAGS if getattr(self, name)]
        rope = (self.scaling or {}).get("rope_type", "plain")
        return "-".join([self.dialect, str(self.seed), *on, f"{self.layers}l", rope, "map" if self.mapped else "full"])

    @property
    def parts(self) -> set[str]:
        """What another dialect may lack."""
        found = {name for name in FLAGS[:5] if getattr(self, name)}
        found |= {"layers"} if self.layers > 1 else set()
        found |= {"tap_count"} if len(self.taps or (0, 0, 0)) != 3 else set()
        found |= {"target_hidden_size"} if self.target_width != WIDTH else set()
        found |= {"attention_bias", "mlp_bias"} if self.bias else set()
        return found | ({"fc_bias"} if self.fc_bias else set()) | ({"embed_tokens"} if self.own_embedding else set())


FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "qk_norm", "own_embedding", "own_head")


def tensors_of(spec: Spec) -> dict[str, tuple[str, np.ndarray]]:
    """The checkpoint's tensors under the names of its dialect, float32."""
    rng = np.random.default_rng(spec.seed + 1000)
    result: dict[str, tuple[str, np.ndarray]] = {}
    taps = len(spec.taps or (0, 0, 0))

    def put(name: str, *shape: int, norm: bool = False) -> None:
        values = rng.standard_normal(shape) * (0.3 if norm else 0.25) + (1.0 if norm else 0.0)
        result[name] = ("F32", values.astype(np.float32))

    put("fc.weight", WIDTH, taps * spec.target_width)
    if spec.fc_bias:
        put("fc.bias", WIDTH)
    put("norm.weight", WIDTH, norm=True)
    if spec.norm_before_fc:
        put("input_norm.weight", taps * spec.target_width, norm=True)
    if spec.fc_norm:
        for tap in range(taps):
            put(f"fc_norm.{tap}.weight", spec.target_width, norm=True)
    for layer in range(spec.layers):
        one_layer = {"specforge": "midlayer", "tensorrt-llm": "midlayer"}
        prefix = one_layer.get(spec.dialect, "layers.0") if spec.layers == 1 else f"layers.{layer}"
        if layer == 0:
            put(f"{prefix}.hidden_norm.weight", WIDTH, norm=True)
            put(f"{prefix}.input_layernorm.weight", WIDTH, norm=True)
        else:
            name = "hidden_norm" if spec.dialect == "tensorrt-llm" else "input_layernorm"
            put(f"{prefix}.{name}.weight", WIDTH, norm=True)
        put(f"{prefix}.post_attention_layernorm.weight", WIDTH, norm=True)
        reads = WIDTH if layer else 2 * WIDTH
        for part, rows, columns in (
            ("self_attn.q_proj", HEADS * SIZE, reads),
            ("self_attn.k_proj", KV_HEADS * SIZE, reads),
            ("self_attn.v_proj", KV_HEADS * SIZE, reads),
            ("self_attn.o_proj", WIDTH, HEADS * SIZE),
            ("mlp.gate_proj", FFN, WIDTH),
            ("mlp.up_proj", FFN, WIDTH),
            ("mlp.down_proj", WIDTH, FFN),
        ):
            put(f"{prefix}.{part}.weight", rows, columns)
            if spec.bias:
                put(f"{prefix}.{part}.bias", rows)
        if spec.qk_norm:
            put(f"{prefix}.self_attn.q_norm.weight", SIZE, norm=True)
            put(f"{prefix}.self_attn.k_norm.weight", SIZE, norm=True)
    draft = DRAFT_VOCAB if spec.mapped else VOCAB
    if spec.own_head:
        put("lm_head.weight", draft, WIDTH)
    if spec.own_embedding:
        put("embed_tokens.weight", VOCAB, WIDTH)
    if spec.mapped or spec.identity:
        kept = np.sort(rng.choice(VOCAB, draft, replace=False))
        integer = np.int32 if spec.dialect == "tensorrt-llm" else np.int64
        result["d2t"] = ("I32" if integer is np.int32 else "I64", (kept - np.arange(draft)).astype(integer))
        if spec.dialect in ("specforge", "speculators"):
            flags = np.zeros(VOCAB, dtype=bool)
            flags[kept] = True
            result["t2d"] = ("BOOL", flags)
    return result


def config_of(spec: Spec) -> dict[str, Any]:
    """config.json as the dialect's trainer writes it."""
    layer: dict[str, Any] = {
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": SIZE,
        "num_hidden_layers": spec.layers,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "attention_bias": spec.bias,
        "mlp_bias": spec.bias,
    }
    if spec.theta is not None:
        layer["rope_theta"] = spec.theta
    if spec.scaling is not None:
        layer["rope_scaling"] = spec.scaling
    draft = {"draft_vocab_size": DRAFT_VOCAB if spec.mapped else VOCAB, "torch_dtype": "float32"}
    if spec.dialect == "speculators":
        ids = [] if spec.taps is None else [tap + 1 for tap in spec.taps]
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            **draft,
            "norm_before_residual": spec.norm_before_residual,
            "norm_before_fc": spec.norm_before_fc,
            "fc_norm": spec.fc_norm,
            "norm_output": spec.norm_output,
            "eagle_aux_hidden_state_layer_ids": ids or None,
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/target"}},
            "transformer_layer_config": layer,
        }
    eagle: dict[str, Any] = {} if spec.taps is None else {"eagle_aux_hidden_state_layer_ids": list(spec.taps)}
    config = {**layer, **draft}
    if spec.target_width != WIDTH:
        config["target_hidden_size"] = spec.target_width
    if spec.fc_norm:
        config["fc_norm"] = True
    if spec.norm_output:
        config["norm_output"] = True
    if spec.dialect == "modelopt":
        eagle |= {
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "next_layer_regular": True,
        }
    if spec.dialect == "tensorrt-llm":
        eagle |= {"norm_before_fc": True} if spec.norm_before_fc else {}
        config["bias"] = spec.fc_bias
        config["architectures"] = ["EAGLE3LlamaForCausalLM"]
    else:
        config["architectures"] = ["LlamaForCausalLM" if spec.plain_llama else "LlamaForCausalLMEagle3"]
    return {**config, **({"eagle_config": eagle} if eagle else {})}


def write(folder: Path, spec: Spec, *, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
    """Write the checkpoint; ``config`` and ``tensors`` (dots as double underscores, None removes) change it."""
    folder.mkdir(parents=True)
    values = tensors_of(spec)
    for key, value in tensors.items():
        name = key.replace("__", ".")
        values.pop(name, None)
        if value is not None:
            values[name] = value
    write_safetensors(folder / "model.safetensors", values)
    (folder / "config.json").write_text(json.dumps({**config_of(spec), **(config or {})}))
    return folder


def specs() -> list[Spec]:
    """Dialect × taps × flags × map × rotation × own or shared embedding and head."""
    found: list[dict[str, Any]] = []
    ropes = itertools.cycle([(500000.0, LLAMA3), (10000.0, None), (None, None), (10000.0, YARN_FULL), (1e6, LINEAR)])
    taps = itertools.cycle([(1, 5, 8), (0, 3, 11), None])
    for fc_norm, norm_output, own, mapped in itertools.product((False, True), repeat=4):
        wide = OTHER_WIDTH if own and norm_output else WIDTH
        found.append(
            {
                "dialect": "specforge",
                "fc_norm": fc_norm,
                "norm_output": norm_output,
                "own_embedding": own,
                "mapped": mapped,
                "identity": not mapped and fc_norm,
                "target_width": wide,
                "plain_llama": mapped and not own,
            }
        )
    norms = (None, "fc_norm", "norm_before_fc")
    for before, norm, norm_output in itertools.product((False, True), norms, (False, True)):
        found.append(
            {
                "dialect": "speculators",
                "norm_before_residual": before,
                **({norm: True} if norm else {}),
                "norm_output": norm_output,
                "qk_norm": before and norm is None,
                "layers": 2 if norm == "fc_norm" and before else 1,
                "own_embedding": norm_output,
                "mapped": not (before and norm_output),
                "bias": norm == "norm_before_fc" and before,
            }
        )
    for layers, mapped, own_head in ((1, True, True), (2, True, True), (1, False, True), (1, False, False)) * 2:
        found.append({"dialect": "modelopt", "layers": layers, "mapped": mapped, "own_head": own_head})
    for layers, norm, norm_output in itertools.product((1, 2), (None, "fc_norm", "norm_before_fc"), (False, True)):
        found.append(
            {
                "dialect": "tensorrt-llm",
                "layers": layers,
                **({norm: True} if norm else {}),
                "norm_output": norm_output,
                "mapped": norm != "fc_norm",
                "own_head": norm != "fc_norm" or norm_output,
                "bias": layers == 2 and norm_output,
                "fc_bias": layers == 2 and norm is None,
                "target_width": OTHER_WIDTH if norm == "norm_before_fc" else WIDTH,
                "own_embedding": norm == "norm_before_fc",
            }
        )
    result = []
    for seed, settings in enumerate(found):
        theta, scaling = next(ropes)
        read = next(taps)
        if settings["dialect"] == "modelopt" and seed % 4 == 1:
            read = (2, 7)
        result.append(Spec(seed=seed, theta=theta, scaling=scaling, taps=read, **settings))
    return result

"""Tiny checkpoints in ModelOpt's export layout, and the logits that they mean (transformers, float32)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.builder.reference_ops import E2M1, E4M3, e4m3, fake_nvfp4
from tests.support.tiny import write_safetensors
from trtforge.formats.table import format_row
from trtforge.ground.safetensors_header import read_headers

_NUMPY = {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E4M3": E4M3,
}


def read_tensors(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of a small checkpoint."""
    tensors = {}
    for name, info in read_headers(directory).items():
        data = (directory / info.file).read_bytes()[info.offset : info.offset + info.nbytes]
        tensors[name] = np.frombuffer(data, dtype=_NUMPY[info.dtype]).reshape(info.shape)
    return tensors


def _pack_nibbles(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    packed: np.ndarray = (low.astype(np.uint8) & 0xF) | (high.astype(np.uint8) << 4)
    return packed


class Quantizer:
    """Quantizes every layer's linears of a tiny checkpoint in place; remembers what each means."""

    def __init__(
        self, directory: Path, fmt: str, *, group: int = 32, kv_fp8: bool = False, scale_type: str = "BF16"
    ) -> None:
        self.directory, self.format, self.group = directory, fmt, group
        self.rng = np.random.default_rng(1)
        self.scale_type = scale_type
        self.meaning: dict[str, np.ndarray] = {}
        self.activations: dict[str, Any] = {}
        self.kv_scales: dict[str, float] = {}
        tensors: dict[str, tuple[str, np.ndarray]] = {}
        names = {v: k for k, v in _NUMPY.items()}
        for name, array in read_tensors(directory).items():
            module = name.removesuffix(".weight")
            if fmt != "none" and name.startswith("model.layers.") and name.endswith("_proj.weight"):
                tensors |= getattr(self, f"_{fmt}")(module, array.astype(np.float32))
            else:
                tensors[name] = (names[array.dtype.type], array)
            if kv_fp8 and name.endswith((".k_proj.weight", ".v_proj.weight", ".qkv_proj.weight")):
                parent, own = module.rsplit(".", 1)
                for part in own.removesuffix("_proj").removeprefix("q"):
                    scale = float(np.float32(0.01 + 0.01 * self.rng.random()))
                    key = f"{parent}.{part}_proj.{part}_scale"
                    self.kv_scales[key] = scale
                    tensors[key] = ("F32", np.array(scale, dtype=np.float32))
        write_safetensors(directory / "model.safetensors", tensors)
        algorithm = format_row(fmt).algorithm
        quantization = {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": "FP8" if kv_fp8 else None,
            "group_size": group if fmt in ("int4_awq", "w4a8_awq") else None,
            "exclude_modules": ["lm_head"],
        }
        (directory / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))

    def _input_amax(self, module: str) -> float:
        # Linears with one input share its range, as ModelOpt's export makes them.
        parent, name = module.rsplit(".", 1)
        inputs = {"q_proj": "x", "k_proj": "x", "v_proj": "x", "gate_proj": "y", "up_proj": "y"}
        shared = parent + inputs.get(name, name)
        rng = np.random.default_rng(sum(map(ord, shared)))
        return float(3 + rng.random())

    def _fp8(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        scale = np.float32(np.abs(weight).max() / 448)
        input_scale = np.float32(self._input_amax(module) / 448)
        stored = (weight / scale).astype(E4M3)
        self.meaning[f"{module}.weight"] = stored.astype(np.float32) * scale
        self.activations[module] = lambda x: e4m3(x / input_scale) * input_scale
        return {
            f"{module}.weight": ("F8_E4M3", stored),
            f"{module}.weight_scale": ("F32", np.array(scale)),
            f"{module}.input_scale": ("F32", np.array(input_scale)),
        }

    def _fp8_rowwise(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        scale = (np.abs(weight).max(axis=1) / np.float32(448)).astype(np.float32)
        stored = (weight / scale[:, None]).astype(E4M3)
        self.meaning[f"{module}.weight"] = stored.astype(np.float32) * scale[:, None]

        def rounded(x: np.ndarray) -> np.ndarray:
            own = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(448), np.float32(2.0**-126))
            return e4m3(x / own) * own

        self.activations[module] = rounded
        return {f"{module}.weight": ("F8_E4M3", stored), f"{module}.weight_scale": ("F32", scale)}

    def _w4a8_awq(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        tensors = self._int4_awq(module, weight)
        outer = np.float32(np.abs(weight).max() / 448)
        self.meaning[f"{module}.weight"] = e4m3(self.meaning[f"{module}.weight"] / outer) * outer
        input_scale = np.float32(self._input_amax(module) / 448)
        scaled = self.activations.get(module, lambda x: x)
        self.activations[module] = lambda x: e4m3(scaled(x) / input_scale) * input_scale
        return tensors | {
            f"{module}.weight_scale_2": ("F32", np.array(outer)),
            f"{module}.input_scale": ("F32", np.array(input_scale)),
        }

    def _int8_sq(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        # each linear has factors of its own, those with one input too
        rng = np.random.default_rng(sum(map(ord, module)))
        factors = (0.5 + rng.random(weight.shape[1], dtype=np.float32)).astype(ml_dtypes.bfloat16)
        input_scale = np.float32(self._input_amax(module) / 127)
        self.activations[module] = lambda x: (
            np.clip(np.rint(x * factors.astype(np.float32) / input_scale), -128, 127).astype(np.float32) * input_scale
        )
        tensors = self._int8_wo(module, weight)
        return tensors | {
            f"{module}.input_scale": ("F32", np.array(input_scale)),
            f"{module}.pre_quant_scale": ("BF16", factors),
        }

    def _int8_wo(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        scale = (np.abs(weight).max(axis=1) / np.float32(127)).astype(np.float32)
        stored = np.clip(np.rint(weight / scale[:, None]), -128, 127).astype(np.int8)
        self.meaning[f"{module}.weight"] = stored.astype(np.float32) * scale[:, None]
        return {f"{module}.weight": ("I8", stored), f"{module}.weight_scale": ("F32", scale)}

    def _w4a16_nvfp4(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        tensors = self._nvfp4(module, weight)
        del self.activations[module], tensors[f"{module}.input_scale"]
        return tensors

    def _nvfp4_awq(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        tensors = self._nvfp4(module, weight)
        if module.endswith("o_proj"):  # the others' factors are folded into what comes before them
            factors = (0.5 + self.rng.random(weight.shape[1], dtype=np.float32)).astype(ml_dtypes.bfloat16)
            rounded = self.activations[module]
            self.activations[module] = lambda x: rounded(x * factors.astype(np.float32))
            tensors[f"{module}.pre_quant_scale"] = ("BF16", factors)
        return tensors

    def _nvfp4(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        rows, columns = weight.shape
        outer = np.float32(np.abs(weight).max() / (6 * 448))
        blocks = weight.reshape(rows, columns // 16, 16)
        scales = (np.abs(blocks).max(axis=2) / 6 / outer).astype(E4M3)
        factor = scales.astype(np.float32) * outer
        values = np.clip(blocks / factor[:, :, None], -6, 6).astype(E2M1)
        self.meaning[f"{module}.weight"] = (values.astype(np.float32) * factor[:, :, None]).reshape(rows, columns)
        nibbles = values.reshape(rows, columns).view(np.uint8)
        input_scale = np.float32(self._input_amax(module) / (6 * 448))
        self.activations[module] = lambda x: fake_nvfp4(x, float(input_scale))
        return {
            f"{module}.weight": ("U8", _pack_nibbles(nibbles[:, 0::2], nibbles[:, 1::2])),
            f"{module}.weight_scale": ("F8_E4M3", scales),
            f"{module}.weight_scale_2": ("F32", np.array(outer)),
            f"{module}.input_scale": ("F32", np.array(input_scale)),
        }

    def _int4_awq(self, module: str, weight: np.ndarray) -> dict[str, tuple[str, np.ndarray]]:
        rows, columns = weight.shape
        blocks = weight.reshape(rows, columns // self.group, self.group)
        scales = (np.abs(blocks).max(axis=2) / 7).astype(_NUMPY[self.scale_type])
        factor = scales.astype(np.float32)[:, :, None]
        values = np.clip(np.rint(blocks / factor), -8, 7).astype(np.int8)
        self.meaning[f"{module}.weight"] = (values * factor).reshape(rows, columns)
        values = values.reshape(rows, columns)
        tensors = {
            f"{module}.weight": ("U8", _pack_nibbles(values[0::2], values[1::2])),
            f"{module}.weight_scale": (self.scale_type, scales),
        }
        if module.endswith(("o_proj", "down_proj")):  # the others are folded into the norm before them
            pre = (0.5 + self.rng.random(columns, dtype=np.float32)).astype(ml_dtypes.bfloat16)
            tensors[f"{module}.pre_quant_scale"] = ("BF16", pre)
            self.activations[module] = lambda x: x * pre.astype(np.float32)
        return tensors


def expected_logits(
    directory: Path, sequences: list[list[int]], quantized: Quantizer | None = None
) -> list[np.ndarray]:
    """Logits float32 [tokens, V] of each sequence by transformers, weights and activations as the format means them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    meaning = dict(quantized.meaning) if quantized is not None else {}
    state = {}
    for name, array in read_tensors(directory).items():
        if name.endswith(("_scale", "_scale_2")):
            continue
        state[name] = torch.from_numpy(np.array(meaning.get(name, array), dtype=np.float32))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    for name, module in model.named_modules():
        if quantized is not None and name in quantized.activations:
            function = quantized.activations[name]
            module.register_forward_pre_hook(
                lambda _, inputs, function=function: (torch.from_numpy(function(inputs[0].numpy())),)
            )
    with torch.inference_mode():
        return [model(torch.tensor([tokens])).logits[0].numpy() for tokens in sequences]

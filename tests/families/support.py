"""Checkpoints of every row of the decoder table, and how far from transformers a computation of them may be."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.builder.quantized_tiny import Quantizer, expected_logits
from tests.support.decoder_models import variants, write_decoder
from trtforge.tables.decoders import decoders

ROWS = tuple(decoders())
VARIANTS = tuple((name, kind) for name, row in decoders().items() for kind in variants(row))
QUANTIZED = ("fp8", "nvfp4", "int4_awq")
#: layouts, and rows that differ in what is beside the weight: tried on two classes, of plain and of fused projections
LAYOUTS = ("fp8_rowwise", "int8_sq", "int8_wo", "nvfp4_awq", "w4a16_nvfp4", "w4a8_awq")
PAIRS = tuple((name, fmt) for name in ROWS for fmt in QUANTIZED) + tuple(
    (name, fmt) for name in ("LlamaForCausalLM", "Phi3ForCausalLM") for fmt in LAYOUTS
)
#: the variant that formats are tried on: it has everything that the row can have
FULL = "everything"
#: largest difference of a logit in float32, where nothing is rounded but by float32's own arithmetic
EXACT = 1e-3
#: and relative to the largest logit, where a value that two float32 computations round to different codes moves those
#: behind it in its prompt; the middle of all prompts says that few values do
LARGEST = {"fp8": 0.1, "nvfp4": 0.2, "int4_awq": 2e-3, "fp8_rowwise": 0.1, "int8_sq": 0.1, "int8_wo": 2e-3}
LARGEST |= {"w4a8_awq": 0.1, "nvfp4_awq": 0.2, "w4a16_nvfp4": 2e-3}
MIDDLE = 1e-3


@functools.cache
def checkpoint(root: Path, name: str, kind: str) -> Path:
    """The variant's checkpoint below ``root``; read only."""
    return write_decoder(root / f"{name}-{kind}", name, variants(decoders()[name])[kind])


def quantized(root: Path, name: str, fmt: str, directory: Path, *, scale_type: str = "BF16") -> Quantizer:
    """The full variant in ``fmt`` in ``directory``, and what its tensors mean."""
    shutil.copytree(checkpoint(root, name, FULL), directory)
    return Quantizer(directory, fmt, scale_type=scale_type)


def assert_exact(got: Sequence[np.ndarray], directory: Path, prompts: Sequence[list[int]]) -> None:
    """Every logit float32 within :data:`EXACT` of transformers', which are of a size that this means something for."""
    for mine, wanted in zip(got, expected_logits(directory, list(prompts)), strict=True):
        assert mine.dtype == np.float32 and np.abs(wanted).max() > 1
        assert np.abs(mine - wanted).max() <= EXACT


def assert_near(
    got: Sequence[np.ndarray], directory: Path, prompts: Sequence[list[int]], quantizer: Quantizer, fmt: str
) -> None:
    """The logits within the format's noise of what transformers computes with the checkpoint's meaning."""
    wanted = np.concatenate(expected_logits(directory, list(prompts), quantizer))
    error = np.abs(np.concatenate(got) - wanted) / np.abs(wanted).max()
    assert error.max() < LARGEST[fmt] and np.median(error) < MIDDLE

"""Models of the planner's tests: sizes from the configurations that the reference figures carry, and bare ones."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from builder.planner.model import from_config
from trtforge.models.record import Model

REFERENCE = Path(__file__).with_name("aiconfigurator_memory.json")


@cache
def reference() -> dict[str, Any]:
    """The stored figures of aiconfigurator."""
    document: dict[str, Any] = json.loads(REFERENCE.read_text(encoding="utf-8"))
    return document


def known(name: str) -> Model:
    """A model of the reference figures by its Hub name."""
    return from_config(reference()["models"][name], name)


def llama_70b() -> Model:
    """Llama 3.1 70B: 80 layers, 8 KV heads of 128."""
    return known("meta-llama/Meta-Llama-3.1-70B")


def bare(**changes: Any) -> dict[str, Any]:
    """A small Llama's config.json with changes."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **changes,
    }

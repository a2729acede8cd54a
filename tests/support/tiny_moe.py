"""Tiny mixtures of experts with random weights, written by transformers."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.tiny import write_tiny_llama

EXPERTS, CHOSEN, LAYERS = 8, 2, 2


def write_tiny_moe(directory: Path, kind: str = "qwen3_moe") -> Path:
    """A checkpoint of two layers with eight experts each, two of them a token; ``kind`` is transformers' model type."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 1024,
        "num_experts_per_tok": CHOSEN,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    sizes |= {"num_experts": EXPERTS, "moe_intermediate_size": 64} if "qwen" in kind else {"num_local_experts": EXPERTS}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).to(torch.bfloat16)
    tokenizer = write_tiny_llama(directory / "tokenizer")
    model.save_pretrained(directory / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, directory / "model" / name)
    return directory / "model"

"""Small checkpoints with every file that a real one has, written in milliseconds and without torch.

The weights are random but scaled so that logits spread (a flat distribution would make top-1
comparisons meaningless); the tokenizer is a real byte-level BPE trained on CPython's own help
topics. The same arguments give the same bytes.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 2

_SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def to_bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 → the uint16 bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str] | None = None
) -> None:
    """Write ``{name: (safetensors dtype, array of that item size)}``, in name order, header padded to 8 bytes."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        dtype, array = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(tensors):
            file.write(np.ascontiguousarray(tensors[name][1]).tobytes())


@functools.cache
def _tokenizer_json(vocab: int) -> str:
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = [topics[name] for name in sorted(topics)][:24]
    tokenizer.train_from_iterator(text, trainer)
    return str(tokenizer.to_str(pretty=True))


def _rope_parameters(rope: dict[str, Any] | None) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, **(rope or {})}


def write_tiny_llama(
    directory: Path,
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int | None = 64,
    ffn: int = 128,
    vocab: int = 512,
    tie: bool = True,
    dtype: str = "bfloat16",
    seed: int = 0,
    rope: dict[str, Any] | None = None,
    bias: bool = False,
    max_positions: int = 1024,
    architecture: str = "LlamaForCausalLM",
    sliding_window: int | None = None,
    max_window_layers: int = 0,
    shards: int = 1,
) -> Path:
    """Write a Llama-family checkpoint of a few hundred kB into ``directory`` and return it.

    Args:
        head_size: size of a head; ``None`` means ``width // heads``. The default is PagedAttention's smallest.
        vocab: rows of the embedding, at least 259 (bytes and special tokens).
        rope: entries of ``rope_parameters`` beside ``rope_theta`` 10000, for example
            ``{"rope_type": "linear", "factor": 2.0}``.
        bias: biases on every projection (Llama). Qwen2 has them on q, k and v whatever is asked.
        architecture: ``LlamaForCausalLM``, ``MistralForCausalLM``, ``Qwen2ForCausalLM`` or ``Qwen3ForCausalLM``.
        sliding_window: of Mistral's layers, or of Qwen's from ``max_window_layers`` on.
        shards: number of safetensors files; more than one adds the index.
    """
    directory.mkdir(parents=True, exist_ok=True)
    head = head_size or width // heads
    kind = architecture.removesuffix("ForCausalLM").lower()
    rng = np.random.default_rng(seed)
    tensors: dict[str, tuple[str, np.ndarray]] = {}

    def put(name: str, values: np.ndarray) -> None:
        array = to_bfloat16_bits(values) if dtype == "bfloat16" else values.astype(dtype)
        tensors[name] = (_SAFETENSORS_NAMES[dtype], array)

    def linear(name: str, rows: int, columns: int) -> None:
        put(f"{name}.weight", rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns)))
        if bias or (kind == "qwen2" and name.endswith(("q_proj", "k_proj", "v_proj"))):
            put(f"{name}.bias", 0.1 * rng.standard_normal(rows, dtype=np.float32))

    def norm(name: str, size: int = width) -> None:
        put(f"{name}.weight", 1 + 0.1 * rng.standard_normal(size, dtype=np.float32))

    put("model.embed_tokens.weight", 0.3 * rng.standard_normal((vocab, width), dtype=np.float32))
    for index in range(layers):
        prefix = f"model.layers.{index}"
        norm(f"{prefix}.input_layernorm")
        linear(f"{prefix}.self_attn.q_proj", heads * head, width)
        linear(f"{prefix}.self_attn.k_proj", kv_heads * head, width)
        linear(f"{prefix}.self_attn.v_proj", kv_heads * head, width)
        linear(f"{prefix}.self_attn.o_proj", width, heads * head)
        if kind == "qwen3":
            norm(f"{prefix}.self_attn.q_norm", head)
            norm(f"{prefix}.self_attn.k_norm", head)
        norm(f"{prefix}.post_attention_layernorm")
        linear(f"{prefix}.mlp.gate_proj", ffn, width)
        linear(f"{prefix}.mlp.up_proj", ffn, width)
        linear(f"{prefix}.mlp.down_proj", width, ffn)
    norm("model.norm")
    if not tie:
        put("lm_head.weight", 0.3 * rng.standard_normal((vocab, width), dtype=np.float32))

    config: dict[str, Any] = {
        "architectures": [architecture],
        "bos_token_id": BOS_ID,
        "dtype": dtype,
        "eos_token_id": EOS_ID,
        "head_dim": head,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": ffn,
        "max_position_embeddings": max_positions,
        "model_type": kind,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pad_token_id": None,
        "rms_norm_eps": 1e-5,
        "rope_parameters": _rope_parameters(rope),
        "tie_word_embeddings": tie,
        "use_cache": True,
        "vocab_size": vocab,
    }
    if kind == "llama":
        config["attention_bias"] = config["mlp_bias"] = bias
    else:
        config["sliding_window"] = sliding_window
    if kind.startswith("qwen"):
        config["use_sliding_window"], config["max_window_layers"] = sliding_window is not None, max_window_layers
    _write_json(directory / "config.json", config)
    _write_json(
        directory / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "do_sample": False}
    )
    write_tokenizer(directory, vocab, max_positions)
    _write_weights(directory, tensors, shards)
    return directory


def write_tokenizer(directory: Path, vocab: int, max_positions: int) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE of at most 512 tokens."""
    # A vocabulary larger than the text supports is fine: the embedding just has unused rows.
    (directory / "tokenizer.json").write_text(_tokenizer_json(min(vocab, 512)), encoding="utf-8")
    _write_json(
        directory / "tokenizer_config.json",
        {
            "add_prefix_space": False,
            "bos_token": SPECIAL_TOKENS[BOS_ID],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "eos_token": SPECIAL_TOKENS[EOS_ID],
            "model_max_length": max_positions,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": SPECIAL_TOKENS[0],
        },
    )


def _write_weights(directory: Path, tensors: dict[str, tuple[str, np.ndarray]], shards: int) -> None:
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = names[index * len(names) // shards : (index + 1) * len(names) // shards]
        write_safetensors(directory / file, {name: tensors[name] for name in part})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(array.nbytes for _, array in tensors.values())
    index_json = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index_json)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")

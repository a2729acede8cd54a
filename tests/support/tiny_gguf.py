"""GGUF files made from tiny checkpoints, the way llama.cpp's converter does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` → ``blk.3.ffn_up.weight``."""
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[module]}.{kind}"


def read_float32(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of a one-file BF16, F16 or F32 checkpoint as float32."""
    from trtforge.ground.safetensors_header import read_headers

    result = {}
    for name, info in read_headers(directory).items():
        raw = np.fromfile(directory / info.file, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        if info.dtype == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view({"F16": np.float16, "F32": np.float32}[info.dtype]).astype(np.float32)
        result[name] = values.reshape(info.shape)
    return result


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the query and key rows: the two halves of each head interleaved."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_tiny_gguf(
    path: Path,
    checkpoint: Path,
    *,
    matrix_type: str = "F32",
    pre: str = "gpt-2",
    extra: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    rope_factors: np.ndarray | None = None,
    tokenizer: bool = True,
    tensors_a_shard: int = 0,
) -> Path:
    """Write the checkpoint in ``checkpoint`` as a GGUF file; matrices in ``matrix_type``, vectors in F32.

    Args:
        extra: metadata added as it is (int, float, str or bool values).
        without: GGUF names of tensors to leave out.
        rope_factors: content of ``rope_freqs.weight``.
        tensors_a_shard: over 0, the file is written as shards of so many tensors, named after ``path``.
    """
    import gguf

    config = json.loads((checkpoint / "config.json").read_text())
    architecture = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=tensors_a_shard)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if architecture == "llama":
        writer.add_rope_dimension_count(config["head_dim"])
    else:  # Qwen's files say a head's size by these, where it is not width / heads
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if tokenizer:
        _add_tokenizer(writer, checkpoint, pre)
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in (extra or {}).items():
        adders[type(value)](key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    if architecture != "llama":
        heads = {}  # llama.cpp permutes rows for its llama alone
    kind = gguf.GGMLQuantizationType[matrix_type]
    for name, values in read_float32(checkpoint).items():
        part = name.split(".")[-2]
        rows = interleave(values, heads[part]) if part in heads else values
        if gguf_name(name) in without:
            continue
        if values.ndim == 2 and matrix_type not in ("F32", "F16"):
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(rows, kind), raw_dtype=kind)
        else:
            writer.add_tensor(
                gguf_name(name), rows.astype(np.float16) if matrix_type == "F16" and rows.ndim == 2 else rows
            )
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: Any, checkpoint: Path, pre: str) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(settings["chat_template"])

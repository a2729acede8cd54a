"""Checkpoint intake: any supported source becomes one directory of one form, or a refusal that says why.

The form: ``config.json`` (normal form), ``model.safetensors`` (or shards with index), ``generation_config.json``,
``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja`` when there is a template, and
``checkpoint.json`` (:class:`CheckpointInfo`: shape, origin and the SHA-256 of every file). The same source and
type give the same bytes. Nothing here imports torch or transformers.

| Code | Refused |
|---|---|
| TF-SRC-001 | a source of no known form |
| TF-SRC-002 | a path that does not exist |
| TF-SRC-003 | a path that leaves its folder (recipe, index, link) |
| TF-SRC-004 | a Git-LFS pointer in a file's place |
| TF-SRC-005 | a truncated or damaged safetensors file |
| TF-SRC-006 | a missing shard |
| TF-SRC-007 | an index at odds with its shards |
| TF-SRC-008 | no tokenizer |
| TF-SRC-009 | an unsupported architecture |
| TF-SRC-010 | code in the checkpoint without allow_remote_code |
| TF-SRC-011 | pickle weights |
| TF-SRC-012 | too little disk space (exit code 3) |
| TF-SRC-013 | another SHA-256 than the recipe's |
| TF-SRC-014 | a damaged or truncated GGUF file |
| TF-SRC-015 | something in a GGUF file that cannot be carried over |
| TF-SRC-016 | no such package, version or wheel |
| TF-SRC-017 | no such member, or an ambiguous one |
| TF-SRC-018 | an archive with entries that leave their folder |
| TF-SRC-019 | no network (exit code 3) |
| TF-SRC-020 | a Hub model that does not exist or is not open |
| TF-SRC-021 | a value in config.json or another JSON file |
| TF-SRC-022 | tensors that are not those of the configuration |
| TF-SRC-023 | a tokenizer that does not fit the model |
| TF-SRC-024 | a quantized format that is not supported |
| TF-SRC-025 | tied embeddings with a differing lm_head |
| TF-SRC-026 | a rotary embedding that is not supported |
| TF-SRC-027 | a tool that this machine lacks (exit code 3) |
| TF-SRC-028 | a folder without a checkpoint |
| TF-SRC-029 | values beyond the range of the type asked for |
| TF-SRC-030 | a broken archive |
| TF-SRC-031 | a file or folder that the system does not let us use |
| TF-SRC-032 | a pipe, device or folder in the place of a file |
| TF-SRC-033 | a chat template that does not compile |
| TF-SRC-050 | parts of a GGUF model are missing or do not belong together |
| TF-SRC-051 | a checkpoint that arrives quantized and is faulty |
"""

from quantize.intake.api import (
    default_cache_dir,
    fetch_checkpoint,
    fingerprint_source,
    inspect_source,
    load_info,
    not_here,
    unread_bytes,
)
from quantize.intake.info import CheckpointInfo, FileRecord

__all__ = [
    "CheckpointInfo",
    "FileRecord",
    "default_cache_dir",
    "fetch_checkpoint",
    "fingerprint_source",
    "inspect_source",
    "load_info",
    "not_here",
    "unread_bytes",
]

"""Rules on what travels beside the weights: tokenizer, chat template, rope and generation settings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from quantize.forensics.checkpoint import Checkpoint
from quantize.forensics.files import Files
from quantize.forensics.hits import Hit, rule, said
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section
from trtforge.templates.template_places import chat_templates, default_template

SECTION = Section(900, "Beside the weights")

_TOKENIZERS = ("tokenizer.model", "vocab.json", "tekken.json", "spiece.model", "tiktoken.model", "vocab.txt")
_CHAT_TOKENS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>")
#: what decides the answers beside the weights
_DECISIVE = (
    "hidden_act",
    "hidden_size",
    "head_dim",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "rms_norm_eps",
    "vocab_size",
    "sliding_window",
    "max_position_embeddings",
    "tie_word_embeddings",
)
_COUNTS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
_ROPE_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_COPY = "copy the file of the checkpoint that it was made of"


@rule("TF-K17-101", "error", "no tokenizer", thread("VL#46641"), weights=False)
def tokenizer(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Exports of weights alone leave it behind; with another one the model reads and writes the wrong words."""
    files = checkpoint.files
    if checkpoint.is_trtllm or checkpoint.bare:
        return
    if files.has("tokenizer.json"):
        if isinstance(files.json("tokenizer.json").get("model"), dict):
            return
    elif checkpoint.expected is None and any(name in files.names for name in _TOKENIZERS):
        return
    yield said(
        "tokenizer.json is missing or unreadable",
        "copy the source checkpoint's tokenizer files beside the weights",
        file="tokenizer.json",
    )


def _template(files: Files) -> str | None:
    found = default_template(chat_templates(files.text, files.json))
    return found.text if found is not None else None


@rule(
    "TF-AUD-181",
    "warning",
    "the chat template was lost",
    thread("LF#8399"),
    cases=("https://github.com/huggingface/transformers/issues/38873",),
)
def template(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Servers then refuse chats, or format them as something that the model was not trained on."""
    files, base = checkpoint.files, checkpoint.base
    if checkpoint.is_trtllm or checkpoint.bare or _template(files) is not None:
        return
    if base is not None:
        if _template(base) is not None:
            yield said(
                "there is no chat template, and the checkpoint that it was made of has one",
                _COPY,
                file="chat_template.jinja",
                severity="error",
            )
        return
    added = files.json("tokenizer.json").get("added_tokens")
    tokens = {row.get("content") for row in added if isinstance(row, dict)} if isinstance(added, list) else set()
    spoken = [token for token in _CHAT_TOKENS if token in tokens]
    name = checkpoint.shown.lower()
    if spoken and any(word in name for word in ("instruct", "chat", "-it")):
        yield said(
            f"the tokenizer has {spoken[0]}, and no file holds a chat template", _COPY, file="chat_template.jinja"
        )


@rule("TF-AUD-182", "warning", "the generation settings were lost", thread("LF!10834"), weights=False)
def generation(checkpoint: Checkpoint) -> Iterator[Hit]:
    """generation_config.json says at which tokens an answer ends; without it chats run on to the limit."""
    files, base = checkpoint.files, checkpoint.base
    if checkpoint.is_trtllm:
        return
    ends = _ends(files)
    if base is None:
        if not ends and not checkpoint.bare:
            yield said(
                "neither config.json nor generation_config.json has an eos_token_id",
                _COPY,
                file="generation_config.json",
            )
        return
    lost = _ends(base) - ends
    if lost:
        yield said(
            f"answers do not end at {', '.join(map(str, sorted(lost)))} any more, as they did in the checkpoint that "
            "it was made of",
            _COPY,
            file="generation_config.json",
            severity="error",
        )


def _ends(files: Files) -> set[int]:
    config = files.json("config.json")
    text = config.get("text_config")
    for values in (files.json("generation_config.json"), config, text if isinstance(text, dict) else {}):
        found = values.get("eos_token_id")
        ids = found if isinstance(found, list) else [found]
        kept = {item for item in ids if isinstance(item, int) and not isinstance(item, bool)}
        if kept:
            return kept
    return set()


@rule("TF-AUD-183", "error", "the rotary embedding changed", thread("TL#1676"), cases=(thread("LC#81"),), weights=False)
def rope(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A rope that is lost or renamed still loads and answers short prompts; long ones turn to garbage."""
    if checkpoint.base is None:
        return
    config, base = checkpoint.config, checkpoint.base.config
    if checkpoint.is_trtllm:
        ours = config.get("rotary_scaling")
        theirs = base.get("rope_scaling") or _scaled(base.get("rope_parameters"))
        if theirs and not ours:
            yield said(
                f"rotary_scaling is {ours}, the checkpoint that it was made of has {_short(theirs)}",
                "convert the checkpoint again",
                file="config.json",
            )
        return
    left, right = _rope(config), _rope(base)
    # what the base leaves to its class, an export may write out; a scaling of its own it may not
    keys = sorted({*right, *({"rope_type"} & left.keys())})
    wrong = [f"{key} is {left.get(key)}, not {right.get(key)}" for key in keys if left.get(key) != right.get(key)]
    if wrong:
        yield said(
            "the rope is not that of the checkpoint that it was made of: " + "; ".join(wrong),
            "copy the rope settings of its config.json",
            file="config.json",
        )


def _scaled(parameters: Any) -> Any:
    plain = not isinstance(parameters, dict) or parameters.get("rope_type", "default") == "default"
    return None if plain else parameters


def _short(value: Any) -> str:
    return str(value)[:120]


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a rope, of either spelling, in one form: numbers as floats, the default type left out."""
    sections = [section for key in ("rope_parameters", "rope_scaling") if isinstance(section := config.get(key), dict)]
    merged: dict[str, Any] = {}
    for section in reversed(sections):
        merged |= section
    if config.get("rope_theta") is not None:
        merged.setdefault("rope_theta", config["rope_theta"])
    kind = merged.get("rope_type") or merged.get("type")
    result: dict[str, Any] = {} if kind in (None, "default") else {"rope_type": {"su": "longrope"}.get(str(kind), kind)}
    for key in _ROPE_NUMBERS:
        value = merged.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**63:
            result[key] = float(value)
    return result


@rule("TF-AUD-184", "error", "config.json has two different ropes", thread("MO!917"), weights=False)
def two_ropes(checkpoint: Checkpoint) -> Iterator[Hit]:
    """transformers 5 reads rope_parameters, older readers rope_theta and rope_scaling: the same checkpoint then
    rotates in two ways.
    """
    config = checkpoint.config
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if not isinstance(new, dict) or any(isinstance(value, dict) for value in new.values()):
        return  # one spelling, or a rope for each kind of layer
    theta, stated = config.get("rope_theta"), new.get("rope_theta")
    wrong = []
    numbers = [value for value in (theta, stated) if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == 2 and numbers[0] != numbers[1]:
        wrong.append(f"rope_theta is {theta} and {stated}")
    if isinstance(old, dict):
        kinds = [section.get("rope_type") or section.get("type") for section in (new, old)]
        wrong += [f"the type is {kinds[1]} and {kinds[0]}"] if None not in kinds and kinds[0] != kinds[1] else []
        wrong += [
            f"{key} is {old[key]} and {new[key]}"
            for key in _ROPE_NUMBERS[1:]
            if key in old and key in new and old[key] != new[key]
        ]
    if wrong:
        yield said(
            "rope_scaling and rope_parameters disagree: " + "; ".join(wrong),
            "keep the spelling of the checkpoint that it was made of",
            file="config.json",
        )


@rule("TF-AUD-185", "error", "config.json is of another model", thread("LC#81"), weights=False)
def configuration(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Sizes and constants beside the weights decide every answer; an export carries them over unchanged."""
    if checkpoint.is_trtllm:
        return
    if impossible := list(_impossible(checkpoint)):
        yield said("config.json does not describe these weights: " + "; ".join(impossible), _COPY, file="config.json")
    if checkpoint.base is None:
        return
    config, base = checkpoint.config, checkpoint.base.config
    wrong = [
        f"{key} is {config[key]}, not {base[key]}"
        for key in _DECISIVE
        if key in config and key in base and config[key] != base[key]
    ]
    if wrong:
        yield said(
            "config.json differs from that of the checkpoint that it was made of: " + "; ".join(wrong),
            _COPY,
            file="config.json",
        )


def _impossible(checkpoint: Checkpoint) -> Iterator[str]:
    """Sizes and constants that no model has, or that the embedding's table contradicts."""
    config = checkpoint.config
    for key in (*_COUNTS, "rms_norm_eps"):
        value = config.get(key)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < math.inf):
            yield f"{key} is {_short(value)}"
    for module, parts in checkpoint.parts.items():
        table = parts.get("weight")
        if not module.endswith("embed_tokens") or table is None or len(table.shape) != 2:
            continue
        if checkpoint.is_quantized(module) or "word_embed_proj_dim" in config:
            continue
        rows, columns = table.shape
        width, words = config.get("hidden_size"), config.get("vocab_size")
        if isinstance(width, int) and width > 0 and width != columns:
            yield f"hidden_size is {width}, the embedding has {columns} columns"
        if isinstance(words, int) and words > rows:  # tables are padded, never cut
            yield f"vocab_size is {words}, the embedding has {rows} rows"


@rule(
    "TF-AUD-186",
    "error",
    "the tokenizer changed",
    "https://github.com/huggingface/transformers/issues/38873",
    weights=False,
)
def other_tokenizer(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Rewritten tokenizers split words in other places, or give other numbers to the same words."""
    base, files = checkpoint.base, checkpoint.files
    if base is None or not (base.has("tokenizer.json") and files.has("tokenizer.json")):
        return
    ours, theirs = (_vocabulary(one.json("tokenizer.json")) for one in (files, base))
    if ours != theirs:
        yield said(
            "the vocabulary of tokenizer.json is not that of the checkpoint that it was made of",
            _COPY,
            file="tokenizer.json",
        )


def _vocabulary(tokenizer_json: Mapping[str, Any]) -> str:
    model, added = tokenizer_json.get("model"), tokenizer_json.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    rows = (
        [(row.get("id"), row.get("content")) for row in added if isinstance(row, dict)]
        if isinstance(added, list)
        else []
    )
    items = sorted(vocabulary.items()) if isinstance(vocabulary, dict) else vocabulary
    return hashlib.sha256(repr((items, sorted(rows, key=str))).encode()).hexdigest()

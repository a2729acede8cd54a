"""What head is trained for a target, and which of the target's tokens it may draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtforge.drafting.description import Eagle3, Rope
from trtforge.drafting.pairing import Target
from trtforge.drafting.rope import read_rope
from trtforge.ground.errors import ForgeError

#: a draft vocabulary is padded to a multiple of this, which matrix units like
_MULTIPLE = 64


def plan_head(checkpoint: Path, draft_vocab: int) -> Eagle3:
    """One decoder layer of the target's own sizes over three of its states, with a vocabulary of its own.

    Biases, norms of queries and keys, and a stretched rotation are not taken over: not every dialect has the first two,
    and a stretched rotation would be trained on short texts only. The rotation's base is the target's.

    Args:
        checkpoint: the target's folder.
        draft_vocab: tokens that the head may draft; at most the target's vocabulary.

    Raises:
        ForgeError: ``TF-DRF-029`` the target's config.json lacks a size; ``TF-DRF-030`` no such draft vocabulary.
    """
    target = Target.open(checkpoint)
    sizes = {name: _size(target, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    vocabulary, width, heads = _size(target, "vocab_size"), sizes["hidden_size"], sizes["num_attention_heads"]
    if not _MULTIPLE <= draft_vocab <= vocabulary or (draft_vocab % _MULTIPLE and draft_vocab != vocabulary):
        raise ForgeError(
            "TF-DRF-030",
            f"a draft vocabulary of {draft_vocab} tokens does not fit a target of {vocabulary}",
            asked=f"--draft-vocab {draft_vocab}",
            numbers={"draft_vocab": draft_vocab, "vocabulary": vocabulary, "multiple_of": _MULTIPLE},
            why=f"A head drafts some of the target's tokens; matrix units want multiples of {_MULTIPLE}.",
            remedies=[f"--draft-vocab {max(_MULTIPLE, min(vocabulary, draft_vocab) // _MULTIPLE * _MULTIPLE)}"],
        )
    rope, _ = read_rope(target.text)
    layers = sizes["num_hidden_layers"]
    head = Eagle3(
        hidden_size=width,
        target_hidden_size=width,
        layers=1,
        heads=heads,
        kv_heads=target.size("num_key_value_heads") or heads,
        head_size=target.size("head_dim") or width // heads,
        intermediate_size=_size(target, "intermediate_size"),
        vocab_size=vocabulary,
        draft_vocab_size=draft_vocab,
        eps=float(target.text.get("rms_norm_eps", 1e-6)),
        act=str(target.text.get("hidden_act", "silu")),
        taps=None,
        tap_count=3,
        rope=Rope(theta=float(rope.theta)),
        mapped=draft_vocab < vocabulary,
        max_positions=target.size("max_position_embeddings"),
    )
    taps = head.default_taps(layers)
    if len(set(taps)) != len(taps) or taps[-1] >= layers or list(taps) != sorted(taps):
        raise ForgeError(
            "TF-DRF-029",
            f"a target of {layers} layers has no three states to read",
            asked=str(checkpoint),
            numbers={"layers": layers, "taps": list(taps)},
            why="An EAGLE-3 head reads an early, a middle and a late layer's output.",
            remedies=["a target of at least seven layers"],
        )
    return _with_taps(head, taps)


def _with_taps(head: Eagle3, taps: tuple[int, ...]) -> Eagle3:
    from dataclasses import replace

    return replace(head, taps=taps)


def _size(target: Target, name: str) -> int:
    value = target.size(name)
    if value is None or value < 1:
        raise ForgeError(
            "TF-DRF-029",
            f"config.json gives no {name}, so no head can be planned for the target",
            asked=str(target.folder / "config.json"),
            remedies=["a Llama-class checkpoint, as intake writes it"],
        )
    return value


def choose_tokens(counts: Sequence[int], size: int, always: Sequence[int] = ()) -> list[int]:
    """The ``size`` most frequent tokens, ascending; of equally frequent ones the smaller ids.

    Args:
        counts: how often each token of the target's vocabulary was written.
        always: tokens that are taken however rare they are: those that end an answer.
    """
    first = set(always)
    order = sorted(range(len(counts)), key=lambda token: (token not in first, -counts[token], token))
    return sorted(order[:size])


def offsets(tokens: Sequence[int]) -> list[int]:
    """``d2t``: what is added to a draft token to have the target's."""
    return [token - draft for draft, token in enumerate(tokens)]


def model_options(head: Eagle3) -> Mapping[str, Any]:
    """``eagle_architecture_config`` of ModelOpt for ``head``."""
    return {
        "hidden_act": head.act,
        "num_hidden_layers": head.layers,
        "intermediate_size": head.intermediate_size,
        "num_attention_heads": head.heads,
        "num_key_value_heads": head.kv_heads,
        "head_dim": head.head_size,
        "rms_norm_eps": head.eps,
        "rope_theta": head.rope.theta,
        "rope_scaling": {"rope_type": "default", "rope_theta": head.rope.theta},
        "has_lm_head": True,
        "draft_vocab_size": head.draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(head.taps or ()),
        "use_aux_hidden_state": True,
        "use_last_layernorm": True,
        "initializer_range": 0.02,
    }

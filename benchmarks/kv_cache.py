"""What an FP8 KV cache costs a model, by where its scales sit: a layer, a head, a channel, and with parts left out.

    python -m benchmarks.kv_cache CHECKPOINT [--tokens 4096] [--window 512] [--calibration 4] [--json]

CHECKPOINT is an unquantized folder that intake wrote (``checkpoint.json`` in the store). Weights and activations stay
float32, so that every figure is the cache's alone. All ways of rounding see the same windows of
``builtin:python-topics``, each window scored after its first token; increases of perplexity are paired with the
unrounded run, the KL divergence is of its distribution to theirs. Emulated: no GPU took part.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    Round = Callable[[torch.Tensor, int], torch.Tensor]

CORPUS = "builtin:python-topics"
_NAME = "trtforge_kv_benchmark"
#: axes of [batch, heads, positions, channels] that share one scale
_SHARED = {"layer": (0, 1, 2, 3), "head": (0, 2, 3), "channel": (0, 2)}


@dataclass(frozen=True)
class Way:
    """How keys and values enter the cache: which of them are rounded, in which layers, with scales of what."""

    title: str
    scales: str | None = "layer"
    keys: bool = True
    values: bool = True
    spared: frozenset[int] = frozenset()
    less_bias: bool = False


@dataclass
class Cache:
    """The attention's stand-in for a cache: rounds as ``way`` says, or gathers the largest magnitudes.

    Attributes:
        offsets: by layer the rotated key biases [heads, positions, channels] of the window.
        largest: by layer, scales' place and part ("k", "v") the calibrated maxima.
    """

    way: Way | None = None
    gathers: bool = False
    offsets: dict[int, torch.Tensor] = field(default_factory=dict)
    largest: dict[tuple[int, str, str], torch.Tensor] = field(default_factory=dict)

    def keep(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [batch, heads, positions, channels] as the cache returns them."""
        import torch

        if self.gathers:
            for part, tensor in (("k", key), ("v", value)):
                for place, axes in _SHARED.items():
                    found = tensor.abs().amax(axes, keepdim=True)
                    known = self.largest.get((layer, place, part))
                    self.largest[layer, place, part] = found if known is None else torch.maximum(known, found)
        way = self.way
        if way is None or layer in way.spared:
            return key, value
        if way.keys:
            offset = self.offsets[layer] if way.less_bias else torch.zeros(())
            key = self._rounded(layer, "k", key - offset, way) + offset
        return key, self._rounded(layer, "v", value, way) if way.values else value

    def _rounded(self, layer: int, part: str, tensor: torch.Tensor, way: Way) -> torch.Tensor:
        from trtforge.formats.elements import E4M3_MAX, fake_quant_e4m3

        scale = 1.0 if way.scales is None else self.largest[layer, way.scales, part] / E4M3_MAX
        return fake_quant_e4m3(tensor, scale)


def attach(model: Any, cache: Cache) -> None:
    """Have every attention layer of a Hugging Face model ask ``cache`` for its keys and values."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attention(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        key, value = cache.keep(module.layer_idx, key, value)
        return sdpa_attention_forward(module, query, key, value, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS.register(_NAME, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def key_biases(model: Any) -> dict[int, torch.Tensor]:
    """By layer the bias of its keys [heads, channels]; empty for a model without."""
    found: dict[int, torch.Tensor] = {}
    for layer, block in enumerate(model.model.layers):
        bias = block.self_attn.k_proj.bias
        if bias is not None:
            found[layer] = bias.detach().view(-1, block.self_attn.head_dim)
    return found


def rotated(model: Any, biases: Mapping[int, torch.Tensor], positions: int) -> dict[int, torch.Tensor]:
    """The biases [heads, channels] as they stand in the keys of ``positions`` tokens [heads, positions, channels]."""
    import torch
    from transformers.models.llama.modeling_llama import rotate_half

    steps = torch.arange(positions)[None]
    cosine, sine = model.model.rotary_emb(torch.zeros(1, dtype=torch.float32), steps)
    return {
        layer: bias[:, None] * cosine[0] + rotate_half(bias[:, None].expand(-1, positions, -1)) * sine[0]
        for layer, bias in biases.items()
    }


def ways(biases: Mapping[int, torch.Tensor]) -> list[Way]:
    """What is compared; layers are spared by their largest key bias: two, four, and all that preflight calls large."""
    from trtforge.models.shape import LARGE_KEY_BIAS

    worst = sorted(biases, key=lambda layer: -float(biases[layer].abs().max()))
    found = [
        Way("a scale a layer (as stored)"),
        Way("a scale a head", "head"),
        Way("a scale a channel", "channel"),
        Way("no scales (fp8_cast)", None),
        Way("keys only", values=False),
        Way("values only", keys=False),
    ]
    large = sum(float(bias.abs().max()) >= LARGE_KEY_BIAS for bias in biases.values())
    for count in sorted({2, 4, large} - {0}):
        spared = worst[:count]
        if len(spared) == count:
            named = ", ".join(map(str, sorted(spared)))
            found.append(Way(f"all but layers {named}", spared=frozenset(spared)))
    if biases:
        found.append(Way("keys less their bias", less_bias=True))
    return found


def measure(checkpoint: Path, tokens: int, window: int, calibration: int) -> dict[str, Any]:
    """Figures of every way over ``tokens`` tokens in windows, after ``calibration`` windows of another slice."""
    import torch

    from evals.perplexity import Scores, tokens_digest
    from evals.statistics import paired_increase
    from quantize.corpora import calibration_batch, load_corpus, take_tokens
    from quantize.reference import load_reference_model

    reference = load_reference_model(checkpoint)
    biases = key_biases(reference.model)
    cache = Cache()
    attach(reference.model, cache)
    compared = ways(biases)
    cache.gathers = True
    for row in calibration_batch(
        load_corpus(CORPUS, checkpoint, "calibration"),
        reference.tokenizer,
        samples=calibration,
        sequence_length=window,
        seed=0,
        max_positions=reference.model.config.max_position_embeddings,
    ):
        reference.logits(torch.as_tensor(row))
    cache.gathers = False
    cache.offsets = rotated(reference.model, biases, window)
    ids = take_tokens(load_corpus(CORPUS, checkpoint, "evaluation"), reference.tokenizer, tokens // window * window)
    losses: dict[str | None, list[np.ndarray]] = {}
    divergences: dict[str, list[np.ndarray]] = {}
    for number, begin in enumerate(range(0, len(ids), window)):
        row = torch.as_tensor(ids[begin : begin + window])
        cache.way = None
        plain = torch.log_softmax(reference.logits(row)[:-1], -1)
        losses.setdefault(None, []).append(_loss(plain, row))
        for way in compared:
            cache.way = way
            made = torch.log_softmax(reference.logits(row)[:-1], -1)
            losses.setdefault(way.title, []).append(_loss(made, row))
            divergences.setdefault(way.title, []).append((plain.exp() * (plain - made)).sum(-1).double().numpy())
        print(f"window {number + 1} of {len(ids) // window}", file=sys.stderr, flush=True)
    digest = tokens_digest(ids.tolist())
    scores = {title: Scores(np.concatenate(parts), digest, window, window) for title, parts in losses.items()}
    return {
        "tokens": len(ids),
        "window": window,
        "perplexity": scores[None].perplexity,
        "key_bias": {layer: float(bias.abs().max()) for layer, bias in biases.items()},
        "ways": {
            way.title: {
                "increase": paired_increase(scores[None], scores[way.title]).to_json(),
                "mean_kl": float(np.concatenate(divergences[way.title]).mean()),
            }
            for way in compared
        },
    }


def _loss(log_probabilities: torch.Tensor, ids: torch.Tensor) -> np.ndarray:
    """Losses [n - 1] of the tokens [n] after the first, in nats."""
    losses: np.ndarray = -log_probabilities.gather(1, ids[1:, None])[:, 0].double().numpy()
    return losses


def table(found: Mapping[str, Any]) -> str:
    """The figures as rows of Markdown."""
    lines = ["| what an FP8 cache rounds | perplexity | KL, thousandths of a nat |", "|---|---|---|"]
    for title, figures in found["ways"].items():
        by = figures["increase"]
        lines.append(
            f"| {title} | {by['value']:+.2%} [{by['low']:.2%}, {by['high']:.2%}] | {1000 * figures['mean_kl']:.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--calibration", type=int, default=4, help="windows of the calibration slice")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.checkpoint, given.tokens, given.window, given.calibration)
    if given.json:
        print(json.dumps(found))
        return 0
    print(f"{found['tokens']} tokens in windows of {found['window']}, perplexity {found['perplexity']:.3f} unrounded\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

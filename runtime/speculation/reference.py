"""The EAGLE-3 head in plain PyTorch, as :mod:`trtforge.drafting.description` describes it: what faster ones equal.

One head whatever dialect it came in: tensors under canonical names, one description. float32 by default, no cache,
whole sequences; for tests, for comparisons, and where speed does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from trtforge.drafting.description import Eagle3, Rope
from trtforge.drafting.inspection import inspect_folder
from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class Eagle3Reference:
    """A head with its weights.

    Attributes:
        tensors: canonical name → weight; embedding and head among them, own or the target's.
        targets: int64 [Vd], the target's token of each draft token.
    """

    head: Eagle3
    tensors: Mapping[str, Tensor]
    targets: Tensor

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        embedding: Tensor | None = None,
        lm_head: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Eagle3Reference:
        """Load the drafter in ``folder``, of any dialect.

        Args:
            embedding: the target's [V, H], for a drafter that has none.
            lm_head: the target's [V, H], for a drafter that has none.

        Raises:
            ForgeError: the first error of :func:`~trtforge.drafting.inspection.inspect_folder`; ``TF-DRF-026`` a
                table of the target is needed.
        """
        from safetensors import safe_open

        found = inspect_folder(folder)
        for finding in found.errors:
            raise finding.refusal(str(folder))
        if found.head is None or found.names is None:
            raise ForgeError(
                "TF-DRF-002",
                f"{folder.name} holds {found.kind.title}, and this reads EAGLE-3 drafters",
                asked=str(folder),
                remedies=["the folder of an EAGLE-3 drafter"],
            )
        tensors: dict[str, Tensor] = {}
        for canonical, stored in found.names.items():
            with safe_open(folder / found.headers[stored].file, framework="pt") as file:
                value = file.get_tensor(stored)
            tensors[canonical] = value.to(dtype) if value.is_floating_point() else value
        for name, shared in (("embed_tokens.weight", embedding), ("lm_head.weight", lm_head)):
            if name not in tensors and shared is None:
                raise ForgeError(
                    "TF-DRF-026",
                    f"the drafter uses its target's {name}, which was not given",
                    asked=str(folder),
                    remedies=["the target's table beside the drafter's folder"],
                )
            if name not in tensors and shared is not None:
                tensors[name] = shared.to(dtype)
        targets = torch.arange(found.head.draft_vocab_size)
        if "d2t" in tensors:
            targets = targets + tensors["d2t"].long()
        return cls(found.head, tensors, targets)

    def join(self, taps: Tensor) -> Tensor:
        """The state of the first step from the taps [T, m·Ht], joined in the order of their layers: [T, H]."""
        head = self.head
        if head.norm_before_fc:
            taps = self._norm("input_norm", taps)
        if head.fc_norm:
            chunks = taps.chunk(head.tap_count, dim=-1)
            taps = torch.cat([self._norm(f"fc_norm.{tap}", chunk) for tap, chunk in enumerate(chunks)], dim=-1)
        return F.linear(taps, self.tensors["fc.weight"], self.tensors.get("fc.bias"))

    def step(self, tokens: Tensor, states: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One pass over a sequence.

        Args:
            tokens: int64 [T], the target's ids; token t stands one behind the state that it is joined with.
            states: [T, H], of :meth:`join` or fed back.
            positions: int64 [T]; default 0 … T-1.

        Returns:
            Logits over the draft vocabulary [T, Vd], and the states to feed back [T, H].
        """
        head = self.head
        positions = torch.arange(tokens.shape[0]) if positions is None else positions
        embedded = self._norm("layers.0.input_layernorm", F.embedding(tokens, self.tensors["embed_tokens.weight"]))
        normed = self._norm("layers.0.hidden_norm", states)
        read, residual = torch.cat([embedded, normed], dim=-1), normed if head.norm_before_residual else states
        for layer in range(head.layers):
            name = f"layers.{layer}"
            if layer:
                read, residual = self._norm(f"{name}.input_layernorm", residual), residual
            residual = residual + self._attention(f"{name}.self_attn", read, positions)
            residual = residual + self._mlp(f"{name}.mlp", self._norm(f"{name}.post_attention_layernorm", residual))
        last = self._norm("norm", residual)
        return F.linear(last, self.tensors["lm_head.weight"]), last if head.norm_output else residual

    def draft(self, tokens: Tensor, taps: Tensor, steps: int) -> Tensor:
        """Greedily drafted tokens of the target's vocabulary [steps], after ``tokens`` [T] and their taps [T, m·Ht]."""
        states, drafted = self.join(taps), []
        for _ in range(steps):
            logits, fed = self.step(tokens, states)
            token = self.targets[logits[-1].argmax()]
            drafted.append(token)
            tokens, states = torch.cat([tokens, token[None]]), torch.cat([states, fed[-1:]])
        return torch.stack(drafted)

    def _norm(self, name: str, values: Tensor) -> Tensor:
        wide = values.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.head.eps)
        return scaled.to(values.dtype) * self.tensors[f"{name}.weight"]

    def _linear(self, name: str, values: Tensor) -> Tensor:
        return F.linear(values, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _mlp(self, name: str, values: Tensor) -> Tensor:
        gate = F.silu(self._linear(f"{name}.gate_proj", values))
        return self._linear(f"{name}.down_proj", gate * self._linear(f"{name}.up_proj", values))

    def _attention(self, name: str, values: Tensor, positions: Tensor) -> Tensor:
        head, length = self.head, values.shape[0]
        queries, keys, content = (
            self._linear(f"{name}.{part}_proj", values).view(length, -1, head.head_size) for part in "qkv"
        )
        if head.qk_norm:
            queries, keys = self._norm(f"{name}.q_norm", queries), self._norm(f"{name}.k_norm", keys)
        cos, sin = rotation(head.rope, head.head_size, positions)
        queries, keys = (rotated(part, cos, sin) for part in (queries, keys))
        groups = head.heads // head.kv_heads
        keys, content = (part.repeat_interleave(groups, dim=1) for part in (keys, content))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(head.head_size)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, content)
        return self._linear(f"{name}.o_proj", mixed.reshape(length, -1))


def rotation(rope: Rope, size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, 1, size/2] of a rotation.

    Source: https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py

    Raises:
        ForgeError: ``TF-DRF-015`` the scaling depends on the length of the text (dynamic).
    """
    pairs = torch.arange(0, size, 2, dtype=torch.float64)
    frequencies, factor = rope.theta ** (-pairs / size), 1.0
    scaling = rope.scaling
    kind = scaling.get("rope_type")
    if kind == "linear":
        frequencies = frequencies / scaling["factor"]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif kind == "yarn":
        frequencies, factor = _yarn(frequencies, rope, size)
    elif kind is not None:
        raise ForgeError(
            "TF-DRF-015",
            f"the rotation's scaling {kind!r} is not computed here",
            asked=f"rope_scaling: {dict(scaling)}",
            why="It depends on the length of the text, so that cached keys would have to be turned again.",
            remedies=["rope_type linear, llama3 or yarn"],
        )
    angles = (positions.to(torch.float64)[:, None] * frequencies)[:, None, :]
    return (angles.cos() * factor).float(), (angles.sin() * factor).float()


def rotated(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Values [T, heads, size] turned in the pairs (i, i + size/2)."""
    one, two = values.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1).to(values.dtype)


def _llama3(frequencies: Tensor, scaling: Mapping[str, float]) -> Tensor:
    """Long waves are stretched, short ones kept, those between blended."""
    trained, low, high = (
        scaling[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    waves = 2 * math.pi / frequencies
    smooth = ((trained / waves - low) / (high - low)).clamp(0, 1)
    return frequencies * (smooth + (1 - smooth) / scaling["factor"])


def _yarn(frequencies: Tensor, rope: Rope, size: int) -> tuple[Tensor, float]:
    """Interpolated by a ramp over the pairs; keys and queries are scaled too (arXiv:2309.00071)."""
    scaling = rope.scaling
    factor, trained = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        return size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = max(math.floor(pair(scaling["beta_fast"])), 0), min(math.ceil(pair(scaling["beta_slow"])), size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    attention = magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
    return frequencies * (1 - ramp) + frequencies / factor * ramp, attention

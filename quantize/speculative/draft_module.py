"""ModelOpt's EAGLE-3 module as a trainer of what servers compute.

ModelOpt converts a base model of embedding and head alone (its offline mode: the target's states come from files) and
holds the trainable module. Three things differ here from what ModelOpt 0.47 does by itself:

* its Llama layer norms the hidden state with ``input_layernorm`` before ``hidden_norm``; servers apply ``hidden_norm``
  alone (``docs/drafters.md``), so the layer's own use of that norm is taken out;
* attention looks at the fed-back keys of its own path alone, where ModelOpt masks all of them: the same result, and the
  cost of a step does not grow with its number;
* the taps are divided by their spread before ``fc``, which the export multiplies into ``fc``: values of one channel are
  hundreds of times those of another, and AdamW gives all weights steps of one size.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quantize.quiet import quiet
from quantize.speculative.shape import model_options, offsets
from trtforge.drafting.description import Eagle3

_ATTENTION = "trtforge_draft_steps"
#: spread of the logits of an untrained head: more would be a random guess with conviction
_FIRST_LOGITS = 1.0
#: first weight of all taps beside the last one, relative to a linear layer's usual
_OTHER_TAPS = 0.3


@dataclass
class DraftModule:
    """A head in training, with the frozen tables of its target.

    Attributes:
        module: ModelOpt's ``EagleModule`` in float32.
        embedding: the target's [V, H].
        target_rows: the target's output head for the draft vocabulary [Vd, H].
        allowed: bool [V], the tokens that can be drafted.
        spread: float32 [3·H], what taps are divided by.
    """

    head: Eagle3
    module: Any
    embedding: Tensor
    target_rows: Tensor
    allowed: Tensor
    spread: Tensor
    tokens: tuple[int, ...]

    @classmethod
    def build(
        cls, checkpoint: Path, head: Eagle3, tokens: Sequence[int], spread: Tensor | None, seed: int
    ) -> DraftModule:
        """A fresh head; its output rows are the target's.

        Args:
            checkpoint: the target's folder (safetensors).
            tokens: the target's token of each draft token, ascending.
            spread: float32 [3·H], root mean square of each tap's channel over the training text; None: all one.
        """
        import modelopt.torch.speculative as speculative
        from modelopt.torch.speculative.plugins.modeling_fakebase import FakeBaseModel

        _register_attention()
        torch.manual_seed(seed)
        with quiet():
            base = FakeBaseModel.from_source(str(checkpoint))
            settings = copy.deepcopy(speculative.EAGLE3_DEFAULT_CFG)
            settings["config"]["eagle_architecture_config"] |= dict(model_options(head))
            settings["config"] |= {"eagle_offline": True, "eagle_use_torch_compile": False}
            model = speculative.convert(base, [(settings["algorithm"], settings["config"])])
        module = model.eagle_module.float()
        module.config._attn_implementation = _ATTENTION
        module._maybe_init_rope()
        layer = module.layers[0]
        layer.forward = types.MethodType(_served_layer, layer)
        chosen = torch.tensor(tokens)
        if head.mapped:
            module.d2t.copy_(torch.tensor(offsets(tokens)))
        rows = model.lm_head.weight.detach()[chosen].clone()
        module.lm_head.weight.data.copy_(rows)
        _begin_at_the_target(module, model, rows, None if spread is None else _floored(spread, 0))
        allowed = torch.zeros(head.vocab_size, dtype=torch.bool)
        allowed[chosen] = True
        embedding = model.embed_tokens.weight.detach().clone()
        return cls(head, module, embedding, rows, allowed, _floored(spread, 3 * head.target_hidden_size), tuple(tokens))

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return dict(self.module.named_parameters())

    def join(self, taps: Tensor) -> Tensor:
        """Taps [..., 3·H] as they are stored → the state of the first step [..., H]."""
        joined: Tensor = self.module.fc(taps / self.spread)
        return joined

    def step(self, states: Tensor, embedded: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """One draft step over whole texts: normed states and states to feed back, [B, S, H] each."""
        normed, fed, _ = self.module(
            states, embedded, attention_mask=None, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return normed, fed

    def tensors(self) -> dict[str, Tensor]:
        """The weights under canonical names, as servers read them: the taps' spread is in ``fc``."""
        found = {name: value.detach().clone() for name, value in self.module.named_parameters()}
        found["fc.weight"] = found["fc.weight"] / self.spread
        return found

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Put the trained weights (names and scaling of :meth:`parameters`) back."""
        with torch.no_grad():
            for name, value in self.parameters().items():
                value.copy_(weights[name])


def _begin_at_the_target(module: Any, model: Any, rows: Tensor, spread: Tensor | None) -> None:
    """First weights in the target's own basis: ``fc`` passes the last tap on, beside a little of all of them.

    The output rows are the target's, and so is the final norm's shape: from the first step on a state means what it
    means to the target, which saves the steps in which a random basis would be learned.
    """
    # a normed state has unit size in each channel: the logits' spread is the rows' length times the norm's weight
    size = _FIRST_LOGITS / float(rows.float().norm(dim=1).mean())
    shape = getattr(model, "norm", None)
    weight = torch.ones_like(module.norm.weight) if shape is None else shape.weight.detach().float()
    module.norm.weight.data.copy_(size * weight / weight.mean())
    if spread is not None:
        width = module.norm.weight.shape[0]
        own = spread[-width:]
        module.fc.weight.data.mul_(_OTHER_TAPS)
        module.fc.weight.data[:, -width:] += torch.diag(own / own.median())


def _floored(spread: Tensor | None, width: int) -> Tensor:
    """The spread with no channel under a hundredth of the usual one: a dead channel is not blown up."""
    if spread is None:
        return torch.ones(width)
    return spread.clamp(min=float(spread.median()) / 100 or 1.0)


def _served_layer(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """A Llama layer without its own input norm: ModelOpt's hook norms embedding and state before q, k and v."""
    mixed, _ = self.self_attn(hidden_states=hidden_states, **options)
    hidden_states = hidden_states + mixed
    output: Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
    return output


def _register_attention() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, path_attention)


def path_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one draft step.

    Keys and values hold S positions of step 0, then S of step 1, and so on up to this step s. Position t drafts token
    t + 2 on the path that left the text at t - s: it sees step 0 up to t - s, and of step i the one state at
    t - s + i that its own path fed back.

    Args:
        query: [B, heads, S, d].
        key: [B, kv_heads, S·(s + 1), d]; ``value`` too.
        attention_mask: not used: texts are padded behind their end, where a causal mask ends too.

    Returns:
        [B, S, heads, d], and no weights.
    """
    batch, heads, length, size = query.shape
    groups, step = key.shape[1], key.shape[2] // length - 1
    asked = (query * scaling).view(batch, groups, heads // groups, length, size)
    flat = asked.reshape(batch * groups, -1, size)
    scores = (flat @ key[:, :, :length].reshape(batch * groups, length, size).transpose(1, 2)).view(
        *asked.shape[:4], length
    )
    later = torch.ones(length, length, dtype=torch.bool).triu(1 - step)
    scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
    own_values, own_scores = [], []
    for earlier in range(1, step + 1):
        block = slice(length * earlier, length * (earlier + 1))
        keys, values = (part[:, :, block].roll(step - earlier, 2)[:, :, None] for part in (key, value))
        own_scores.append((asked * keys).sum(-1, keepdim=True))
        own_values.append(values)
    weights = torch.cat([scores, *own_scores], -1).softmax(-1, dtype=torch.float32).to(query.dtype)
    text = weights[..., :length].reshape(batch * groups, -1, length)
    mixed = (text @ value[:, :, :length].reshape(batch * groups, length, size)).view(asked.shape)
    for place, values in enumerate(own_values):
        mixed = mixed + weights[..., length + place, None] * values
    return mixed.view(batch, heads, length, size).transpose(1, 2).contiguous(), None

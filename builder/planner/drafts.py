"""A drafter's sizes: of an EAGLE-3 head from its headers, in any dialect; of a draft model as of any model.

A head's tables count as they lie in the engine: the embedding and the output head that it shares with the target are
copied into the draft's folder, so that they are weights of the draft too. Its first pass of a round joins the target's
states by ``fc``, the later ones do not; the plan times all with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder.planner.weights import groups_from_shapes
from trtforge.drafting.description import Eagle3
from trtforge.drafting.inspection import inspect_folder
from trtforge.models.record import Model

if TYPE_CHECKING:
    from builder.planner.facts import KnownModel

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def eagle3_from_folder(folder: Path) -> KnownModel | None:
    """The sizes of the EAGLE-3 head in ``folder``; None: something else is there.

    Raises:
        ForgeError: ``TF-DRF-001`` nothing there is a drafter; ``TF-SRC-…`` damaged weight files.
    """
    from builder.planner.facts import KnownModel

    head = inspect_folder(folder).head
    if head is None:
        return None
    facts = eagle3_facts(head, folder.name)
    shapes = dict(head.shapes())
    shapes["lm_head.weight"] = (head.draft_vocab_size, head.hidden_size)
    shapes["embed_tokens.weight"] = (head.vocab_size, head.hidden_size)
    if not head.own_embedding:
        shapes["embed_tokens.weight"] = (head.vocab_size, head.target_hidden_size)
    return KnownModel(facts, groups_from_shapes(shapes, facts), True)


def eagle3_facts(head: Eagle3, name: str) -> Model:
    """The head as a model of its draft vocabulary, whose first layer reads twice its width."""
    return Model(
        name=name,
        architecture="Eagle3",
        layers=head.layers,
        hidden=head.hidden_size,
        ffn=head.intermediate_size,
        heads=head.heads,
        kv_heads=head.kv_heads,
        head_size=head.head_size,
        vocab=head.draft_vocab_size,
        max_positions=head.max_positions or 2**20,
        tied=False,
        dtype=_DTYPES.get(head.dtype, "bfloat16"),
        attention_bias=head.attention_bias,
        o_bias=head.attention_bias,
        mlp_bias=head.mlp_bias,
        qk_norm=head.qk_norm,
        joined=head.tap_count * head.target_hidden_size,
    )

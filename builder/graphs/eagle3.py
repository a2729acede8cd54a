"""The graph of an EAGLE-3 head, of whatever dialect: token-packed over paged pools as its target's graph is.

Row t joins the state at one position with the token behind it. The state is made of the target's taps (``joined``), or
is what an earlier row fed back; all rows of a call are of one kind. Beside the target graph's inputs:

    taps      [T, m·Ht]   states of the target, in the order of their layers; read where ``joined``
    feedback  [T, H]      states of the head; read where not
    joined    bool [1, 1]

Outputs: ``logits`` float32 [L, Vd] over the draft vocabulary, ``states`` [T, H] (what is fed back), the pools. What is
computed is written down at :mod:`trtforge.drafting.description`.

``out`` holds ``model.safetensors`` under the canonical names, whatever the dialect called them, in the graph's type:
the head's own tensors, the tables that it shares with its target, and ``d2t``, which the runtime reads.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from builder import opset
from builder.graphs.blocks import Blocks
from builder.graphs.config import check_heads
from builder.graphs.emitter import MODEL_TYPES, Emitter
from builder.graphs.float_parts import in_type
from builder.graphs.info import GraphInfo
from builder.graphs.linears import LinearWriter
from builder.graphs.model_file import make_model, publish
from builder.graphs.tensors import CheckpointTensors
from trtforge.drafting.conversion import Part, stored_part, write_weights
from trtforge.drafting.description import Eagle3
from trtforge.drafting.inspection import Inspection, inspect_folder
from trtforge.drafting.maps import read_targets
from trtforge.formats.base import FLOAT_TYPES
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.ground.safetensors_header import WEIGHTS_NAME, TensorInfo
from trtforge.models.record import Model

FAMILY = "eagle3"


def inspect_head(folder: Path, target: Path) -> Inspection:
    """The EAGLE-3 head in ``folder``, held against its target.

    Raises:
        ForgeError: the first error of :func:`~trtforge.drafting.inspection.inspect_folder`; ``TF-DRF-002`` another
            kind of drafter.
    """
    found = inspect_folder(folder, target)
    for finding in found.errors:
        raise finding.refusal(f"speculation.draft: {folder}")
    if found.head is None:
        raise ForgeError(
            "TF-DRF-002",
            f"{folder.name} holds {found.kind.title}, and speculation.method is eagle3",
            asked=f"speculation.draft: {folder}",
            remedies=["an EAGLE-3 drafter of this model", "speculation.method: draft_target for a whole model"],
        )
    return found


def tapped_states(found: Inspection) -> tuple[int, ...]:
    """i of the target's outputs ``hidden_states_i`` that the head reads: after i layers."""
    assert found.head is not None and found.target is not None
    layers = found.target.size("num_hidden_layers")
    taps = found.head.taps if found.head.taps is not None else found.head.default_taps(layers or 0)
    return tuple(tap + 1 for tap in taps)


def build_eagle3(
    found: Inspection,
    out: Path,
    *,
    dtype: str,
    block_size: int,
    tree_mask: bool = False,
    progress: Progress | None = None,
) -> GraphInfo:
    """Write the head's weights, model.onnx and graph.json into ``out``.

    Args:
        found: what :func:`inspect_head` returned.
        dtype: element type of activations, states and pools; the target graph's.
        tree_mask: add the input that drafting of trees needs.

    Raises:
        ForgeError: ``TF-GRF-002``/``009`` heads that PagedAttention does not take, ``TF-GRF-003`` a rope type,
            ``TF-GRF-010`` the check, ``TF-GRF-019`` a table of the target that cannot be shared, ``TF-GRF-021`` a
            value that ``dtype`` cannot hold, ``TF-GRF-022`` one that is infinite or no number.
    """
    progress = progress or SilentProgress()
    head, target = found.head, found.target
    assert head is not None and target is not None
    config = _config(head, dtype, target.size("max_position_embeddings"))
    check_heads(config)
    out.mkdir(parents=True, exist_ok=True)
    progress.start("writing the drafter's weights", None)
    write_weights(out / WEIGHTS_NAME, in_type(_parts(found), dtype))

    progress.start("writing the drafter's graph", None)
    emitter, tensors = Emitter(), CheckpointTensors(out)
    linears = LinearWriter(emitter, tensors, MODEL_TYPES[dtype], {})
    blocks = Eagle3Blocks(
        emitter,
        tensors,
        linears,
        config,
        block_size=block_size,
        pool_type=opset.POOL_TYPES[dtype],
        kv_scales=False,
        tree_mask=tree_mask,
    )
    blocks.write(head)
    if "d2t" in tensors:
        tensors.take("d2t")
        tensors.account("d2t", "read by the runtime: draft token to target token")
    tensors.finish(frozenset())
    publish(make_model(emitter), out, progress)
    trained_as = str((found.config.get("architectures") or [FAMILY])[0])
    info = replace(blocks.info("paged", dtype, dtype, "none"), hf_architecture=trained_as, drafter=_facts(head, found))
    info.write(out)
    return info


class Eagle3Blocks(Blocks):
    """:class:`~builder.graphs.blocks.Blocks` with the join in front of the first layer."""

    def write(self, head: Eagle3) -> None:
        """The head's nodes, from taps and tokens to logits and states."""
        emitter, width = self.emitter, head.hidden_size
        self.declare_inputs()
        emitter.input("taps", self.model_type, ["T", head.tap_count * head.target_hidden_size])
        emitter.input("feedback", self.model_type, ["T", width])
        emitter.input("joined", TensorProto.BOOL, [1, 1])
        emitter.output("logits", TensorProto.FLOAT, ["L", head.draft_vocab_size])
        emitter.output("states", self.model_type, ["T", width])
        hidden = emitter.node("Where", ["joined", self.join(head), "feedback"], "/join")
        embedded = self.norm("layers.0.input_layernorm", self.embedding("embed_tokens", "input_ids", "embedded"))
        normed = self.norm("layers.0.hidden_norm", hidden)
        read = emitter.node("Concat", [embedded, normed], "/layers.0", axis=-1)
        residual = normed if head.norm_before_residual else hidden
        caches = self.rotary_caches("/rotary_emb")
        for layer in range(head.layers):
            module = f"layers.{layer}"
            if layer:
                read = self.norm(f"{module}.input_layernorm", residual)
            attended = self.attention(f"{module}.self_attn", read, caches, layer, reads=width if layer else 2 * width)
            residual = self.add(residual, attended, f"/{module}/attention_residual")
            expanded = self.gated_mlp(
                f"{module}.mlp", self.norm(f"{module}.post_attention_layernorm", residual), bias=head.mlp_bias
            )
            last = layer == head.layers - 1 and not head.norm_output
            residual = self.add(residual, expanded, f"/{module}/mlp_residual", output="states" if last else None)
        self.finish(head, residual)

    def join(self, head: Eagle3) -> str:
        """The state of the first step from the taps: [T, H]."""
        taps, emitter = "taps", self.emitter
        if head.norm_before_fc:
            taps = self.norm("input_norm", taps, head.tap_count * head.target_hidden_size)
        if head.fc_norm:
            names = [f"/join/tap_{tap}" for tap in range(head.tap_count)]
            emitter.node("Split", [taps], "/join", outputs=names, axis=-1, num_outputs=head.tap_count)
            normed = [self.norm(f"fc_norm.{tap}", name, head.target_hidden_size) for tap, name in enumerate(names)]
            taps = normed[0] if len(normed) == 1 else emitter.node("Concat", normed, "/join", axis=-1)
        shape = (head.hidden_size, head.tap_count * head.target_hidden_size)
        return self.linears.write(self.tensors.linear("fc", shape, bias=head.fc_bias), taps)

    def finish(self, head: Eagle3, residual: str) -> None:
        """The last norm, of all rows where they are fed back normed, and the head on the rows that are asked for."""
        if head.norm_output:
            self.tensors.take("norm.weight", (head.hidden_size,))
            scale = self.linears.in_model_type("norm.weight", "/norm")
            states = self.emitter.node(
                "RMSNormalization", [residual, scale], "/norm", output="states", axis=-1, epsilon=head.eps, stash_type=1
            )
            picked = self.pick_rows(states)
        else:
            picked = self.norm("norm", self.pick_rows(residual))
        linear = self.tensors.linear("lm_head", (head.draft_vocab_size, head.hidden_size))
        if self.model_type == TensorProto.FLOAT:
            self.linears.write(linear, picked, output="logits")
        else:
            wide = self.linears.write(linear, picked)
            self.emitter.node("Cast", [wide], "/lm_head", output="logits", to=TensorProto.FLOAT)


def _config(head: Eagle3, dtype: str, positions: int | None) -> Model:
    """The head's layers as the blocks read them; the vocabulary is that of its embedding."""
    return Model(
        architecture="Eagle3",
        family=FAMILY,
        dtype=dtype,
        layers=head.layers,
        hidden=head.hidden_size,
        ffn=head.intermediate_size,
        heads=head.heads,
        kv_heads=head.kv_heads,
        head_size=head.head_size,
        vocab=head.vocab_size,
        # the head drafts as far as its target answers, whatever its trainer wrote down
        max_positions=positions or head.max_positions or 1,
        norm_eps=head.eps,
        tied=False,
        attention_bias=head.attention_bias,
        o_bias=head.attention_bias,
        mlp_bias=head.mlp_bias,
        qk_norm=head.qk_norm,
        windows=(0,) * head.layers,
        rope={"rope_type": "default", "rope_theta": head.rope.theta, **head.rope.scaling},
    )


def _parts(found: Inspection) -> dict[str, Part]:
    """Every tensor of the drafter's file under its canonical name; tables that it lacks come from the target.

    Raises:
        ForgeError: ``TF-GRF-019``.
    """
    head, target = found.head, found.target
    assert head is not None and target is not None
    parts = {
        canonical: stored_part(found.folder, found.headers[stored])
        for canonical, stored in (found.names or {}).items()
        if canonical not in ("d2t", "t2d")
    }
    d2t = found.tensor("d2t")
    if d2t is not None:
        targets = read_targets(found.folder, d2t)
        made = (targets - np.arange(targets.size)).astype("<i8").tobytes()
        parts["d2t"] = Part("I64", (targets.size,), len(made), made=made)
    shape = (head.vocab_size, head.hidden_size)
    if not head.own_embedding:
        parts["embed_tokens.weight"] = stored_part(target.folder, _shared(found, "embedding", target.embedding, shape))
    if not head.own_head:
        parts["lm_head.weight"] = stored_part(target.folder, _shared(found, "output head", target.head, shape))
    return parts


def _shared(found: Inspection, what: str, info: TensorInfo | None, shape: tuple[int, int]) -> TensorInfo:
    """A table of the target, which has to be unquantized."""
    if info is not None and info.dtype in FLOAT_TYPES and info.shape == shape:
        return info
    raise ForgeError(
        "TF-GRF-019",
        f"the drafter shares its target's {what}, which is "
        + ("not there" if info is None else f"{info.dtype} {list(info.shape)}"),
        asked=f"speculation.draft: {found.folder}",
        numbers={"wanted": list(shape), "types": list(FLOAT_TYPES)},
        why="A drafter runs unquantized, on a table of its own width.",
        remedies=["quantize.exclude: [lm_head]", "a drafter with embed_tokens and lm_head of its own"],
    )


def _facts(head: Eagle3, found: Inspection) -> dict[str, Any]:
    """What the runtime and people are told of the head."""
    assert found.dialect is not None
    facts = asdict(head)
    return {
        "kind": FAMILY,
        "dialect": found.dialect.name,
        "draft_vocab_size": head.draft_vocab_size,
        "mapped": found.tensor("d2t") is not None,
        "hidden_size": head.hidden_size,
        "tap_width": head.tap_count * head.target_hidden_size,
        "taps": list(tapped_states(found)),
        "embedding": "own" if head.own_embedding else "target's",
        "head": "own" if head.own_head else "target's",
        "flags": sorted(
            name
            for name in ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "qk_norm")
            if facts[name]
        ),
    }

"""From a checkpoint directory to a graph directory: model.onnx, graph.json, and packed.safetensors where weights move.

Policy: headers decide everything that can go wrong before a file is written; weights stay where they
are. The result is the same bytes for the same checkpoint. A directory is finished when graph.json is
in it (written last).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from builder import opset
from builder.files import copy_directory
from builder.graphs.blocks import Blocks, kv_scale_name
from builder.graphs.config import read_config
from builder.graphs.emitter import MODEL_TYPES, Emitter
from builder.graphs.info import GRAPH_FILE, INFO_FILE, PACKED_FILE, GraphInfo
from builder.graphs.linears import LinearWriter
from builder.graphs.model_file import make_model, publish
from builder.graphs.native import NativeBlocks
from builder.graphs.packing import plan_packed, write_packed
from builder.graphs.tensors import CheckpointTensors
from trtforge.formats.pools import calibrated_pool, pools
from trtforge.formats.table import carried_kv
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.models.record import Model

MODES = ("paged", "native")
BLOCK_SIZES = (16, 32, 64, 128)
_OWN_FILES = frozenset({GRAPH_FILE, INFO_FILE, PACKED_FILE, "engine.json"})


def build_graph(
    checkpoint: Path,
    out: Path,
    *,
    dtype: str | None = None,
    kv_cache_format: str | None = None,
    block_size: int = 32,
    mode: str = "paged",
    hidden_states: Sequence[int] = (),
    tree_mask: bool = False,
    progress: Progress | None = None,
) -> GraphInfo:
    """Write the graph of ``checkpoint`` into ``out`` (which may be the checkpoint's own directory).

    Args:
        dtype: element type of activations and norms (float32, float16, bfloat16); None: config.json's.
        kv_cache_format: a name of :func:`trtforge.formats.pools.pools`; None: the quantized one that the
            checkpoint is calibrated for, else ``dtype``.
        block_size: S, token slots in a KV block.
        mode: ``paged``, or ``native``: standard operators on padded batches (see
            :mod:`builder.graphs.native`), for a runtime without plugins.
        hidden_states: residual streams to add as outputs (i: after i layers).
        tree_mask: add the input that verification of draft trees needs.

    Raises:
        ForgeError: codes ``TF-GRF-…`` as documented at the functions of this package; ``TF-SRC-…`` for
            unreadable weights.
    """
    checkpoint, out = Path(checkpoint), Path(out)
    progress = progress or SilentProgress()
    config = read_config(checkpoint)
    dtype = dtype or config.dtype
    tensors = CheckpointTensors(checkpoint)
    if kv_cache_format is None:
        recorded = tensors.quant.kv_cache in carried_kv()
        calibrated = recorded or kv_scale_name(tensors, "model.layers.0.self_attn", "k") is not None
        kv_cache_format = calibrated_pool(tensors.quant.kv_cache) if calibrated else dtype
    _check_request(config, dtype, kv_cache_format, block_size, mode, hidden_states, tree_mask)

    progress.start("writing the graph", None)
    repacked = tensors.repackings()
    packed, packed_header = plan_packed(repacked)
    emitter = Emitter()
    linears = LinearWriter(emitter, tensors, MODEL_TYPES[dtype], packed)
    blocks = (NativeBlocks if mode == "native" else Blocks)(
        emitter,
        tensors,
        linears,
        config,
        block_size=block_size,
        pool_type=opset.POOL_TYPES[kv_cache_format],
        kv_scales=pools()[kv_cache_format].scaled,
        tree_mask=tree_mask,
    )
    import_module(f"builder.graphs.families.{config.family}").write(blocks)
    for index in hidden_states:
        emitter.output(f"hidden_states_{index}", MODEL_TYPES[dtype], [*blocks.token_shape, config.hidden])
    tensors.finish(frozenset(linear.format for linear in linears.written) - {"none"})
    model = make_model(emitter)

    if out.resolve() == checkpoint.resolve():
        _refuse_links(checkpoint, tensors)
    else:
        copy_directory(checkpoint, out, exclude=_OWN_FILES, progress=progress)
    (out / INFO_FILE).unlink(missing_ok=True)
    if repacked:
        progress.start("repacking weights", None)
        write_packed(checkpoint, repacked, packed_header, out)
    publish(model, out, progress)
    scales = _scales(blocks, kv_cache_format)
    info = replace(blocks.info(mode, dtype, kv_cache_format, scales), hidden_states=tuple(hidden_states))
    info.write(out)
    return info


def _scales(blocks: Blocks, kv_format: str) -> str:
    if not pools()[kv_format].scaled:
        return "none"
    first = kv_scale_name(blocks.tensors, "model.layers.0.self_attn", "k")
    return "unit" if first is None else "calibrated"


def _check_request(
    config: Model,
    dtype: str,
    kv_format: str,
    block_size: int,
    mode: str,
    hidden_states: Sequence[int],
    tree_mask: bool,
) -> None:
    def refuse(code: str, what: str, asked: object, allowed: Sequence[object], why: str) -> ForgeError:
        listed = ", ".join(str(a) for a in allowed)
        return ForgeError(
            code,
            f"{what} is {asked!r}",
            asked=str(asked),
            numbers={"allowed": list(allowed)},
            why=why,
            remedies=[f"Use {listed}"],
        )

    if dtype not in MODEL_TYPES:
        raise refuse(
            "TF-GRF-012", "The graph's dtype", dtype, list(MODEL_TYPES), "Activations run in one of these types."
        )
    if mode not in MODES:
        raise refuse("TF-GRF-012", "The attention mode", mode, MODES, "There are two ways to write attention.")
    if kv_format not in pools():
        known = list(pools())
        raise refuse("TF-GRF-011", "The KV cache's format", kv_format, known, "PagedAttention v1 has pools of these.")
    if mode == "native" and pools()[kv_format].scaled:
        plain = [name for name, pool in pools().items() if not pool.scaled]
        raise refuse("TF-GRF-011", "The KV cache's format", kv_format, plain, "Native caches have no scales.")
    if mode == "native" and tree_mask:
        raise refuse("TF-GRF-012", "tree_mask", True, [False], "Native attention makes its mask from positions.")
    if block_size not in BLOCK_SIZES:
        raise refuse("TF-GRF-011", "The KV block size", block_size, BLOCK_SIZES, "PagedAttention v1 takes these sizes.")
    outside = [index for index in hidden_states if not 0 <= index <= config.layers]
    if outside:
        allowed = [f"0 to {config.layers}"]
        raise refuse("TF-GRF-012", "A hidden state to export", outside[0], allowed, "The model has no such layer.")


def _refuse_links(directory: Path, tensors: CheckpointTensors) -> None:
    for name in sorted({info.file for info in tensors.headers.values()}):
        path = directory / name
        if path.is_symlink() or path.stat().st_nlink > 1:
            raise ForgeError(
                "TF-GRF-014",
                f"{name} is a link; a graph beside it could not be loaded",
                asked=str(path),
                numbers={"links": path.stat().st_nlink, "symlink": path.is_symlink()},
                why="ONNX refuses external data behind symbolic and hard links (a Hugging Face cache is made of them).",
                remedies=["Build into another directory: the files are copied there", "Replace the link by the file"],
            )

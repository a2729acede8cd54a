"""From collected nodes to a checked ``model.onnx``: what every graph goes through, whatever it computes."""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, helper

from builder import opset
from builder.graphs import checks
from builder.graphs.emitter import Emitter
from builder.graphs.info import GRAPH_FILE
from trtforge.ground.progress import Progress

ONNX_OPSET = 24


def make_model(emitter: Emitter) -> ModelProto:
    """The model of an emitter's graph, with the types and shapes of every value.

    Raises:
        ForgeError: ``TF-GRF-010`` types or shapes contradict each other.
    """
    model: ModelProto = helper.make_model(
        emitter.graph,
        opset_imports=[helper.make_opsetid("", ONNX_OPSET), helper.make_opsetid(opset.DOMAIN, opset.VERSION)],
        producer_name="trtforge",
        ir_version=helper.find_min_ir_version_for([helper.make_opsetid("", ONNX_OPSET)]),
    )
    return checks.infer(model)


def publish(model: ModelProto, out: Path, progress: Progress) -> None:
    """Write ``model.onnx`` beside the weights that it points into, and check the file.

    Raises:
        ForgeError: ``TF-GRF-010``.
    """
    checks.check_ranges(model, out)
    partial = out / f"{GRAPH_FILE}.partial"
    partial.write_bytes(model.SerializeToString(deterministic=True))
    partial.replace(out / GRAPH_FILE)
    progress.start("checking the graph", None)
    checks.check_file(out / GRAPH_FILE)

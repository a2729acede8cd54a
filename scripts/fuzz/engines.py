"""Engine directories: ``engine.json`` and the ONNX graph, through ``engine info``, the runtime's loader and steps."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Target, command
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError


def make(pristine: Path) -> Attempt:
    """A tiny engine of the torch target."""
    from builder.graphs.build import build_graph
    from builder.targets.torch.target import build_engine
    from trtforge.recipe.schema import Build

    write_tiny_llama(pristine / "model", layers=1)
    build_graph(pristine / "model", pristine / "graph", block_size=16)
    limits = {"max_batch_size": 4, "max_num_tokens": 64, "max_seq_len": 128}
    build = Build.model_validate({"limits": limits, "kv_cache": {"block_size": 16, "memory": "4MiB"}})
    build_engine(pristine / "graph", pristine / "engine", name="tiny", build=build)
    document = json.loads((pristine / "engine" / "engine.json").read_text(encoding="utf-8"))
    graph = (pristine / "engine" / "model.onnx").read_bytes()

    def attempt(draw: random.Random, folder: Path) -> None:
        engine = folder / "engine"
        shutil.copytree(pristine / "engine", engine, copy_function=os.link)
        changing = draw.choice(("engine.json", "model.onnx", "graph"))
        path = engine / ("model.onnx" if changing == "graph" else changing)
        path.unlink()
        if changing == "engine.json":
            path.write_bytes(mutate.dumped(draw, mutate.document(draw, document)))
        else:
            path.write_bytes(mutate.data(draw, graph) if changing == "model.onnx" else _changed_graph(draw, graph))
        if draw.random() < 0.5:
            command("engine", "info", engine)
        else:
            from runtime.offline import Engine
            from runtime.sampling.params import SamplingParams

            loaded = Engine.load(engine, 1)
            try:
                # a graph whose numbers are other than a build's may load; then it also answers, or its step fails
                loaded.generate("hello", SamplingParams(max_tokens=2))
            except ForgeError as error:
                if error.code != "TF-RUN-059":
                    raise

    return attempt


def _changed_graph(draw: random.Random, raw: bytes) -> bytes:
    """The graph with one of its parts changed, still a graph to the parser."""
    import onnx

    model = onnx.load_from_string(raw)
    for _ in range(draw.choice((1, 1, 3))):
        part: Any = draw.choice((model.graph.node, model.graph.initializer, model.graph.input, model.graph.output))
        if not part:
            continue
        kind, index = draw.randrange(5), draw.randrange(len(part))
        item = part[index]
        if kind == 0:
            del part[index]
        elif kind == 1:
            part.append(item)
        elif kind == 2:
            item.name = draw.choice(("", "x", "../x", part[0].name))
        elif kind == 3 and hasattr(item, "op_type"):
            _change_node(draw, item)
        elif hasattr(item, "external_data"):
            _change_tensor(draw, item)
    return bytes(model.SerializeToString())


def _change_node(draw: random.Random, node: Any) -> None:
    kind = draw.randrange(5)
    if kind == 0:
        node.op_type = draw.choice(("MatMul", "Loop", "If", "Reshape", "PagedAttention", "x", ""))
    elif kind == 1:
        node.domain = draw.choice(("", "trtforge", "com.microsoft"))
    elif kind == 2 and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice(("", "x", *node.output, node.input[0]))
    elif kind == 3 and node.attribute:
        attribute = draw.choice(list(node.attribute))
        attribute.i, attribute.f = draw.choice((0, -1, 2**31, 2**62)), draw.choice((0.0, float("nan"), 1e38))
        attribute.type = draw.choice((1, 2, 3, 6, 7))
    elif node.input:
        del node.input[draw.randrange(len(node.input))]


def _change_tensor(draw: random.Random, tensor: Any) -> None:
    kind = draw.randrange(4)
    if kind == 0:
        tensor.data_type = draw.randrange(25)
    elif kind == 1:
        tensor.dims[:] = draw.choice(([], [0], [-1, 4], [2**40, 2**40], [1] * 70, [3, 5]))
    elif kind == 2 and tensor.external_data:
        entry = draw.choice(list(tensor.external_data))
        entry.value = draw.choice(
            ("", "-1", "0", str(2**63), "1e3", "../engine.json", "/etc/passwd", "engine.json", "x" * 9999)
        )
    else:
        tensor.raw_data = draw.randbytes(draw.choice((0, 1, 64)))


ENGINES = Target("engines", "engine.json and ONNX graphs: engine info, the runtime's loader and steps", make)

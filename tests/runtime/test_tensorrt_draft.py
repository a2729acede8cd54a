"""The draft's plan over a simulated TensorRT: what the torch executor of the head computes, in buckets or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.graphs.build import build_graph
from builder.graphs.drafts import build_draft, taps_of
from builder.speculation import engine_record
from builder.targets.tensorrt import machine, target
from builder.targets.tensorrt.profiles import DECODE, MIXED, Sizes, profile_shapes
from runtime.executors import draft_executor, tensorrt_plan
from runtime.executors.draft_executor import TorchDraftExecutor, open_draft
from runtime.executors.tensorrt_draft import TensorrtDraftExecutor
from runtime.executors.tensorrt_engine import read_tensorrt_engine
from runtime.executors.tensorrt_executor import TensorrtExecutor
from runtime.executors.torch_executor import TorchExecutor
from tests.runtime import draft_support as support
from tests.runtime.executor_support import make_batch
from tests.runtime.simulated_tensorrt import HostDevice, Simulation
from tests.support.engines import build_engine
from tests.support.tensorrt_bindings import VERSIONS
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.ground.errors import ForgeError
from trtforge.native.plugin_library import PluginLibrary
from trtforge.recipe.schema import Build, KvCache, Limits

PLUGINS = PluginLibrary(Path("/plugins.so"), "1", "0123456789abcdef", "", "10.14.1", {"source_hash": "s"}, False, "f")
LIMITS = Limits(max_batch_size=4, max_num_tokens=64, max_seq_len=128)
SPEC = Spec("speculators", taps=(1, 5, 8), fc_norm=True, norm_before_residual=True, seed=21)
VERSION = VERSIONS[-1]


@dataclass
class Pair:
    """One target with a head, compiled for TensorRT and packed for torch; the graphs are the same."""

    graph: Path
    tensorrt: Path
    torch: Path

    def simulated(self, folder: str) -> tuple[Any, Simulation, HostDevice]:
        """(engine, the TensorRT that built it, its device) of the engine or of its draft."""
        engine, hardware = read_tensorrt_engine(self.tensorrt / folder), HostDevice()
        inputs, sizes = engine.info.raw["tensorrt"]["inputs"], Sizes(**engine.stamp.sizes.model_dump())
        profiles = [profile_shapes(inputs, sizes, profile) for profile in (DECODE, MIXED)]
        graph = self.graph / folder
        return engine, Simulation(VERSION, graph, inputs, engine.stamp.outputs, hardware, profiles), hardware

    def draft(self, **options: Any) -> tuple[TensorrtDraftExecutor, Simulation, HostDevice]:
        engine, simulation, hardware = self.simulated("draft")
        return TensorrtDraftExecutor(engine, simulation.trt, hardware, PLUGINS, **options), simulation, hardware

    def twin(self) -> TorchDraftExecutor:
        return TorchDraftExecutor(self.torch / "draft")


Make = Callable[..., Pair]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, Pair] = {}

    def pair(**keys: Any) -> Pair:
        if str(keys) in made:
            return made[str(keys)]
        root = tmp_path_factory.mktemp("pair")
        goal = support.write_target(root / "target", SPEC)
        head = support.write_head(root / "head", goal, SPEC)
        asked, graph = support.speculation(**keys), root / "graph"
        tree = asked.choices is not None or asked.dynamic_tree is not None
        taps = taps_of(asked, head, goal)
        build_graph(goal, graph, dtype="float32", block_size=16, hidden_states=taps, tree_mask=tree)
        build_draft(asked, head, goal, graph, dtype="float32", block_size=16)
        build = Build(limits=LIMITS, kv_cache=KvCache(block_size=16, memory="8MiB"))

        def compiled(spec: Any, path: Path, progress: Any) -> dict[str, Any]:
            Path(spec.plan).write_bytes(b"plan")
            facts = {"tensorrt": VERSION, "layers": 1, "plan_bytes": 4, "timing_cache_used": False}
            return {**facts, "pool_copy_bytes": 0}

        record = engine_record(asked, graph)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "tensorrt_version", lambda stack: VERSION)
            patch.setattr(machine, "require", lambda *a: machine.Here(VERSION, "sm_90", PLUGINS))
            patch.setattr(target, "run_worker", compiled)
            gpu = build.model_copy(update={"target": "tensorrt"})
            build_engine(graph, root / "tensorrt", name="tiny", build=gpu, speculation=record)
        build_engine(graph, root / "torch", name="tiny", build=build, speculation=record)
        made[str(keys)] = Pair(graph, root / "tensorrt", root / "torch")
        return made[str(keys)]

    return pair


def same(got: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return wanted[1].clone()


@pytest.mark.parametrize("graphs", [True, False])
def test_passes_agree_with_the_torch_executor(make: Make, graphs: bool) -> None:
    pair = make()
    mine, simulation, hardware = pair.draft(cuda_graphs=graphs)
    theirs = pair.twin()
    assert (mine.draft_vocab_size, mine.hidden_size, mine.tap_width) == (
        theirs.draft_vocab_size,
        theirs.hidden_size,
        theirs.tap_width,
    )
    assert mine.targets is not None and theirs.targets is not None and np.array_equal(mine.targets, theirs.targets)
    assert replace(mine.limits, max_logit_rows=None) == theirs.limits and mine.block_size == theirs.block_size
    (tokens, taps), (others, other_taps) = support.made(SPEC, 11, 2)
    simulation.runs.clear()
    both = make_batch([(tokens.tolist(), 0, [3, 1]), (others.tolist(), 0, [4])], logits=[10, 22])
    states = torch.cat([taps, other_taps])
    fed = same(mine.execute(both, taps=states), theirs.execute(both, taps=states))[[10, 22]]
    for step in range(3):
        batch = make_batch([([7 + step], 11 + step, [3, 1]), ([9], 12 + step, [4])])
        fed = same(mine.execute(batch, feedback=fed), theirs.execute(batch, feedback=fed))
    flush = make_batch([([5, 6], 14, [3, 1])], logits=[])
    same(mine.execute(flush, taps=taps[:2]), theirs.execute(flush, taps=taps[:2]))
    one = make_batch([([8], 16, [3, 1])])  # a token that is joined is a decode step too
    same(mine.execute(one, taps=taps[:1]), theirs.execute(one, taps=taps[:1]))
    assert [profile for profile, _ in simulation.runs] == [1, 0, 0, 0, 1, 0]
    assert hardware.replayed == (4 if graphs else 0)
    assert simulation.runs[1][1]["feedback"] == (2, mine.hidden_size)
    assert mine.describe()["kind"] == "eagle3"


def test_trees_are_drafted_and_rows_are_moved(make: Make) -> None:
    pair = make(max_draft_len=None, choices=[[0], [1], [0, 0]])
    mine, _, hardware = pair.draft()
    theirs = pair.twin()
    ((tokens, taps),) = support.made(SPEC, 9)
    context = make_batch([(tokens.tolist(), 0, [3])], logits=[8])
    fed = same(mine.execute(context, taps=taps), theirs.execute(context, taps=taps))[8:]
    step = make_batch([([11, 12, 13], 9, [3])])
    mask = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=np.uint8)
    tree = replace(step, tree_mask=mask, positions=np.array([9, 9, 10]))
    given = fed.expand(3, -1).contiguous()
    same(mine.execute(tree, feedback=given), theirs.execute(tree, feedback=given))
    arrays = (
        np.array([[3]], dtype=np.int32),
        np.array([9], dtype=np.int32),
        np.array([[0, 2, -1]], dtype=np.int32),
        np.array([2], dtype=np.int32),
    )
    pools = [pool.clone() for pool in mine._pools.values()]
    mine.move_rows(*arrays)
    assert hardware.moves == 1
    hardware.moves = None  # without the ops' library: row after row, the same bytes
    moved = [pool.clone() for pool in mine._pools.values()]
    for pool, before in zip(mine._pools.values(), pools, strict=True):
        pool.copy_(before)
    mine.move_rows(*arrays)
    assert all(map(torch.equal, mine._pools.values(), moved))
    assert not any(map(torch.equal, pools, moved))


def test_the_targets_taps_are_the_torch_executors(make: Make) -> None:
    pair = make()
    engine, simulation, hardware = pair.simulated("")
    mine = TensorrtExecutor(engine, simulation.trt, hardware, PLUGINS)
    theirs = TorchExecutor(pair.torch)
    # a step that verifies: as many rows of logits as a full batch of drafts has
    assert engine.stamp.sizes.rows >= LIMITS.max_batch_size * 5
    batch = make_batch([(range(3, 12), 0, [4]), (range(20, 24), 0, [1])])
    torch.testing.assert_close(mine.execute(batch), theirs.execute(batch), rtol=1e-3, atol=1e-3)
    rows = np.array([12, 0, 5])
    torch.testing.assert_close(mine.taps(rows), theirs.taps(rows), rtol=1e-3, atol=1e-3)


def test_passes_that_do_not_fit_are_refused(make: Make) -> None:
    mine, simulation, _ = make().draft()
    step = make_batch([([1, 2], 0, [0])])
    with pytest.raises(ValueError, match="one of the two"):
        mine.execute(step)
    with pytest.raises(ValueError, match="of shape"):
        mine.execute(step, feedback=torch.zeros(3, mine.hidden_size))
    with pytest.raises(ValueError, match="tree mask"):
        mine.execute(replace(step, tree_mask=np.ones((2, 2), dtype=np.uint8)), feedback=torch.zeros(2, 16))
    simulation.refuse = "feedback"
    with pytest.raises(RuntimeError, match="refused feedback"):
        mine.execute(step, feedback=torch.zeros(2, mine.hidden_size))
    mine.close()
    with pytest.raises(RuntimeError, match="closed"):
        mine.execute(step, feedback=torch.zeros(2, 16))


def test_opening_goes_by_the_engines_target(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = make()
    info = read_tensorrt_engine(pair.tensorrt).info
    loaded: list[tuple[Path, dict[str, Any]]] = []
    monkeypatch.setattr(
        tensorrt_plan.TensorrtPlan, "load", classmethod(lambda cls, path, **kw: loaded.append((path, kw)) or cls)
    )
    assert open_draft(pair.tensorrt, info, num_blocks=9) is TensorrtDraftExecutor
    assert loaded == [(pair.tensorrt / "draft", {"device": "cuda", "num_blocks": 9})]
    assert isinstance(open_draft(pair.torch, draft_executor.read_engine(pair.torch), num_blocks=9), TorchDraftExecutor)
    with pytest.raises(ForgeError) as caught:
        open_draft(pair.torch, info)
    assert caught.value.code.startswith("TF-RUN-00")

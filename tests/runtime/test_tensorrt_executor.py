"""The TensorRT executor over a simulated TensorRT: the torch executor's logits and generations."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.graphs.build import build_graph
from builder.targets.tensorrt import machine, target
from builder.targets.tensorrt.profiles import DECODE, MIXED, Sizes, profile_shapes
from runtime.engine import EngineCore
from runtime.executors.base import Executor, StepBatch
from runtime.executors.decode_padding import bucket_of, is_decode, pad
from runtime.executors.tensorrt_engine import TensorrtEngine, check_loadable, read_tensorrt_engine
from runtime.executors.tensorrt_executor import TensorrtExecutor
from runtime.executors.torch_executor import TorchExecutor
from runtime.offline import Engine
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from tests.runtime.executor_support import make_batch
from tests.runtime.simulated_tensorrt import (
    MEMORY,
    SCRATCH,
    STREAMABLE,
    STREAMING_SCRATCH,
    HostDevice,
    Simulation,
)
from tests.support.damage import ODD, changed
from tests.support.engines import build_engine
from tests.support.tensorrt_bindings import VERSIONS
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.native.plugin_library import PluginLibrary
from trtforge.recipe.schema import Build, KvCache, Limits
from trtforge.targets.tensorrt import TensorRt

PLUGINS = PluginLibrary(Path("/plugins.so"), "1", "0123456789abcdef", "", "10.14.1", {"source_hash": "s"}, False, "f")
LIMITS = Limits(max_batch_size=6, max_num_tokens=80, max_seq_len=128)
VERSION = VERSIONS[-1]
Make = Callable[..., "Case"]


def simulate(engine: TensorrtEngine, graph: Path, hardware: HostDevice, version: str = VERSION) -> Simulation:
    """The TensorRT that built an engine."""
    inputs, sizes = engine.info.raw["tensorrt"]["inputs"], Sizes(**engine.stamp.sizes.model_dump())
    profiles = [profile_shapes(inputs, sizes, profile) for profile in (DECODE, MIXED)]
    return Simulation(version, graph, inputs, engine.stamp.outputs, hardware, profiles)


@dataclasses.dataclass
class Case:
    """An engine directory of each kind, of one graph."""

    tensorrt: Path
    torch: Path
    graph: Path

    def executor(self, version: str = VERSION, **options: Any) -> tuple[TensorrtExecutor, Simulation, HostDevice]:
        engine = read_tensorrt_engine(self.tensorrt)
        hardware = HostDevice()
        simulation = simulate(engine, self.graph, hardware, version)
        return TensorrtExecutor(engine, simulation.trt, hardware, PLUGINS, **options), simulation, hardware


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: threads would only wait for each other, worst on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[str, Case] = {}

    def case(tensorrt: TensorRt | None = None, **graph: Any) -> Case:
        key = f"{tensorrt} {graph}"
        if key in made:
            return made[key]
        folder = tmp_path_factory.mktemp("engines")
        write_tiny_llama(folder / "model")
        build_graph(folder / "model", folder / "graph", dtype="float32", block_size=16, **graph)
        build = Build(limits=LIMITS, kv_cache=KvCache(block_size=16, memory="2MiB"), tensorrt=tensorrt or TensorRt())

        def compiled(spec: Any, path: Path, progress: Any) -> dict[str, Any]:
            Path(spec.plan).write_bytes(b"plan")
            facts = {"tensorrt": VERSION, "layers": 1, "plan_bytes": 4, "timing_cache_used": False}
            return {**facts, "pool_copy_bytes": 0}

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine, "tensorrt_version", lambda stack: VERSION)
            patch.setattr(machine, "require", lambda *a: machine.Here(VERSION, "sm_90", PLUGINS))
            patch.setattr(target, "run_worker", compiled)
            gpu = build.model_copy(update={"target": "tensorrt"})
            build_engine(folder / "graph", folder / "tensorrt", name="tiny", build=gpu)
        build_engine(folder / "graph", folder / "torch", name="tiny", build=build)
        made[key] = Case(folder / "tensorrt", folder / "torch", folder / "graph")
        return made[key]

    return case


def twins(case: Case, **options: Any) -> tuple[TensorrtExecutor, TorchExecutor, Simulation, HostDevice]:
    executor, simulation, hardware = case.executor(**options)
    return executor, TorchExecutor(case.torch, lowered=False), simulation, hardware


def same(mine: Executor, theirs: Executor, batch: StepBatch) -> None:
    got, wanted = torch.as_tensor(mine.execute(batch)).clone(), torch.as_tensor(theirs.execute(batch))
    assert got.shape == wanted.shape == (len(batch.logit_indices), theirs.vocab_size)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


PREFILL = make_batch([(range(3, 22), 0, [4, 1]), (range(40, 45), 0, [7])])
DECODE_STEP = make_batch([([9], 19, [4, 1]), ([11], 5, [7])])
MIXED_STEP = make_batch([([9], 20, [4, 1]), (range(60, 75), 0, [2]), ([3, 4], 6, [7])])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("graphs", [True, False])
def test_steps_agree_with_the_torch_executor(make: Make, version: str, graphs: bool) -> None:
    mine, theirs, simulation, hardware = twins(make(), version=version, cuda_graphs=graphs)
    simulation.runs.clear()
    for batch in (PREFILL, DECODE_STEP, MIXED_STEP):
        same(mine, theirs, batch)
    profiles = [profile for profile, _ in simulation.runs]
    assert profiles == [1, 0, 1], "decode steps run in the decode profile"
    shapes = simulation.runs[1][1]
    assert shapes["input_ids"] == (2,) and shapes["block_table"] == (2, 8), "a bucket of two, with full block tables"
    assert hardware.captured == (4 if graphs else 0) and hardware.replayed == (1 if graphs else 0)


def test_padding_changes_nothing(make: Make) -> None:
    """Three requests in a bucket of four: the same logits, and no block of a request is touched by the padding."""
    mine, theirs, simulation, _ = twins(make())
    first = make_batch([(range(3, 8), 0, [0]), (range(9, 12), 0, [1]), (range(20, 29), 0, [2])])
    same(mine, theirs, first)
    before = {name: pool.clone() for name, pool in mine._pools.items()}
    same(mine, theirs, make_batch([([5], 5, [0]), ([6], 3, [1]), ([7], 9, [2])]))
    assert simulation.runs[-1][1]["input_ids"] == (4,)
    for name, pool in mine._pools.items():
        changed = (pool != before[name]).flatten(1).any(1)
        assert set(torch.nonzero(changed).flatten().tolist()) <= {0, 1, 2, mine.num_blocks}


def test_warm_up_writes_padding_only(make: Make) -> None:
    mine, simulation, _ = make().executor()
    assert [shapes["input_ids"] for _, shapes in simulation.runs][::2] == [(1,), (2,), (4,), (6,)]
    for pool in mine._pools.values():
        assert not pool[: mine.num_blocks].any()


def test_steps_without_logits(make: Make) -> None:
    mine, theirs, _, _ = twins(make())
    same(mine, theirs, make_batch([(range(3, 19), 0, [4])], logits=[]))
    same(mine, theirs, make_batch([(range(3, 9), 16, [4, 2])]))


def test_block_copies(make: Make) -> None:
    mine, theirs, _, _ = twins(make())
    same(mine, theirs, make_batch([(range(3, 19), 0, [4])]))
    same(mine, theirs, make_batch([([9], 16, [9, 5])], copies=[(4, 9)]))
    with pytest.raises(ValueError, match="leave the pool"):
        mine.copy_blocks([(0, mine.num_blocks)])


def test_generations_of_the_engine_core(make: Make) -> None:
    """The same scheduler and sampler over both executors: the same tokens."""
    answers = []
    for executor in twins(make())[:2]:
        core = EngineCore(executor)
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        wanted = [
            core.add_request(Request(prompt_token_ids=list(range(3 + n, 20 + 3 * n)), params=params)) for n in range(5)
        ]
        tokens: dict[str, list[int]] = {name: [] for name in wanted}
        while core.has_unfinished():
            for output in core.step():
                assert output.error is None
                tokens[output.request_id] += [t for sample in output.samples for t in sample.token_ids]
        answers.append(list(tokens.values()))
    assert answers[0] == answers[1] and all(len(answer) == 12 for answer in answers[0])


def test_tree_engines(make: Make) -> None:
    """They prefill more than a tree is wide, decode in buckets with graphs, and verify trees."""
    case = make(tree_mask=True)
    mine, theirs, simulation, hardware = twins(case)
    assert hardware.captured == 4
    simulation.runs.clear()
    same(mine, theirs, make_batch([(range(3, 75), 0, [4, 1, 5, 9, 2])]))
    same(mine, theirs, make_batch([([9], 72, [4, 1, 5, 9, 2]), (range(3, 5), 0, [7])]))
    same(mine, theirs, make_batch([([9], 73, [4, 1, 5, 9, 2]), ([8], 2, [7])]))
    step = make_batch([([7, 8, 9], 74, [4, 1, 5, 9, 2])], logits=[0, 1, 2])
    mask = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=np.uint8)
    same(mine, theirs, dataclasses.replace(step, tree_mask=mask))
    assert [profile for profile, _ in simulation.runs] == [1, 1, 0, 1]
    assert [shapes["tree_mask"] for _, shapes in simulation.runs] == [(72, 1), (3, 1), (2, 1), (3, 3)]
    assert hardware.replayed == 1


def test_plugins_are_told_the_longest_query(make: Make) -> None:
    """By a shape, which is what they know before they launch: 1 in a decode step, so nothing for long queries runs."""
    mine, simulation, _ = make().executor()
    simulation.runs.clear()
    for batch in (PREFILL, DECODE_STEP, MIXED_STEP):
        mine.execute(batch)
    assert [shapes["longest_query"] for _, shapes in simulation.runs] == [(19,), (1,), (15,)]


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (4, 4), (3,)])
def test_tree_masks_that_do_not_fit_the_step(make: Make, shape: tuple[int, ...]) -> None:
    mine, theirs, _, _ = twins(make(tree_mask=True))
    step = dataclasses.replace(make_batch([([7, 8, 9], 9, [4])]), tree_mask=np.ones(shape, dtype=np.uint8))
    for executor in (mine, theirs):
        with pytest.raises(ValueError, match="tree mask of shape"):
            executor.execute(step)


def test_hidden_states(make: Make) -> None:
    mine, _, _ = make(hidden_states=(1,)).executor()
    mine.execute(PREFILL)
    assert mine.hidden_states("hidden_states_1", PREFILL.num_tokens).shape == (PREFILL.num_tokens, 64)


def test_memory_is_shared_by_all_contexts(make: Make) -> None:
    mine, simulation, _ = make().executor()
    given = set(simulation.trt.named("IExecutionContext.set_device_memory"))
    assert len(given) == 1 and next(iter(given))[1] == max(SCRATCH.values())
    strategies = {strategy.name for (strategy,) in simulation.trt.named("ICudaEngine.create_execution_context")}
    assert strategies == {"USER_MANAGED"}
    report = mine.describe()
    json.dumps(report)
    assert report["tested"] is False and report["program"]["decode_buckets"] == [1, 2, 4, 6]
    assert isinstance(mine, Executor)


def test_stripped_plans(make: Make) -> None:
    _, simulation, _ = make(TensorRt(strip_weights=True)).executor()
    calls = simulation.trt.order()
    (network,) = simulation.trt.named("OnnxParserRefitter.refit_from_file")[0]
    assert Path(network).is_file()
    assert calls.index("Refitter.refit_cuda_engine") < calls.index("ICudaEngine.create_execution_context")


@pytest.mark.parametrize("version", VERSIONS)
def test_streamed_weights_get_what_the_buffers_leave(make: Make, version: str) -> None:
    """The order that NvInferRuntime.h wants: every buffer, then the budget, then contexts; no graph is captured."""
    case = make(TensorRt(weight_streaming=True))
    mine, simulation, hardware = case.executor(version)
    budgets = [budget for (budget,) in simulation.trt.named("ICudaEngine.weight_streaming_budget_v2")]
    assert budgets == [0, MEMORY - hardware.allocated] and budgets[-1] < STREAMABLE
    calls = simulation.trt.order()
    last = max(i for i, call in enumerate(calls) if call == "ICudaEngine.weight_streaming_budget_v2")
    assert last < calls.index("ICudaEngine.create_execution_context")
    (given,) = set(simulation.trt.named("IExecutionContext.set_device_memory"))
    assert given[1] == max(SCRATCH.values()) + STREAMING_SCRATCH
    assert hardware.captured == 0 and not mine.cuda_graphs and not mine.describe()["program"]["cuda_graphs"]
    theirs = TorchExecutor(case.torch, lowered=False)
    for batch in (PREFILL, DECODE_STEP):
        same(mine, theirs, batch)
    assert hardware.replayed == 0 and simulation.runs[-1][0] == 0


def test_weights_that_do_not_fit_are_refused(make: Make) -> None:
    case = make(TensorRt(weight_streaming=True))
    engine = read_tensorrt_engine(case.tensorrt)
    hardware = HostDevice()
    simulation = simulate(engine, case.graph, hardware)
    simulation.trt.answers["ICudaEngine.get_weight_streaming_automatic_budget"] = lambda this: STREAMABLE
    with pytest.raises(ForgeError, match=r"TF-RUN-116.*budget"):
        TensorrtExecutor(engine, simulation.trt, hardware, PLUGINS)


def test_who_steps_enters_the_device(make: Make) -> None:
    """CUDA's current device is a thread's: a server loads in one thread and steps in another."""
    mine, _, hardware = make().executor()
    thread = threading.Thread(target=mine.execute, args=(PREFILL,))
    thread.start()
    thread.join()
    assert hardware.entered[-1] == thread.ident


def test_close_releases_everything(make: Make) -> None:
    mine, simulation, hardware = make().executor()
    mine.execute(DECODE_STEP)
    contexts = list(simulation.contexts)
    assert hardware.allocated and len(contexts) == 5
    del contexts
    mine.close()
    mine.close()
    assert hardware.allocated == 0 and not simulation.contexts and hardware.released == 1
    with pytest.raises(RuntimeError, match="closed"):
        mine.execute(DECODE_STEP)


# --- Refusals -----------------------------------------------------------------------------------------------


def test_a_plan_that_is_not_taken(make: Make) -> None:
    engine = read_tensorrt_engine(make().tensorrt)
    for change in (
        {"Runtime.deserialize_cuda_engine": lambda this, plan: None},
        {"ICudaEngine.num_optimization_profiles": lambda this: 1},
        {"ICudaEngine.num_io_tensors": lambda this: 3},
        {"IExecutionContext.set_optimization_profile_async": lambda this, index, stream: False},
    ):
        hardware = HostDevice()
        simulation = simulate(engine, make().graph, hardware)
        simulation.trt.answers.update(change)
        with pytest.raises(ForgeError) as caught:
            TensorrtExecutor(engine, simulation.trt, hardware, PLUGINS)
        assert caught.value.code == "TF-RUN-115"


def test_steps_that_tensorrt_refuses(make: Make) -> None:
    mine, simulation, _ = make().executor()
    simulation.refuse = "input_ids"
    with pytest.raises(RuntimeError, match="refused input_ids"):
        mine.execute(PREFILL)
    simulation.refuse = "execute"
    with pytest.raises(RuntimeError, match="refused the step"):
        mine.execute(DECODE_STEP)


def test_batches_over_the_limits(make: Make) -> None:
    mine, _, _ = make().executor()
    for batch in (
        make_batch([(range(3, 90), 0, [0])]),
        make_batch([([3], 0, [n]) for n in range(7)]),
        make_batch([([600], 0, [0])]),
    ):
        with pytest.raises(ValueError):
            mine.execute(batch)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tensorrt": "10.16.1.11"}, "TF-RUN-111"),
        ({"architecture": "sm_89"}, "TF-RUN-112"),
        ({"plugins": dataclasses.replace(PLUGINS, abi="f" * 16)}, "TF-RUN-113"),
        ({"plugins": dataclasses.replace(PLUGINS, kernels={"architectures": "80-real,100-real"})}, "TF-OPS-205"),
        ({"plugins": dataclasses.replace(PLUGINS, kernels={"architectures": "80-real,90-real"})}, None),
        ({}, None),
        ({"tensorrt": f"{VERSION}.post1"}, None),
    ],
)
def test_stamps(make: Make, changes: dict[str, Any], code: str | None) -> None:
    engine = read_tensorrt_engine(make().tensorrt)
    here: dict[str, Any] = {"tensorrt": VERSION, "architecture": "sm_90", "plugins": PLUGINS} | changes
    if code is None:
        check_loadable(engine, **here)
        return
    with pytest.raises(ForgeError) as caught:
        check_loadable(engine, **here)
    assert caught.value.code == code and caught.value.remedies and len(caught.value.numbers) >= 2


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("version", 9, "TF-RUN-002"),
        ("target", "torch", "TF-RUN-002"),
        ("ops_version", 3, "TF-RUN-003"),
        ("tensorrt", {}, "TF-RUN-001"),
        ("limits", None, "TF-RUN-001"),
        ("vocab_size", -1, "TF-RUN-001"),
    ],
)
def test_directories_that_are_no_engine(make: Make, tmp_path: Path, key: str, value: Any, code: str) -> None:
    raw = json.loads((make().tensorrt / "engine.json").read_text())
    (tmp_path / "engine.json").write_text(json.dumps(raw | {key: value}))
    (tmp_path / "engine.plan").write_bytes(b"plan")
    with pytest.raises(ForgeError) as caught:
        read_tensorrt_engine(tmp_path)
    assert caught.value.code == code


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON document; of lists the first and the last."""
    yield at
    entries = value.items() if isinstance(value, dict) else {0: value[0], len(value) - 1: value[-1]}.items() if (
        isinstance(value, list) and value) else ()  # fmt: skip
    for key, below in entries:
        yield from places(below, (*at, key))


def test_any_damage_of_engine_json_is_refused_or_harmless(make: Make, tmp_path: Path) -> None:
    """Whatever stands at any place: a coded refusal, or an executor that loads as if it stood there from the first."""
    case = make()
    whole = json.loads((case.tensorrt / "engine.json").read_text())
    known = read_tensorrt_engine(case.tensorrt)
    (tmp_path / "engine.plan").write_bytes(b"plan")
    refused = 0
    # one file and one linear stand for all
    whole["sha256"], whole["linears"] = dict([*whole["sha256"].items()][:1]), whole["linears"][:1]
    for at in places({key: value for key, value in whole.items() if key != "memory_plan"}):
        for value in ODD:
            text = json.dumps(changed(whole, at, value))
            (tmp_path / "engine.json").write_text(text, encoding="utf-8", errors="surrogatepass")
            try:
                engine = read_tensorrt_engine(tmp_path)
                check_loadable(engine, tensorrt=VERSION, architecture="sm_90", plugins=PLUGINS)
                if at[:2] in (("tensorrt", "inputs"), ("tensorrt", "sizes"), ("tensorrt", "decode_buckets")):
                    hardware = HostDevice()
                    simulation = simulate(known, case.graph, hardware)
                    TensorrtExecutor(engine, simulation.trt, hardware, PLUGINS)
            except ForgeError:
                refused += 1
    assert refused > 700


def test_a_plan_that_is_missing_or_elsewhere(make: Make, tmp_path: Path) -> None:
    raw = json.loads((make().tensorrt / "engine.json").read_text())
    raw["tensorrt"]["plan"] = "../../etc/passwd"
    (tmp_path / "engine.json").write_text(json.dumps(raw))
    with pytest.raises(ForgeError, match=r"TF-RUN-001.*passwd is missing"):
        read_tensorrt_engine(tmp_path)


def test_loading_where_tensorrt_is_missing(make: Make) -> None:
    """Engine.load goes by the engine's target and ends with exit code 3."""
    if machine.tensorrt_version(None) is not None:
        pytest.skip("TensorRT is installed here")
    with pytest.raises(ForgeError) as caught:
        Engine.load(make().tensorrt)
    assert caught.value.code == "TF-RUN-110" and caught.value.exit_code == 3


# --- Padding ------------------------------------------------------------------------------------------------


def test_which_steps_are_decodes() -> None:
    assert is_decode(DECODE_STEP) and not is_decode(PREFILL) and not is_decode(MIXED_STEP)
    assert not is_decode(dataclasses.replace(DECODE_STEP, logit_indices=np.array([1, 0])))
    assert not is_decode(dataclasses.replace(DECODE_STEP, tree_mask=np.ones((2, 1), dtype=np.uint8)))
    assert [bucket_of(n, (1, 2, 4, 6)) for n in (1, 3, 6, 7)] == [1, 4, 6, None]


@pytest.mark.parametrize("bucket", [2, 40])
def test_padding_rows_have_slots_of_their_own(bucket: int) -> None:
    padded = pad(DECODE_STEP, bucket, columns=5, first_block=100, block_size=16)
    slots = {
        (int(table[position // 16]), position % 16)
        for table, position in zip(padded.block_table, padded.positions.tolist(), strict=True)
    }
    assert len(slots) == bucket and (padded.sequence_lengths == padded.positions + 1).all()
    assert padded.block_table.shape == (bucket, 5)
    assert int(padded.block_table[2:, 0].max(initial=100)) <= 100 + -(-bucket // 16)
    assert (padded.block_table[:2, :2] == DECODE_STEP.block_table[:, :2]).all()


def test_profiles_are_the_executors(make: Make) -> None:
    engine: TensorrtEngine = read_tensorrt_engine(make().tensorrt)
    assert engine.info.raw["tensorrt"]["profiles"] == [DECODE, MIXED] and engine.stamp.decode_buckets == [1, 2, 4, 6]
    assert engine.stamp.sizes.padding_blocks == 1 and engine.stamp.sizes.table == 8

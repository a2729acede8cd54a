"""Front of the ``tensorrt`` target: what must be there, the engine directory, and what engine.json stamps.

The directory::

    engine.json        limits, KV pool, profiles, stamps (TensorRT, GPU architecture, plugin library)
    engine.plan        TensorRT's plan
    build.log          what TensorRT said
    tokenizer.json …   what serving reads
    network.onnx, *.safetensors   when the plan leaves the weights out: they are put back at load
    draft/             the same again of what drafts (an EAGLE-3 head brings its map of tokens in model.safetensors)

Policy: everything that can be refused without TensorRT is refused first; then what the machine lacks ends the build
with exit code 3, naming what to install and the container that has it.

The KV pools are updated in place because the executor binds a pool and its output to one address, not because
TensorRT is told so: it may insert copies for a declared alias (NvInferRuntime.h, getAliasedInput), and some versions
reject such engines. Whether a plan keeps copies is asked of the plan; if it does, the other way is built too, and the
one with fewer copies is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from builder.files import content_files, copy_directory, copy_file
from builder.graphs.info import GRAPH_FILE, INFO_FILE, GraphInfo
from builder.memory import MemoryPlan
from builder.special_tokens import special_tokens
from builder.targets.parts import check_draft, check_limits, hash_files, write_engines
from builder.targets.record import ENGINE_FILE, write_engine
from builder.targets.tensorrt import machine
from builder.targets.tensorrt.lowering import Network, lower
from builder.targets.tensorrt.process import run_worker
from builder.targets.tensorrt.profiles import DECODE, MIXED, Sizes, decode_buckets, profile_shapes
from builder.targets.tensorrt.session import Spec
from builder.targets.tensorrt.versions import missing_operators
from trtforge.drafting.conversion import stored_part, write_weights
from trtforge.drafting.record import DRAFT_DIR, SpeculationRecord
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.ground.safetensors_header import WEIGHTS_NAME, read_headers
from trtforge.machine.gpus import free_gpu_memory
from trtforge.native.ops import OPS_VERSION
from trtforge.native.plugin_library import PluginLibrary
from trtforge.recipe.schema import Build, Limits
from trtforge.targets.record import ENGINE_VERSION
from trtforge.targets.tensorrt import TENSORRT

NAME = TENSORRT.name
PLAN_FILE = "engine.plan"
LOG_FILE = "build.log"
NETWORK_FILE = "network.onnx"
#: files of an engine that two builds of the same inputs need not agree on: kernels are chosen by measured times
MEASURED = (PLAN_FILE, LOG_FILE, ENGINE_FILE, *(f"{DRAFT_DIR}/{name}" for name in (PLAN_FILE, LOG_FILE, ENGINE_FILE)))
_SPEC_FILE = "spec.json"


def build_engine(
    graph_dir: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    speculation: SpeculationRecord | None = None,
    stack: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compile the engine directory on this machine's GPU and return what engine.json holds.

    Args:
        graph_dir: what :func:`builder.graphs.build.build_graph` wrote.
        speculation: what the engine drafts by; None: nothing.
        stack: a row of the stack table; its TensorRT must be the installed one. None: any supported version.

    Raises:
        EnvironmentLacks: ``TF-BLD-100`` no TensorRT, ``TF-BLD-101`` no GPU, ``TF-OPS-201`` no plugin library.
        ForgeError: ``TF-BLD-010`` … ``015`` memory and limits, ``TF-BLD-102`` another TensorRT, ``TF-BLD-103``
            another architecture, ``TF-BLD-104``/``105`` a graph without kernels, ``TF-BLD-107`` … ``109`` the
            compilation, ``TF-BLD-123`` the draft is another target's, ``TF-OPS-202`` an unusable plugin library.
    """
    graph_dir, out = Path(graph_dir), Path(out)
    progress = progress or SilentProgress()
    found = machine.tensorrt_version(stack)
    missing = missing_operators(found or str(machine.newest_version()))
    tokens = 0 if speculation is None else speculation.most_tokens
    model, draft = _Model.read(graph_dir, build, missing, tokens, progress), None
    if speculation is not None and speculation.draft is not None:
        draft = _Model.read(graph_dir / speculation.draft, build, missing, 0, progress)
        check_draft(model.graph, draft.graph)
    here = machine.require(found, build.architectures, stack)
    return write_engines(
        replace(model, here=here),
        None if draft is None else replace(draft, here=here),
        out,
        name=name,
        build=build,
        speculation=speculation,
        free_bytes=free_gpu_memory,
    )


@dataclass(frozen=True)
class _Model:
    """One graph as it will be compiled: the engine's own, or the one that drafts."""

    directory: Path
    graph: GraphInfo
    limits: Limits
    build: Build
    missing: frozenset[str]
    draft_tokens: int
    network: Network
    weight_bytes: int
    progress: Progress
    #: the machine that compiles; known before anything is written
    here: machine.Here | None = None

    @classmethod
    def read(
        cls, directory: Path, build: Build, missing: frozenset[str], draft_tokens: int, progress: Progress
    ) -> _Model:
        """The graph in ``directory``, held against the limits and lowered; errors as :func:`build_engine`."""
        graph = GraphInfo.read(directory)
        limits = check_limits(graph, build, target=NAME)
        weights = sum(info.nbytes for info in read_headers(directory).values())
        network = lower(directory, missing)
        return cls(directory, graph, limits, build, missing, draft_tokens, network, weights, progress)

    def write(self, out: Path, facts: dict[str, Any], plan: MemoryPlan, hashes: Mapping[str, str]) -> dict[str, Any]:
        """Compile the plan, write engine.json and return it; ``hashes`` are those of files in sub-folders."""
        build, here, progress = self.build, self.here, self.progress
        assert here is not None
        graph, network = self.graph, self.network
        sizes = Sizes.of(
            self.limits,
            block_size=plan.block_size,
            num_blocks=plan.num_blocks,
            tree=graph.tree_mask,
            draft_tokens=self.draft_tokens,
        )
        out.mkdir(parents=True, exist_ok=True)
        declared = partial(lower, self.directory, self.missing, aliased=True)
        built = _compile(self.directory, out, network, declared, sizes, build, here, progress)
        _copy_what_serving_reads(self.directory, out, network, build.tensorrt.strip_weights, progress)
        engine: dict[str, Any] = {
            "version": ENGINE_VERSION,
            "target": NAME,
            **facts,
            "linears": [
                {"name": item.name, "shape": list(item.shape), "stored": item.format, "group_size": item.group_size}
                for item in graph.linears
            ],
            "ops_version": OPS_VERSION,
            "tensorrt": {
                "version": built["tensorrt"],
                "gpu_architecture": here.architecture,
                "plugins": here.plugins.stamp(),
                "plan": PLAN_FILE,
                "inputs": network.inputs,
                "outputs": network.outputs,
                "sizes": asdict(sizes),
                "profiles": [DECODE, MIXED],
                "decode_buckets": list(decode_buckets(sizes.batch)),
                "spelled_out": network.spelled_out,
                "options": build.tensorrt.model_dump(),
                "aliased_io": built["aliased_io"],
                "pool_copy_bytes": built["pool_copy_bytes"],
                "layers": built["layers"],
                "plan_bytes": built["plan_bytes"],
            },
            **special_tokens(self.directory),
            "sha256": {**hash_files(out, frozenset({ENGINE_FILE, LOG_FILE}), progress), **hashes},
        }
        return write_engine(out, engine)


def make_spec(
    graph_dir: Path, out: Path, network: Network, sizes: Sizes, build: Build, plugins: Path, timing_cache: Path
) -> Spec:
    """What the worker is told; the lowered model is written into ``out``."""
    (out / NETWORK_FILE).write_bytes(network.model)
    profiles = [
        {"name": profile, "shapes": profile_shapes(network.inputs, sizes, profile)} for profile in (DECODE, MIXED)
    ]
    options = build.tensorrt
    return Spec(
        model=str(out / NETWORK_FILE),
        weights=str(graph_dir / GRAPH_FILE),
        plugins=str(plugins),
        plan=str(out / PLAN_FILE),
        log=str(out / LOG_FILE),
        timing_cache=str(timing_cache),
        inputs=network.inputs,
        outputs=network.outputs,
        profiles=profiles,
        optimization_level=options.optimization_level,
        workspace=options.workspace,
        strip_weights=options.strip_weights,
        refit=options.refit,
        weight_streaming=options.weight_streaming,
    )


def _compile(
    graph_dir: Path,
    out: Path,
    network: Network,
    declared: Callable[[], Network],
    sizes: Sizes,
    build: Build,
    here: machine.Here,
    progress: Progress,
) -> dict[str, Any]:
    """Build the plan; facts of it. ``declared`` lowers the network whose plugins declare their pools in place."""
    cache = machine.timing_cache_path(here)
    spec = make_spec(graph_dir, out, network, sizes, build, here.plugins.path, cache)
    try:
        facts = {**run_worker(spec, out / _SPEC_FILE, progress), "aliased_io": False}
        copies = facts["pool_copy_bytes"]
        if not copies:
            return facts
        progress.note(f"the plan copies {copies} bytes of KV pools a step; building once more, with the pools declared")
        other = out / f"{PLAN_FILE}.declared"
        Path(spec.model).write_bytes(declared().model)
        try:
            again = run_worker(replace(spec, plan=str(other), aliased_io=True), out / _SPEC_FILE, progress)
            better = again["pool_copy_bytes"] is not None and again["pool_copy_bytes"] < copies
            if better:
                other.replace(spec.plan)
                return {**again, "aliased_io": True}
            progress.note("that plan copies no less; the first one is kept")
        except ForgeError as error:
            progress.note(f"TensorRT does not build it ({error.code}); the first plan is kept")
        finally:
            other.unlink(missing_ok=True)
        Path(spec.model).write_bytes(network.model)
        return facts
    finally:
        (out / _SPEC_FILE).unlink(missing_ok=True)


def _copy_what_serving_reads(
    graph_dir: Path, out: Path, network: Network, weights_too: bool, progress: Progress
) -> None:
    """Tokenizer and configuration; the graph's weights only where they are put back at load."""
    if weights_too:
        copy_directory(graph_dir, out, exclude=frozenset({ENGINE_FILE, GRAPH_FILE}), progress=progress)
        return
    (out / NETWORK_FILE).unlink()
    headers = read_headers(graph_dir)
    if "d2t" in headers:  # no weight of the plan's: the runtime maps drafted tokens by it
        write_weights(out / WEIGHTS_NAME, {"d2t": stored_part(graph_dir, headers["d2t"])})
    for path in content_files(graph_dir, exclude=frozenset({ENGINE_FILE, GRAPH_FILE, INFO_FILE})):
        if path.suffix != ".safetensors":
            copy_file(path, out / path.name)


def key_facts() -> dict[str, Any]:
    """What of this machine decides the result beside the recipe; part of the build stage's key."""
    library: PluginLibrary | None = machine.library_or_none()
    return {
        "tensorrt": machine.tensorrt_version(None),
        "gpu": list(machine.gpu_architectures()),
        "plugins": None if library is None else library.sha256,
    }

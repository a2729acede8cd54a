"""Reads a ``tensorrt`` engine and refuses one that this machine cannot load, before TensorRT is asked.

Policy: a plan holds machine code of one architecture for one TensorRT, and calls our plugins by their fields. All
three are stamped in engine.json and compared here, each with its own code: TensorRT itself would answer with an
assertion, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from runtime.executors.base import ExecutorLimits
from runtime.executors.engine_dir import ENGINE_FILE, EngineInfo, garbled, read_engine
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.native.plugin_library import PluginLibrary
from trtforge.targets import DEFAULT
from trtforge.targets.tensorrt import TENSORRT, Input, Stamp, TensorrtRecord

NETWORK_FILE = "network.onnx"
_REBUILD = "build the engine again on this machine: trtforge run RECIPE --force build"


@dataclass(frozen=True)
class TensorrtEngine:
    """What a ``tensorrt`` engine directory states.

    Attributes:
        info: what every engine states; ``num_blocks`` are the scheduler's.
        stamp: TensorRT, GPU architecture and plugin library that it was built with, and what the plan is and takes.
    """

    info: EngineInfo
    stamp: Stamp

    @property
    def limits(self) -> ExecutorLimits:
        """What one step may ask for."""
        return self.info.limits

    @property
    def plan(self) -> Path:
        return self.info.directory / Path(self.stamp.plan).name

    @property
    def pools(self) -> list[Input]:
        """The inputs that are KV pools, in order of the layers."""
        return [value for value in self.stamp.inputs if value.name.startswith("kv_pool_")]

    @property
    def tree(self) -> bool:
        """Whether the network takes a tree mask."""
        return any(value.name == "tree_mask" for value in self.stamp.inputs)


def read_tensorrt_engine(directory: Path) -> TensorrtEngine:
    """Read ``engine.json`` of a ``tensorrt`` engine.

    Raises:
        ForgeError: as :func:`~runtime.executors.engine_dir.read_engine`.
    """
    info = read_engine(directory, TENSORRT)
    assert isinstance(info.record, TensorrtRecord)
    engine = TensorrtEngine(info, info.record.tensorrt)
    try:
        Version(engine.stamp.version)
        _check_sizes(engine)
        if not engine.plan.is_file():
            raise ValueError(f"{engine.plan.name} is missing")
    except (OSError, ValueError) as error:
        raise garbled(directory / ENGINE_FILE, error) from error
    return engine


def _check_sizes(engine: TensorrtEngine) -> None:
    """Raise for sizes with which a step of the limits, or its padding, would leave a buffer or a pool."""
    info, limits, sizes = engine.info, engine.limits, engine.stamp.sizes
    verified = 1 if info.speculation is None else 1 + info.speculation.most_tokens
    needed = {
        "table": (sizes.table, -(-limits.max_seq_len // info.record.kv_cache.block_size)),
        "padding_blocks": (sizes.padding_blocks, -(-limits.max_batch_size // info.record.kv_cache.block_size)),
        "rows": (sizes.rows, min(limits.max_batch_size * verified, limits.max_num_tokens)),
    }
    short = [f"sizes.{name} is {has}, {wants} are needed" for name, (has, wants) in needed.items() if has < wants]
    buckets, largest = engine.stamp.decode_buckets, limits.max_batch_size
    if not buckets or buckets != sorted(set(buckets)) or buckets[0] < 1 or buckets[-1] != largest:
        short.append(f"decode_buckets {buckets} do not rise to max_batch_size {largest}")
    for value in engine.pools:
        if len(value.shape) != 5 or value.shape[3] != info.record.kv_cache.block_size:
            short.append(f"{value.name} has shape {value.shape}, with blocks of {info.record.kv_cache.block_size}")
    if short:
        raise ValueError("; ".join(short))


def check_loadable(engine: TensorrtEngine, *, tensorrt: str, architecture: str, plugins: PluginLibrary) -> None:
    """Hold the stamps against what is loaded here.

    Raises:
        ForgeError: ``TF-RUN-111`` another TensorRT, ``TF-RUN-112`` another architecture, ``TF-RUN-113`` plugins of
            another ABI, ``TF-OPS-205`` plugins without kernels for the GPU.
    """
    stamp, asked = engine.stamp, str(engine.info.directory)
    # pip's .postN is another packaging of the same libraries
    if Version(tensorrt).base_version != Version(stamp.version).base_version:
        raise ForgeError(
            "TF-RUN-111",
            f"the engine needs TensorRT {stamp.version}; {tensorrt} is loaded here",
            asked=asked,
            numbers={"engine": stamp.version, "loaded": tensorrt},
            why="a plan loads only under the TensorRT that compiled it",
            remedies=[f"pip install tensorrt=={stamp.version}", _REBUILD],
        )
    if architecture != stamp.gpu_architecture:
        raise ForgeError(
            "TF-RUN-112",
            f"the engine holds code for {stamp.gpu_architecture}; this GPU is {architecture}",
            asked=asked,
            numbers={"engine": stamp.gpu_architecture, "here": architecture},
            why="a plan is compiled for the GPU that it was built on",
            remedies=[_REBUILD, f"serve on a machine with {stamp.gpu_architecture}"],
        )
    if plugins.abi != stamp.plugins.abi:
        raise ForgeError(
            "TF-RUN-113",
            f"the engine needs plugins of ABI {stamp.plugins.abi}; {plugins.path.name} has {plugins.abi}",
            asked=asked,
            numbers={
                "engine": stamp.plugins.abi,
                "library": plugins.abi,
                "engine_version": stamp.plugins.version,
                "library_version": plugins.version,
            },
            why="the plan keeps the plugins' fields; a library with other ones would read them wrong",
            remedies=[f"install trtforge {stamp.plugins.version}", _REBUILD],
        )
    plugins.require_kernels(architecture)


def lacks_tensorrt(error: str) -> EnvironmentLacks:
    """TensorRT's package or its libraries do not load."""
    return EnvironmentLacks(
        "TF-RUN-110",
        f"TensorRT does not load: {error}",
        asked="an engine of target tensorrt",
        why="the plan runs under NVIDIA's runtime, which is not part of trtforge",
        remedies=["pip install the TensorRT that the engine was built with", "trtforge stack list names the container"],
    )


def lacks_gpu(reason: str) -> EnvironmentLacks:
    """No GPU, no driver, or a torch without CUDA."""
    return EnvironmentLacks(
        "TF-RUN-114",
        f"no CUDA device can be used: {reason}",
        asked="an engine of target tensorrt",
        why="its plan runs on the GPU that it was built on; torch owns the memory",
        remedies=[
            "run on a machine with an NVIDIA GPU and a CUDA build of torch",
            f"build.target: {DEFAULT.name} makes an engine that runs on a CPU",
        ],
    )


def plan_refused(directory: Path, messages: list[str]) -> ForgeError:
    """TensorRT does not take the plan, or it is not the network that engine.json describes."""
    return ForgeError(
        "TF-RUN-115",
        f"TensorRT does not load the plan: {messages[0] if messages else 'it gave no reason'}",
        asked=str(directory),
        numbers={"messages": messages},
        why="a damaged file, another GPU or another TensorRT are what this is most often",
        remedies=["run `trtforge verify` on the bundle", _REBUILD],
    )


def no_memory(what: str, nbytes: int, why: str) -> ForgeError:
    """Pools or the plan's own memory do not fit the GPU."""
    return ForgeError(
        "TF-RUN-116",
        f"{what} of {nbytes} bytes cannot be allocated on the GPU",
        asked=what,
        numbers={"bytes": nbytes},
        why=why,
        remedies=["give a smaller num_blocks", "build with a smaller build.kv_cache.memory or smaller build.limits"],
    )

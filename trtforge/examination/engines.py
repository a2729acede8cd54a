"""The engines' part: driver, CUDA, TensorRT, TensorRT-LLM, each asked for what really loads."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from trtforge.examination.items import PLUGINS, Item
from trtforge.ground.errors import ForgeError
from trtforge.ground.units import format_size
from trtforge.machine.gpus import Gpu
from trtforge.machine.record import Machine
from trtforge.machine.software import tool_versions
from trtforge.native.plugin_library import BUILD, plugin_library
from trtforge.stack.check import fits
from trtforge.stack.probe import Loaded, probe
from trtforge.tables import Component, StackTable
from trtforge.targets import names
from trtforge.targets.rtx import RTX
from trtforge.targets.tensorrt import TENSORRT

_TRTLLM = names(lambda target: target.tensorrt_llm)
_TRTLLM_BUILD = names(lambda target: target.trtllm_build)
_PLANS = names(lambda target: target.has_plan)
#: where NVIDIA's containers keep the backend that loads TensorRT-LLM engines
_BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")
Ask = Callable[[Component], Loaded]


def drivers(machine: Machine, table: StackTable, ask: Ask = probe) -> list[Item]:
    """The driver and the GPUs that it shows; one more item for each newer driver that some targets' stacks need."""
    builds, runs = _PLANS, names(lambda target: target.needs_gpu)
    rules = {target: rule for target in runs if (row := table.newest(target)) and (rule := row.version_of("driver"))}
    found = ask(Component(name="driver", version="", probe="driver"))
    if found.version is None:
        remedy = f"install the NVIDIA driver ({_by_rule(rules)}), or use a machine with a GPU"
        return [Item("NVIDIA driver", "missing", machine.no_gpus or "no driver answers", builds, runs, remedy)]
    if not machine.gpus:
        remedy = "docker run --gpus all, or CUDA_VISIBLE_DEVICES"
        detail = f"{found.version}, and {machine.no_gpus or 'no GPU is visible'}"
        return [Item("NVIDIA driver", "missing", detail, builds, runs, remedy)]
    shown = ", ".join(f"{gpu.name} {format_size(gpu.memory)} {gpu.architecture}" for gpu in machine.gpus)
    items = [Item("NVIDIA driver", "ok", f"{found.version}: {shown}", builds, runs)]
    for rule in sorted(set(rules.values())):
        if not fits(rule, found.version):
            of = tuple(target for target, wanted in rules.items() if wanted == rule)
            detail = f"{found.version}; the stacks of {', '.join(of)} need {rule}"
            built = tuple(target for target in builds if target in of)
            items.append(Item(f"driver {rule}", "missing", detail, built, of, f"install a driver {rule}"))
    return items


def _by_rule(rules: Mapping[str, str]) -> str:
    """Which driver which targets need: ``580 or later for tensorrt``."""
    of: dict[str, list[str]] = {}
    for target, rule in rules.items():
        of.setdefault(rule, []).append(target)
    worded = {rule: f"{rule[2:]} or later" if rule[:2] == ">=" else rule for rule in of}
    return "; ".join(f"{worded[rule]} for {', '.join(of[rule])}" for rule in sorted(of))


def cuda(ask: Ask = probe) -> Item:
    """The CUDA runtime that loads."""
    found = ask(Component(name="CUDA", version="", probe="cudart"))
    if found.version is None:
        remedy = "pip install nvidia-cuda-runtime-cu12, or the stack's container"
        return Item("CUDA runtime", "missing", "libcudart does not load", PLUGINS, _TRTLLM, remedy)
    return Item("CUDA runtime", "ok", f"{found.version} ({found.where})", PLUGINS, _TRTLLM)


def tensorrt(table: StackTable, ask: Ask = probe) -> Item:
    """TensorRT as it loads (never what pip says): an engine runs only under the release that built it."""
    builds, runs = _PLANS, _PLANS
    found = ask(Component(name="TensorRT", version="", probe="tensorrt", distribution="tensorrt"))
    wanted = {row.name: version for row in table.rows if (version := row.version_of("TensorRT"))}
    if found.version is None:
        pip = f"pip says {found.pip}, but libnvinfer does not load" if found.pip else "libnvinfer does not load"
        return Item("TensorRT", "missing", pip, builds, runs, _installing_tensorrt(table))
    fitting = [name for name, version in wanted.items() if version.split(".")[:2] == found.version.split(".")[:2]]
    detail = f"{found.version} loads ({found.where})"
    if found.pip and found.pip.split(".")[:2] != found.version.split(".")[:2]:
        detail += f", while pip says {found.pip}"
    if fitting:
        return Item("TensorRT", "ok", f"{detail}; of {', '.join(fitting)}", builds, runs)
    known = ", ".join(f"{version} ({name})" for name, version in wanted.items())
    return Item("TensorRT", "warning", f"{detail}; no stack has this release", builds, runs, f"one of {known}")


def _installing_tensorrt(table: StackTable) -> str:
    """The release of the stack; TensorRT-LLM brings the TensorRT that it was compiled against in its container."""
    row = table.newest(TENSORRT.name)
    version = row.version_of("TensorRT") if row is not None else None
    exact = "" if version is None else f"=={version}{'.*' if version.count('.') < 3 else ''}"
    return f"pip install 'tensorrt{exact}'; for TensorRT-LLM the stack's container"


def tensorrt_plugins(gpus: tuple[Gpu, ...] = ()) -> Item:
    """Our plugin library, which engines of target tensorrt keep their KV cache through, with kernels for ``gpus``."""
    both = PLUGINS
    try:
        library = plugin_library()
    except ForgeError as error:
        return Item("TensorRT plugins", "missing", error.message, both, both, error.remedies[0])
    for gpu in gpus:
        try:
            library.require_kernels(gpu.architecture)
        except ForgeError as error:
            return Item("TensorRT plugins", "missing", error.message, both, both, error.remedies[0])
    detail = f"ABI {library.abi}, headers of {library.tensorrt}, {library.path}"
    if library.checked:
        warning = f"{detail}: a checked build, slow and without CUDA graphs"
        return Item("TensorRT plugins", "warning", warning, both, both, BUILD)
    return Item("TensorRT plugins", "ok", detail, both, both)


def tensorrt_rtx() -> Item:
    """TensorRT for RTX, which builds without a GPU."""
    version = tool_versions(["tensorrt-rtx"])["tensorrt-rtx"]
    if version != "absent" and importlib.util.find_spec("tensorrt_rtx") is not None:
        return Item("tensorrt-rtx", "ok", version, (RTX.name,), (RTX.name,))
    return Item("tensorrt-rtx", "missing", "not installed", (RTX.name,), (RTX.name,), "pip install tensorrt-rtx")


def tensorrt_llm(table: StackTable, ask: Ask = probe) -> Item:
    """TensorRT-LLM as it imports: it builds the engines of one target and runs the checkpoints of the other."""
    builds, runs = _TRTLLM_BUILD, _TRTLLM
    found = ask(Component(name="TensorRT-LLM", version="", probe="tensorrt_llm", distribution="tensorrt-llm"))
    if found.version is None:
        pip = f"pip says {found.pip}, but it does not import" if found.pip else "not installed"
        newest = (table.newest(target) for target in _TRTLLM)
        containers = [row.container for row in newest if row is not None and row.container]
        return Item("TensorRT-LLM", "missing", pip, builds, runs, f"the stack's container ({', '.join(containers)})")
    rows = {row.name: version for row in table.rows if (version := row.version_of("TensorRT-LLM"))}
    release = found.version.split("rc")[0]
    fitting = [name for name, version in rows.items() if version.split("rc")[0] == release]
    if fitting:
        return Item("TensorRT-LLM", "ok", f"{found.version}; of {', '.join(fitting)}", builds, runs)
    known = ", ".join(f"{version} ({name})" for name, version in rows.items())
    return Item("TensorRT-LLM", "warning", f"{found.version}; no stack has it", builds, runs, f"one of {known}")


def triton_backend(backend: Path = _BACKEND) -> Item:
    """The C++ backend that serves TensorRT-LLM engines: it comes with NVIDIA's container only."""
    runs = _TRTLLM_BUILD
    if backend.is_dir():
        return Item("tensorrtllm backend", "ok", str(backend), (), runs)
    return Item(
        "tensorrtllm backend", "missing", f"{backend} does not exist", (), runs, "the stack's container brings it"
    )


def container_runtime() -> Item:
    """Docker or Podman with NVIDIA's toolkit, for the targets whose stack is a container."""
    engine = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    toolkit = shutil.which("nvidia-ctk") is not None
    if engine and toolkit:
        return Item("containers", "ok", f"{engine} with the NVIDIA Container Toolkit")
    if engine:
        return Item(
            "containers", "warning", f"{engine}, no NVIDIA Container Toolkit", remedy="install nvidia-container-toolkit"
        )
    return Item("containers", "warning", "neither docker nor podman is on PATH", remedy="install docker or podman")

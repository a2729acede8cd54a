"""The calls of TensorRT's builder, in order; runs in the worker's process with the real module.

Policy: the module ``trt`` is handed in, so the sequence can be held against recorded signatures. Every failure is a
:class:`BuildFailed` with what TensorRT said; the parent turns it into a coded refusal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder.targets.tensorrt.versions import network_flags, release

Report = Callable[[dict[str, Any]], None]

#: ONNX element types of network inputs -> TensorRT's
_TYPES = {
    "FLOAT": "FLOAT",
    "FLOAT16": "HALF",
    "BFLOAT16": "BF16",
    "FLOAT8E4M3FN": "FP8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
}


@dataclass(frozen=True)
class Spec:
    """Everything that a build needs, as JSON for the worker.

    Attributes:
        model: file of the lowered ONNX model.
        weights: the graph's own model file: external data are relative to its folder.
        plugins: the plugin library.
        plan, log: files that are written.
        timing_cache: file that is read when it exists and written afterwards.
        inputs: ``{"name", "type", "shape"}`` that the network must have, in order.
        outputs: names that it must have, in order.
        profiles: per profile its name and, for each dynamic input, smallest, optimal and largest shape.
        optimization_level: 0 (fast build) to 5.
        workspace: bytes of the builder's workspace pool; None: TensorRT's own limit.
        strip_weights: leave refittable weights out of the plan.
        refit: the plan can be given other weights later.
        weight_streaming: weights may stay in host memory.
        aliased_io: the network's plugins declare that they update the KV pools in place, which the builder must be
            told to allow.
    """

    model: str
    weights: str
    plugins: str
    plan: str
    log: str
    timing_cache: str
    inputs: list[dict[str, Any]]
    outputs: list[str]
    profiles: list[dict[str, Any]]
    optimization_level: int = 3
    workspace: int | None = None
    strip_weights: bool = False
    refit: bool = False
    weight_streaming: bool = False
    aliased_io: bool = False

    def write(self, path: Path) -> None:
        """Write the JSON that :meth:`read` reads."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Spec:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass
class BuildFailed(Exception):
    """TensorRT refused; ``step`` is where, ``messages`` what it said."""

    step: str
    messages: list[str] = field(default_factory=list)


def make_logger(trt: Any, path: Path, errors: list[str]) -> Any:
    """A logger that writes every message to ``path`` and keeps errors in ``errors``."""
    names = {
        trt.ILogger.Severity.INTERNAL_ERROR: "INTERNAL_ERROR",
        trt.ILogger.Severity.ERROR: "ERROR",
        trt.ILogger.Severity.WARNING: "WARNING",
        trt.ILogger.Severity.INFO: "INFO",
    }
    file = path.open("a", encoding="utf-8", buffering=1)

    class FileLogger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            name = names.get(severity)
            if name is None:  # verbose: a line for each tactic
                return
            file.write(f"{name}: {msg}\n")
            if "ERROR" in name:
                errors.append(msg)

    return FileLogger()


def make_monitor(trt: Any, report: Report) -> Any:
    """A progress monitor that reports phases and their steps."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            report({"event": "start", "phase": phase_name, "parent": parent_phase, "steps": int(num_steps)})

        def step_complete(self, phase_name: str, step: int) -> bool:
            report({"event": "step", "phase": phase_name, "step": int(step)})
            return True

        def phase_finish(self, phase_name: str) -> None:
            report({"event": "finish", "phase": phase_name})

    return Monitor()


def build_plan(trt: Any, spec: Spec, report: Report) -> dict[str, Any]:
    """Build and write the plan; facts of it.

    Raises:
        BuildFailed: a step that TensorRT refused.
    """
    errors: list[str] = []
    logger = make_logger(trt, Path(spec.log), errors)
    registry = trt.get_plugin_registry()
    if registry.load_library(spec.plugins) is None:
        raise BuildFailed("plugins", errors)
    builder = trt.Builder(logger)
    network = builder.create_network(network_flags(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(Path(spec.model).read_bytes(), path=spec.weights):
        raise BuildFailed("parse", [_parser_error(parser.get_error(i)) for i in range(parser.num_errors)] + errors)
    _check_interface(trt, network, spec)
    config = _configure(trt, builder, spec)
    cache = _timing_cache(config, Path(spec.timing_cache))
    for profile in spec.profiles:
        _add_profile(builder, config, profile, errors)
    monitor = make_monitor(trt, report)
    config.progress_monitor = monitor
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BuildFailed("build", errors)
    Path(spec.plan).write_bytes(memoryview(plan))
    _keep_timing_cache(config, Path(spec.timing_cache))
    facts = {
        "tensorrt": release(str(trt.__version__)),
        "layers": int(network.num_layers),
        "plan_bytes": int(plan.nbytes),
        "timing_cache_used": cache,
    }
    del parser, network, config, builder  # the plan is loaded once: what built it need not lie beside it
    return {**facts, "pool_copy_bytes": pool_copy_bytes(trt, logger, plan, spec)}


def pool_copy_bytes(trt: Any, logger: Any, plan: Any, spec: Spec) -> int | None:
    """Bytes that a decode step needs more when the KV pools are at their largest than when they are at their smallest.

    A plan that updates the pools where they lie needs none; one that TensorRT gave copies needs at least a layer's
    pool. None: the plan cannot be loaded beside what this process holds, or says nothing.
    """
    try:
        runtime = trt.Runtime(logger)
    except (RuntimeError, TypeError):  # the bindings' ways to say that none was made
        return None
    engine = runtime.deserialize_cuda_engine(memoryview(plan))
    context = engine and engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
    if not context or not context.set_optimization_profile_async(0, 0):
        return None
    needed = []
    for which in (0, 2):
        for name, shapes in spec.profiles[0]["shapes"].items():
            if not context.set_input_shape(name, tuple(shapes[which if name.startswith("kv_pool_") else 1])):
                return None
        needed.append(int(context.update_device_memory_size_for_shapes() or 0))
    return max(0, needed[1] - needed[0]) if all(needed) else None


def _parser_error(error: Any) -> str:
    return f"{error.node_operator()} {error.node_name()}: {error.desc()}"


def _check_interface(trt: Any, network: Any, spec: Spec) -> None:
    """The parsed network against the graph: names and types of inputs, names of outputs."""
    found = [network.get_input(i) for i in range(network.num_inputs)]
    wanted = {value["name"]: getattr(trt.DataType, _TYPES[value["type"]]) for value in spec.inputs}
    faults = [f"input {name} is missing" for name in wanted if name not in {tensor.name for tensor in found}]
    for tensor in found:
        if tensor.name not in wanted:
            faults.append(f"input {tensor.name} is not the graph's")
        elif tensor.dtype != wanted[tensor.name]:
            faults.append(f"input {tensor.name} is {tensor.dtype}, the graph says {wanted[tensor.name]}")
    outputs = [network.get_output(i).name for i in range(network.num_outputs)]
    faults += [f"output {name} is missing" for name in spec.outputs if name not in outputs]
    if faults:
        raise BuildFailed("interface", faults)


def _configure(trt: Any, builder: Any, spec: Spec) -> Any:
    config = builder.create_builder_config()
    config.builder_optimization_level = spec.optimization_level
    if spec.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, spec.workspace)
    if spec.aliased_io:
        # without it a build whose plugins declare an alias ends with error 4
        config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if spec.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
    if spec.refit:
        config.set_flag(trt.BuilderFlag.REFIT)
    elif spec.strip_weights:
        # the same weights come back: TensorRT may still choose kernels by their values
        config.set_flag(trt.BuilderFlag.REFIT_IDENTICAL)
    if spec.weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    return config


def _timing_cache(config: Any, path: Path) -> bool:
    """Give the builder the kept timings, or an empty cache; whether the kept ones were taken."""
    kept = path.read_bytes() if path.is_file() else b""
    taken = bool(config.set_timing_cache(config.create_timing_cache(kept), ignore_mismatch=False))
    if kept and not taken:  # another GPU's or version's: start anew
        config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
    return bool(kept) and taken


def _keep_timing_cache(config: Any, path: Path) -> None:
    cache = config.get_timing_cache()
    if cache is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{Path('/proc/self').resolve().name}.partial")
    partial.write_bytes(memoryview(cache.serialize()))
    partial.replace(path)


def _add_profile(builder: Any, config: Any, profile: dict[str, Any], errors: list[str]) -> None:
    made = builder.create_optimization_profile()
    for name, (low, best, high) in profile["shapes"].items():
        made.set_shape(name, tuple(low), tuple(best), tuple(high))
    if config.add_optimization_profile(made) < 0:
        raise BuildFailed("profile", [f"profile {profile['name']} is not valid", *errors])

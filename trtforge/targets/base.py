"""What an engine target is: the facts that every other part asks for instead of comparing names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtforge.targets.record import EngineRecord

#: who runs the engine: trtforge's own runtime, TensorRT for RTX inside an application, TensorRT-LLM's C++ runtime under
#: Triton's backend, or TensorRT-LLM's LLM API on PyTorch
Runtime = Literal["trtforge", "rtx", "trtllm-cpp", "trtllm-pytorch"]
#: where an engine is built: anywhere and for anything, on the GPU that it will run on, or for architectures by name
BuiltFor = Literal["any", "this-gpu", "named-gpus"]


@dataclass(frozen=True)
class NotRun:
    """Why a stage is left out, and which gates have no verdict for it."""

    reason: str
    gates: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"reason": self.reason, "gates": list(self.gates)}


@dataclass(frozen=True)
class Target:
    """An engine target.

    Attributes:
        name: ``build.target`` of a recipe and ``target`` of engine.json.
        folder: the package below ``builder/targets`` that builds and describes its engines.
        made_from: the ONNX graph that trtforge writes, or the quantized checkpoint.
        graph_mode: attention of the graph: over paged caches by trtforge's operators, or ``native`` over linear ones
            by ONNX's own; None where there is no graph.
        runtime: who runs the engine.
        needs_gpu: whether it runs on GPUs only; weights and caches then lie in their memory.
        built_for: where and for what it is built.
        compiled: whether its engines hold machine code for GPU architectures.
        cuda_plugins: whether its engines call trtforge's TensorRT plugins.
        one_rank: whether it runs in one process on one device.
        record: what its engine.json holds.
        layouts: layouts of Triton's repository that serve it, the one of a recipe that names none first; empty: no
            backend loads its engines.
        head_multiple: of which number its attention takes head sizes to be a multiple; None where that is not known.
        one_scale: whether linears that it multiplies as one have one FP8 scale (:mod:`quantize.one_scale`).
        one_kv_scale: whether keys and values share a scale as well.
        left_out: stages that do not run for it, each with the reason.
    """

    name: str
    folder: str
    made_from: Literal["graph", "checkpoint"]
    runtime: Runtime
    needs_gpu: bool
    built_for: BuiltFor
    compiled: bool
    record: type[EngineRecord]
    layouts: tuple[str, ...]
    graph_mode: Literal["paged", "native"] | None = None
    cuda_plugins: bool = False
    one_rank: bool = True
    head_multiple: int | None = None
    one_scale: bool = False
    one_kv_scale: bool = False
    left_out: Mapping[str, NotRun] = field(default_factory=dict)

    @property
    def from_graph(self) -> bool:
        """Whether it is made from the ONNX graph that trtforge writes."""
        return self.made_from == "graph"

    @property
    def runs_here(self) -> bool:
        """Whether the pipeline has a runner for it: parity, smoke and bench then look at the engine itself."""
        return self.runtime == "trtforge"

    @property
    def has_pool(self) -> bool:
        """Whether its engine has a paged KV pool whose size the recipe says; else an application owns linear caches."""
        return self.graph_mode != "native"

    @property
    def has_plan(self) -> bool:
        """Whether its engine is a plan of TensorRT, which loads only under the release that built it."""
        return self.compiled and self.built_for == "this-gpu"

    @property
    def tensorrt_llm(self) -> bool:
        """Whether TensorRT-LLM runs it."""
        return self.runtime in ("trtllm-cpp", "trtllm-pytorch")

    @property
    def trtllm_build(self) -> bool:
        """Whether ``trtllm-build`` compiles it, here or by the scripts that the build leaves."""
        return self.runtime == "trtllm-cpp"

    @property
    def llm_api(self) -> bool:
        """Whether TensorRT-LLM's LLM API loads the checkpoint on PyTorch, and nothing is compiled."""
        return self.runtime == "trtllm-pytorch"

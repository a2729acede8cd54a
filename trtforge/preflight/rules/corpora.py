"""K19: texts for calibration, evaluation and load must be there before hours are spent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import Remedy, by_hand
from trtforge.recipe.sources import names_file, path_beside
from trtforge.rules.sources import thread

BUILTIN_TEXTS = ("builtin:python-topics",)
#: the last four are the classes that drafts are measured on
BUILTIN_PROMPTS = (
    "builtin:mixed", "builtin:short", "builtin:chat", "builtin:code", "builtin:copy", "builtin:open"
)  # fmt: skip
#: repositories of the Hub that ask for an accepted licence (as their pages say)
GATED = ("meta-llama/", "google/gemma-", "lmsys/lmsys-chat-1m")


def _texts(facts: Facts) -> dict[str, tuple[str, int]]:
    """The corpora in use, by key: the text and the tokens that are taken from it."""
    quantize, perplexity = facts.recipe.quantize, facts.recipe.evals.perplexity
    result = {"evals.perplexity.corpus": (perplexity.corpus, perplexity.tokens)}
    if quantize.format != "none" or quantize.kv_cache != "none":
        calibration = quantize.calibration
        result["quantize.calibration.corpus"] = (calibration.corpus, calibration.samples * calibration.sequence_length)
    return result


def _builtin(key: str) -> str:
    return BUILTIN_PROMPTS[0] if key == "bench.prompts" else BUILTIN_TEXTS[0]


def _unknown(key: str, spec: str, known: tuple[str, ...]) -> Violation | None:
    scheme, colon, rest = spec.partition(":")
    if colon and rest and (scheme in ("file", "hf") or spec in known):
        return None
    near = nearest(spec if colon else f"builtin:{spec}", list(known))
    remedies: list[str | Remedy] = [f"{key}: {near}"] if near else [f"{key}: {name}" for name in known]
    remedies += by_hand(
        f"a text of your own: {key}: file:PATH", *([] if colon else [f"the data set of that name: {key}: hf:{spec}"])
    )
    return Violation(f"{key}: {spec} names no text", f"{key}: {spec}", {"builtin": list(known)}, remedies)


@rule("TF-K19-001", "a corpus that does not say what it is", thread("TL#5247"), waivable=False)
def known_corpus(facts: Facts) -> Iterator[Violation]:
    """A bare name would be looked up on a hub at run time, and fail there."""
    for key, (spec, _) in _texts(facts).items():
        found = _unknown(key, spec, BUILTIN_TEXTS)
        if found:
            yield found
    spec = facts.recipe.bench.prompts
    if not (names_file(spec) and spec != "file:") and spec not in BUILTIN_PROMPTS:
        near = nearest(spec, list(BUILTIN_PROMPTS))
        yield Violation(
            f"bench.prompts: {spec} names no prompts",
            facts.asked("bench.prompts"),
            {"builtin": list(BUILTIN_PROMPTS)},
            [
                f"bench.prompts: {near or BUILTIN_PROMPTS[0]}",
                *by_hand("prompts of your own, one a line: bench.prompts: file:PATH"),
            ],
        )


@rule("TF-K19-002", "a text file that is missing, empty or too short", waivable=False)
def files_suffice(facts: Facts) -> Iterator[Violation]:
    """A token is at least one byte, so the file's size bounds the tokens that it can give."""
    wanted = {key: item for key, item in _texts(facts).items() if names_file(item[0])}
    if names_file(facts.recipe.bench.prompts):
        wanted["bench.prompts"] = (facts.recipe.bench.prompts, 1)
    shared: dict[Path, int] = {}
    for spec, tokens in wanted.values():
        path = path_beside(spec, facts.directory)
        shared[path] = shared.get(path, 0) + tokens
    for key, (spec, tokens) in wanted.items():
        path = path_beside(spec, facts.directory)
        if not path.is_file():
            yield Violation(
                f"{key}: {path} is no file",
                f"{key}: {spec}",
                {"looked_at": str(path)},
                [*by_hand("paths are relative to the recipe: correct it"), f"{key}: {_builtin(key)}"],
            )
        elif path.stat().st_size < shared[path]:
            yield Violation(
                f"{key}: {path.name} has {path.stat().st_size} bytes for {shared[path]} tokens",
                f"{key}: {spec}",
                {"bytes": path.stat().st_size, "tokens_here": tokens, "tokens_of_all_roles": shared[path]},
                by_hand("a longer text", "fewer tokens, samples or a shorter sequence_length"),
            )


@rule("TF-K19-008", "a trace that cannot be replayed", waivable=False)
def trace_replays(facts: Facts) -> Iterator[Violation]:
    """It must lie beside the recipe, parse, and say when each request arrived."""
    asked = facts.recipe.bench.trace
    if asked is None:
        return
    from evals.speed.schedule import load_trace

    try:
        load_trace(asked, facts.directory)
    except ForgeError as error:
        yield Violation(
            f"{error.message}: {error.why}" if error.code == "TF-BEN-007" else error.message,
            f"bench.trace.file: {asked.file}",
            dict(error.numbers),
            [
                *by_hand("a trace beside the recipe, a line for each request with isl, osl and timestamp"),
                "bench.trace: null",
            ],
        )


@rule("TF-K19-003", "a data set of the hub while the machine is set offline", thread("TL#2537"), needs=("machine",))
def hub_reachable(facts: Facts) -> Iterator[Violation]:
    """HF_HUB_OFFLINE or HF_DATASETS_OFFLINE forbids the download."""
    if not facts.require_machine().offline:
        return
    for key, (spec, _) in _texts(facts).items():
        if spec.startswith("hf:"):
            yield Violation(
                f"{key}: {spec} must be downloaded, but the machine is set offline",
                f"{key}: {spec}",
                {"HF_HUB_OFFLINE or HF_DATASETS_OFFLINE": 1},
                [
                    f"{key}: {BUILTIN_TEXTS[0]}",
                    *by_hand(
                        f"a text of your own: {key}: file:PATH",
                        "unset the offline variables",
                        "waive this when it is cached",
                    ),
                ],
            )


@rule("TF-K19-004", "more tokens than the built-in text has", waivable=False)
def builtin_suffices(facts: Facts) -> Iterator[Violation]:
    """The built-in text is CPython's own documentation, shared without overlap between calibration and evaluation."""
    import importlib.util

    spec = importlib.util.find_spec("pydoc_data.topics")
    if spec is None or spec.origin is None:
        return
    size = Path(spec.origin).stat().st_size
    texts = {key: item for key, item in _texts(facts).items() if item[0] in BUILTIN_TEXTS}
    needed = sum(tokens for _, tokens in texts.values())
    if needed > size:
        yield Violation(
            f"{needed} tokens are asked of a built-in text of {size} bytes",
            ", ".join(f"{key}: {tokens} tokens" for key, (_, tokens) in texts.items()),
            {"needed_tokens": needed, "bytes": size},
            by_hand("fewer tokens or samples", *(f"a text of your own: {key}: file:PATH" for key in texts)),
        )


@rule("TF-K19-005", "a data set of the hub without the library that reads it", thread("TL#5247"), needs=("machine",))
def library_reads_hub(facts: Facts) -> Iterator[Violation]:
    """Data sets of the hub are read by the package datasets, which is an extra."""
    if "datasets" in facts.require_machine().versions:
        return
    for key, (spec, _) in _texts(facts).items():
        if spec.startswith("hf:"):
            yield Violation(
                f"{key}: {spec} needs the package datasets, which is not installed",
                f"{key}: {spec}",
                {"package": "datasets"},
                [
                    *by_hand("pip install datasets"),
                    f"{key}: {BUILTIN_TEXTS[0]}",
                    *by_hand(f"a text of your own: {key}: file:PATH"),
                ],
            )


@rule(
    "TF-K19-006",
    "a model of the hub that is not here while the machine is set offline",
    thread("TL#2537"),
    needs=("machine",),
)
def model_reachable(facts: Facts) -> Iterator[Violation]:
    """HF_HUB_OFFLINE forbids the download, and the cache does not hold the revision."""
    if facts.require_machine().offline and facts.source is not None and facts.source.absent:
        source = facts.recipe.model.source
        yield Violation(
            f"{source} is not in the Hugging Face cache, and the machine is set offline",
            f"model.source: {source}",
            {"HF_HUB_OFFLINE": 1},
            by_hand(
                f"huggingface-cli download {source.removeprefix('hf:').split('@')[0]} where there is a connection",
                "the directory of a copy as model.source",
                "unset HF_HUB_OFFLINE",
            ),
        )


@rule(
    "TF-K19-007",
    "a gated model or data set, and no token",
    "https://huggingface.co/docs/hub/models-gated",
    needs=("machine",),
    severity="warning",
)
def token_for_gated(facts: Facts) -> Iterator[Violation]:
    """The publisher shows it to accounts that accepted its licence; without a token the download ends with 401."""
    if facts.require_machine().hub_token:
        return
    wanted = {key: spec for key, (spec, _) in _texts(facts).items()}
    if facts.source is not None and facts.source.absent:
        wanted["model.source"] = facts.recipe.model.source
    for key, spec in wanted.items():
        if spec.startswith(tuple(f"hf:{prefix}" for prefix in GATED)):
            yield Violation(
                f"{key}: {spec} is gated, and no Hugging Face token is set",
                f"{key}: {spec}",
                {"gated": list(GATED)},
                by_hand("huggingface-cli login, after accepting the licence on its page", "export HF_TOKEN=…"),
            )

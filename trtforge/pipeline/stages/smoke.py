"""smoke: the real Triton server on the emitted repository answers as the engine does and survives its clients.

The checks' names and verdicts are deterministic; their details (counts of pieces, gauges) and the
server's log are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages import serving
from trtforge.pipeline.stages.common import execution_facts, write_json
from trtforge.pipeline.stages.engine_process import engine_of
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import GateResult, StageResult

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from launcher.health.recording import Recording
    from launcher.local import TritonServer
    from launcher.smoke import Check, Parting
    from runtime.offline import Engine
    from trtforge.ground.progress import Progress

SMOKE_FILE = "smoke.json"
HEALTH_FILE = "health.json"
EXPECTED_FILE = "expected.json"
PROMPTS = 8
MAX_TOKENS = 24
CLIENTS = 32
#: what an engine that drafts answers too: it goes on by copying what it has said
COPYING = "one two three four one two three four one two three four one two three"


@dataclass(frozen=True)
class Offline:
    """What the offline engine says, one request after the other: what every answer of the server is held against.

    Attributes:
        texts, tokens: the answers by prompt.
        prompts: each prompt in tokens.
        rows: logits float32 [tokens, V] that each answer was chosen by.
        activations: the type of the engine's activations.
        repeats_exactly: whether an answer is the same in every batch and with every draft.
        max_input_len, max_batch_size: the engine's limits.
        speculates: whether the engine drafts; these answers are made without.
    """

    texts: dict[str, str]
    tokens: dict[str, list[int]]
    prompts: dict[str, list[int]]
    rows: dict[str, npt.NDArray[np.float32]]
    activations: str
    repeats_exactly: bool
    max_input_len: int
    max_batch_size: int
    speculates: bool = False


def answer_offline(engine: Engine, progress: Progress, prompts: Sequence[str], max_tokens: int) -> Offline:
    """The engine's answers and the logits behind them, while there is an engine to ask."""
    from runtime.sampling.params import SamplingParams

    assert engine.tokenizer is not None
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    # one after the other: the answer of a request alone is what every batch is held against
    answers = {prompt: engine.generate(prompt, params, speculate=False)[0] for prompt in prompts}
    rows, encoded = {}, {}
    for prompt, answer in answers.items():
        ids = encoded[prompt] = engine.tokenizer.encode(prompt)
        # the last token is chosen and not fed; copied: the rest of the logits need not stay
        rows[prompt] = engine.logits([*ids, *answer.token_ids[:-1]])[len(ids) - 1 :].copy()
    described, limits = engine.executor.describe(), engine.core.limits
    return Offline(
        {prompt: answer.text for prompt, answer in answers.items()},
        {prompt: answer.token_ids for prompt, answer in answers.items()},
        encoded,
        rows,
        str(described["activations"]),
        engine.repeats_exactly,
        limits.max_input_len,
        limits.max_batch_size,
        engine.core.metrics.speculation is not None,
    )


class Partings:
    """Where an answer leaves the expected one; needs no engine beside the server's.

    Args:
        offline: the offline engine's answers with their logits.
        decode: tokens to text.
        noise: what parity measured.
    """

    def __init__(self, offline: Offline, decode: Callable[[Sequence[int]], str], noise: float) -> None:
        self._offline, self._decode, self._noise = offline, decode, noise

    def __call__(self, prompt: str, text: str) -> Parting:
        from launcher.smoke import Parting
        from runtime.determinism import parting

        rows = self._offline.rows[prompt]
        found = parting(
            self._offline.tokens[prompt],
            text,
            self._decode,
            lambda tokens: rows[len(tokens)],  # asked after prefixes of the expected answer only
            dtype=self._offline.activations,
            noise=self._noise,
        )
        if found is None:
            return Parting(False, "the tokens decode to the same text in another way")
        return Parting(found.near_tie, found.describe(self._decode))


def record_health(
    context: StageContext, server: TritonServer, offline: Offline, longest: int
) -> tuple[Recording | None, Check]:
    """What ``trtforge health --level deep`` holds a server of the bundle against; the server has answered nothing yet.

    The prompts are those with the longest answers: one that ends at once would prove little. There is no recording of
    a server that answers otherwise than the offline engine.

    Args:
        longest: tokens that the offline answers may have.
    """
    from launcher.health.record import record
    from launcher.health.recording import PROBES, TOKENS, positions
    from launcher.smoke import Check

    noise = float(context.inputs["parity"].summary["noise"])
    # an answer that was over sooner ends with the token that ends it, which no client is given
    said = {prompt: tokens if len(tokens) >= longest else tokens[:-1] for prompt, tokens in offline.tokens.items()}
    chosen = sorted(said, key=lambda prompt: -min(len(said[prompt]), TOKENS + 1))[:PROBES]
    answers = [
        (
            offline.prompts[prompt],
            positions(said[prompt], offline.rows[prompt], dtype=offline.activations, noise=noise),
        )
        for prompt in chosen
        if len(said[prompt])
    ]
    name = "what health checks will ask is answered as the offline engine answers"
    if not answers:
        return None, Check(name, True, "no answer has a token: nothing is recorded")
    context.progress.start("recording what health checks ask")
    try:
        made = record(
            server.http_url,
            model=context.recipe.name,
            layout=context.recipe.triton.layout,
            answers=answers,
            noise=noise,
            load_seconds=server.load_seconds,
        )
    except ForgeError as error:
        return None, Check(name, False, f"{error} {error.why or ''}".strip())
    return made, Check(name, True, f"{len(answers)} prompts, the log-probabilities within {made.tolerance:.3f} nat")


class SmokeStage(Stage):
    """Every check is a gate."""

    name = "smoke"
    needs = ("build", "parity", "repository")
    code_version = "8"
    tools = serving.TOOLS

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {"prompts": PROMPTS, "max_tokens": MAX_TOKENS, "clients": CLIENTS}

    def host_facts(self) -> dict[str, Any]:
        return execution_facts()

    def run(self, context: StageContext) -> StageResult:
        from evals.generation import PROMPTS as TEXTS
        from launcher.smoke import SmokeTarget, checks_to_json, run_smoke
        from runtime.tokenizer import EngineTokenizer

        context.progress.start("answers of the offline engine")
        directory, serves = context.inputs["build"].path, context.recipe.serving
        tokens = min(MAX_TOKENS, serves.max_output_tokens or MAX_TOKENS)
        prompts = [*TEXTS[:PROMPTS], *([] if context.recipe.speculation.method == "none" else [COPYING])]
        with engine_of(directory, context.progress) as ask:
            offline: Offline = ask(answer_offline, prompts, tokens)
        tokenizer = EngineTokenizer.load(directory)
        assert tokenizer is not None
        partings = Partings(offline, tokenizer.decode, float(context.inputs["parity"].summary["noise"]))
        with serving.live_server(context, context.out / serving.LOG_FILE) as server:
            target = SmokeTarget(
                grpc_url=server.grpc_url,
                http_url=server.http_url,
                metrics_url=f"{server.host}:{server.metrics_port}",
                model=context.recipe.name,
                expected=offline.texts,
                max_tokens=tokens,
                max_input_len=offline.max_input_len,
                clients=min(CLIENTS, 2 * offline.max_batch_size, serves.max_waiting),
                max_output_tokens=serves.max_output_tokens,
                says_max_tokens=serves.default_max_tokens is not None,
                parting=partings,
                ties=not offline.repeats_exactly,
                streams=context.recipe.triton.decoupled,
                speculates=offline.speculates,
            )
            recording, recorded = record_health(context, server, offline, tokens)
            checks = [*run_smoke(target, context.progress), recorded]
        if recording is not None:
            write_json(context.out / HEALTH_FILE, recording.model_dump(mode="json"))
        write_json(context.out / EXPECTED_FILE, offline.texts)
        write_json(context.out / SMOKE_FILE, checks_to_json(checks))
        gates = [
            GateResult(f"smoke: {check.name}", check.passed, float(check.passed), 1.0, check.detail) for check in checks
        ]
        return StageResult(
            summary={
                "checks": [check.name for check in checks],
                "passed": sum(check.passed for check in checks),
                "server": server.installation.version,
            },
            measurements={} if recording is None else recording.times(),
            gates=gates,
            measured=(SMOKE_FILE, HEALTH_FILE, serving.LOG_FILE),
        )

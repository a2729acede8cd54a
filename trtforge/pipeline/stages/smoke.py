"""smoke: the real Triton server on the emitted repository answers as the engine does and survives its clients.

The checks' names and verdicts are deterministic; their details (counts of pieces, gauges) and the
server's log are measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.pipeline.stage import GateResult, StageBase, StageContext, StageResult
from trtforge.pipeline.stages import serving
from trtforge.pipeline.stages.common import execution_facts, write_json
from trtforge.recipe.schema import Recipe

if TYPE_CHECKING:
    from launcher.smoke import Parting
    from runtime.offline import Engine

SMOKE_FILE = "smoke.json"
EXPECTED_FILE = "expected.json"
PROMPTS = 8
MAX_TOKENS = 24
CLIENTS = 32


class Partings:
    """Where an answer leaves the expected one; loads the engine when it is first asked.

    Args:
        expected: the tokens of the offline engine's answers by prompt.
        activations: the type of the engine's activations.
        noise: what parity measured.
    """

    def __init__(self, engine_dir: Path, expected: dict[str, list[int]], activations: str, noise: float) -> None:
        self._engine_dir, self._expected = engine_dir, expected
        self._activations, self._noise = activations, noise
        self._engine: Engine | None = None

    def __call__(self, prompt: str, text: str) -> Parting:
        from launcher.smoke import Parting
        from runtime.determinism import parting
        from runtime.offline import Engine

        if self._engine is None:
            self._engine = Engine.load(self._engine_dir)
        engine, tokenizer = self._engine, self._engine.tokenizer
        assert tokenizer is not None
        ids = tokenizer.encode(prompt)
        found = parting(
            self._expected[prompt],
            text,
            tokenizer.decode,
            lambda tokens: engine.logits([*ids, *tokens])[-1],
            dtype=self._activations,
            noise=self._noise,
        )
        if found is None:
            return Parting(False, "the tokens decode to the same text in another way")
        return Parting(found.near_tie, found.describe(tokenizer.decode))


class SmokeStage(StageBase):
    """Every check is a gate."""

    name = "smoke"
    needs = ("build", "parity", "repository")
    code_version = "5"
    tools = serving.TOOLS

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {"prompts": PROMPTS, "max_tokens": MAX_TOKENS, "clients": CLIENTS}

    def host_facts(self) -> dict[str, Any]:
        return execution_facts()

    def run(self, context: StageContext) -> StageResult:
        from evals.generation import PROMPTS as TEXTS
        from launcher.smoke import SmokeTarget, checks_to_json, run_smoke
        from runtime.offline import Engine
        from runtime.sampling.params import SamplingParams

        context.progress.start("answers of the offline engine")
        engine = Engine.load(context.inputs["build"].path)
        prompts = list(TEXTS[:PROMPTS])
        params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
        # one after the other: the answer of a request alone is what every batch is held against
        answers = {prompt: engine.generate(prompt, params)[0] for prompt in prompts}
        expected = {prompt: answer.text for prompt, answer in answers.items()}
        limits = engine.core.limits
        described = engine.executor.describe()
        del engine
        partings = Partings(
            context.inputs["build"].path,
            {prompt: answer.token_ids for prompt, answer in answers.items()},
            str(described["activations"]),
            float(context.inputs["parity"].summary["noise"]),
        )
        with serving.live_server(context, context.out / serving.LOG_FILE) as server:
            target = SmokeTarget(
                grpc_url=server.grpc_url,
                http_url=server.http_url,
                metrics_url=f"{server.host}:{server.metrics_port}",
                model=context.recipe.name,
                expected=expected,
                max_tokens=MAX_TOKENS,
                max_input_len=limits.max_input_len,
                clients=min(CLIENTS, 2 * limits.max_batch_size),
                parting=partings,
                ties=not described["row_invariant"],
                streams=context.recipe.triton.decoupled,
            )
            checks = run_smoke(target, context.progress)
        write_json(context.out / EXPECTED_FILE, expected)
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
            gates=gates,
            measured=(SMOKE_FILE, serving.LOG_FILE),
        )

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
    from runtime.offline import Engine

SMOKE_FILE = "smoke.json"
EXPECTED_FILE = "expected.json"
PROMPTS = 8
MAX_TOKENS = 24
CLIENTS = 32


class NearTies:
    """Whether an answer left the expected one at a near tie; loads the engine when it is first asked.

    Args:
        expected: the tokens of the offline engine's answers by prompt.
    """

    def __init__(self, engine_dir: Path, expected: dict[str, list[int]]) -> None:
        self._engine_dir, self._expected = engine_dir, expected
        self._engine: Engine | None = None

    def __call__(self, prompt: str, text: str) -> bool:
        from runtime.determinism import leaves_at_near_tie
        from runtime.offline import Engine

        if self._engine is None:
            self._engine = Engine.load(self._engine_dir)
        engine, tokenizer = self._engine, self._engine.tokenizer
        assert tokenizer is not None
        ids = tokenizer.encode(prompt)
        return leaves_at_near_tie(
            self._expected[prompt], text, tokenizer.decode, lambda tokens: engine.logits([*ids, *tokens])[-1]
        )


class SmokeStage(StageBase):
    """Every check is a gate."""

    name = "smoke"
    needs = ("build", "repository")
    code_version = "4"
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
        depends = not engine.executor.describe()["row_invariant"]
        del engine
        near_ties = NearTies(
            context.inputs["build"].path, {prompt: answer.token_ids for prompt, answer in answers.items()}
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
                excuses=near_ties if depends else None,
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

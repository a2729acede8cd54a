"""A light pipeline over real files, for tests of the store and of what happens when a run is killed.

Run as a program it is the victim of the fault tests: it can kill itself at the n-th step of publishing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.hashing import hash_bytes
from trtforge.pipeline.pipeline import Pipeline
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe
from trtforge.store import objects
from trtforge.store.artifact import GateResult, StageResult
from trtforge.store.steps import set_hook, step
from trtforge.store.store import Store


def recipe(seed: int = 0, **quantize: Any) -> Any:
    """A loaded recipe that the synthetic stages read."""
    data = {
        "name": "synthetic",
        "model": {"source": "somewhere"},
        "quantize": {"calibration": {"seed": seed}, **quantize},
    }
    return recipe_from_mapping(data)


@dataclass
class Counter(Stage):
    """Writes a few files derived from its inputs and the seed, in steps; resumes from its scratch folder."""

    name: str = "one"
    needs: tuple[str, ...] = ()
    code_version: str = "1"
    tools: tuple[str, ...] = ()
    files: int = 3
    size: int = 2000
    pause: float = 0.0
    uses_seed: bool = True
    gate: float | None = None
    measure: bool = False
    carries_measurements: bool = False

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {"seed": recipe.quantize.calibration.seed} if self.uses_seed else {}

    def run(self, context: StageContext) -> StageResult:
        context.progress.start(f"writing {self.name}", self.files)
        origin = json.dumps(
            [self.name, dict(context.section), [a.manifest["content_hash"] for a in context.inputs.values()]]
        )
        for index in range(self.files):
            resumable = context.scratch / f"part{index}"
            if not resumable.exists():
                block = hash_bytes(f"{origin}{index}".encode()).encode() * (self.size // 64 + 1)
                temporary = context.scratch / f".part{index}"
                temporary.write_bytes(block[: self.size])
                temporary.rename(resumable)
            target = context.out / "data" / f"part{index}.bin"
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(resumable.read_bytes())
            step(f"{self.name}.part{index}")
            time.sleep(self.pause)
            context.progress.advance()
        (context.out / "empty").mkdir()
        result = StageResult(summary={"origin": hash_bytes(origin.encode())})
        if self.measure:
            (context.out / "times.json").write_text(json.dumps({"t": time.time_ns()}))
            result.measured = ("times.json",)
            result.measurements = {"t": time.time_ns()}
        if self.carries_measurements:
            for name, artifact in context.inputs.items():
                if (artifact.path / "times.json").exists():
                    (context.out / f"{name}-times.json").write_bytes((artifact.path / "times.json").read_bytes())
            result.measured = ("*-times.json",)
        if self.gate is not None:
            result.gates.append(GateResult("increase", self.gate <= 0.05, self.gate, 0.05, f"{self.gate:.0%} over 5%"))
        return result


def stages(pause: float = 0.0) -> list[Counter]:
    """A small DAG with the shapes that the real one has: a chain, a side branch, measurements, a bundle."""
    return [
        Counter("intake", uses_seed=False, pause=pause),
        Counter("quantize", ("intake",), pause=pause),
        Counter("evaluate", ("intake", "quantize"), pause=pause, gate=0.01),
        Counter("bench", ("quantize",), pause=pause, measure=True),
        Counter("bundle", ("quantize", "evaluate", "bench"), pause=pause, carries_measurements=True),
    ]


def content_hashes(store: Store) -> dict[str, str]:
    """Content hash by stage of everything published."""
    return {a.stage: a.manifest["content_hash"] for a in store.artifacts()}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--die-at", type=int, default=-1, help="send --signal to this process at the n-th step")
    parser.add_argument("--signal", default="SIGKILL")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", action="store_true", help="print the names of the steps")
    options = parser.parse_args()
    seen: list[str] = []

    def hook(name: str) -> None:
        seen.append(name)
        if len(seen) - 1 == options.die_at:
            os.kill(os.getpid(), getattr(signal, options.signal))

    set_hook(hook)
    objects.SHARED_FROM = 1  # small files are shared too, so that a kill meets every step of sharing
    store = Store(options.store, durable=False)
    try:
        result = Pipeline(stages(options.pause), store).run(
            recipe(options.seed), output=options.store.parent / "bundles"
        )
    except KeyboardInterrupt:
        return 130
    if options.steps:
        print("\n".join(seen))
    else:
        print(
            json.dumps(
                {o.stage: [o.status, o.artifact.manifest["content_hash"]] for o in result.outcomes if o.artifact}
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

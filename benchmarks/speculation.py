"""Speculation against decoding token by token, and the policy against fixed lengths, side by side in one process.

For every concurrency and class of prompts, the same requests are answered by each variant: off, drafts of one fixed
length after another, and the engine's policy. A request follows as one ends, and the time counts as long as the
concurrency is held: a last slow request alone would measure another one. Each variant has an engine of its own, and
the one that has the fewest tokens steps next, so that every moment of the machine hits all of them alike: a shared
machine's speed drifts by a third within seconds. Two engines of one process differ by some per cent for as long as they
live (where their memory came to lie), so in a round every variant goes once through every engine. A figure is the
geometric mean of the ratio to off at the same time, with the smallest and the largest. Answers are greedy and end where
the model ends them, so all variants write the same tokens. Prompts are in the prefix cache: decoding is what is timed.

The best fixed length is chosen by the other turns than the one that it is held against: by its own it would be the
luckiest, not the best.

    python -m benchmarks.speculation ENGINE_DIR [--drafter ngram] [--concurrency 1 4] [--classes copy] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from evals.speculation.prompts import CLASSES, chosen, tokens_of
from runtime.offline import Engine
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.speculation.draft import Policy
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.policy import AdaptivePolicy

CONCURRENCY = (1, 2, 4, 8, 16)
#: long texts to edit and to extract from; a class of this benchmark alone
DOCUMENTS = "documents"
_DOCUMENTS = Path(__file__).with_name("documents.yaml")
OFF, POLICY = "off", "policy"
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "process": time.process_time}


@dataclass(frozen=True)
class Run:
    """One timed answering of a cell's prompts."""

    tokens: int
    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass
class Cell:
    """One concurrency and class: the runs of each variant, by turn."""

    drafter: str
    concurrency: int
    kind: str
    runs: dict[str, list[Run]] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)

    def ratios(self, variant: str) -> list[float]:
        """Speed over off, by turn."""
        return [run.rate / off.rate for run, off in zip(self.runs[variant], self.runs[OFF], strict=True)]

    def fixed(self) -> list[str]:
        """Variants of a fixed length."""
        return [name for name in self.runs if name not in (OFF, POLICY)]

    def best(self, but: int | None = None) -> str:
        """Off or the fixed length that was fastest over all rounds but one."""

        def speed(name: str) -> float:
            return mean([value for number, value in enumerate(self.ratios(name)) if number != but])

        return max([OFF, *self.fixed()], key=speed)

    def against_best(self) -> list[float]:
        """The policy's speed over that of the best of the other rounds, by turn."""
        rounds = range(len(self.runs[POLICY]))
        return [self.runs[POLICY][at].rate / self.runs[self.best(at)][at].rate for at in rounds]

    def to_json(self) -> dict[str, Any]:
        """Every ratio of the cell."""
        first = {name: runs[0] for name, runs in self.runs.items()}
        return {
            "drafter": self.drafter,
            "concurrency": self.concurrency,
            "class": self.kind,
            "tokens": first[OFF].tokens,
            "tokens_per_step": {name: round(run.tokens / run.steps, 3) for name, run in first.items()},
            "off_tokens_per_second": [round(run.rate, 1) for run in self.runs[OFF]],
            "over_off": {name: spread(self.ratios(name)) for name in self.runs if name != OFF},
            "best": self.best(),
            "policy_over_best": spread(self.against_best()) if len(self.runs[OFF]) > 1 else None,
            "policy_choices": self.chosen,
        }


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else 1.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Geometric mean, smallest and largest."""
    return {"mean": round(mean(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)}


@dataclass
class Lane:
    """An engine of its own for one variant; all lanes take turns, step by step.

    Args:
        policy: of the engine's drafts.
        speculate: whether the requests are drafted for.
    """

    engine: Engine
    policy: Any
    speculate: bool
    salt: str
    params: SamplingParams
    clock: Callable[[], float]
    run: Run | None = None
    answers: list[list[int]] = field(default_factory=list)
    _waiting: list[Sequence[int]] = field(default_factory=list)
    _names: dict[str, int] = field(default_factory=dict)
    _concurrency: int = 1
    _seconds: float = 0.0
    _steps: int = 0

    def begin(self, prompts: Sequence[Sequence[int]], concurrency: int) -> None:
        """Take the prompts of a round, ``concurrency`` at a time."""
        assert self.engine.core.speculator is not None
        self.engine.core.speculator.policy = self.policy
        self._waiting, self._concurrency = list(reversed(prompts)), concurrency
        self.answers, self._names, self.run = [], {}, None
        self._seconds, self._steps = 0.0, 0

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Leave the prompts in the prefix cache."""
        params = SamplingParams(max_tokens=1, temperature=0.0)
        for tokens in prompts:
            request = Request(
                prompt_token_ids=list(tokens), params=params, cache_salt=self.salt, speculate=self.speculate
            )
            self.engine.core.add_request(request)
        while self.engine.core.has_unfinished():
            self.engine.core.step()

    @property
    def tokens(self) -> int:
        """Tokens answered in this round."""
        return sum(map(len, self.answers))

    def step(self) -> bool:
        """Fill up, step once and time it while ``concurrency`` requests are in flight; whether there is more to do.

        Blocks that were filled without a drafter's rows are not shared with its runs.
        """
        core, started = self.engine.core, self.clock()
        while self._waiting and len(core.live_ids()) < self._concurrency:
            request = Request(
                prompt_token_ids=list(self._waiting.pop()),
                params=self.params,
                cache_salt=self.salt,
                speculate=self.speculate,
            )
            self._names[core.add_request(request)] = len(self.answers)
            self.answers.append([])
        if self.run is None and len(core.live_ids()) < self._concurrency:
            self.run = Run(self.tokens, self._steps, self._seconds)
        for output in core.step():
            if output.error is not None:
                raise RuntimeError(output.error)
            for sample in output.samples:
                self.answers[self._names[output.request_id]].extend(sample.token_ids)
        self._seconds, self._steps = self._seconds + self.clock() - started, self._steps + 1
        if core.has_unfinished() or self._waiting:
            return True
        assert self.run is not None or len(self.answers) >= self._concurrency
        self.run = self.run or Run(self.tokens, self._steps, self._seconds)
        return False


class Bench:
    """Lanes of an engine that drafts: off, fixed lengths, and the policy."""

    def __init__(
        self, folder: Path, threads: int | None, tokens: int, lengths: Sequence[int], clock: Callable[[], float]
    ) -> None:
        self._folder, self._threads, self._clock = folder, threads, clock
        self.params = SamplingParams(max_tokens=tokens, temperature=0.0)
        self.engine = self._load()
        speculator = self.engine.core.speculator
        if speculator is None or not isinstance(speculator.policy, AdaptivePolicy):
            raise SystemExit("the engine does not draft, or its recipe says adaptive: false")
        self.costs, self.longest = speculator.policy.costs, speculator.max_draft_len
        self.lookup, self.model = speculator.lookup is not None, speculator.model is not None
        self.names = [OFF, POLICY, *(str(length) for length in lengths if length <= self.longest)]
        self.engines = [self.engine, *(self._load() for _ in self.names[1:])]
        self._drafters = [(e.core.speculator.lookup, e.core.speculator.model) for e in self.engines]  # type: ignore[union-attr]

    def _load(self) -> Engine:
        return Engine.load(self._folder, threads=self._threads)

    def drafters(self) -> list[str]:
        """What this engine can be measured with."""
        both = self.lookup and self.model
        return [*(["ngram"] if self.lookup else []), *(["model"] if self.model else []), *(["all"] if both else [])]

    def lanes(self, drafter: str, policies: Mapping[str, Policy], turn: int) -> dict[str, Lane]:
        """A lane a variant, drafting with one of the drafters alone, or with all; each turn in other engines."""
        found = {}
        for at, name in enumerate(self.names):
            number = (at + turn) % len(self.names)
            engine, (lookup, model) = self.engines[number], self._drafters[number]
            speculator = engine.core.speculator
            assert speculator is not None
            speculator.lookup = lookup if drafter in ("ngram", "all") else None
            speculator.model = model if drafter in ("model", "all") else None
            salt = OFF if name == OFF else drafter
            found[name] = Lane(engine, policies[name], name != OFF, salt, self.params, self._clock)
        return found

    def cell(self, drafter: str, concurrency: int, kind: str, prompts: Sequence[Sequence[int]], rounds: int) -> Cell:
        """Measure all variants; the policy starts with the costs that are known and no acceptance, and is warmed.

        ``rounds`` times as many turns as there are variants; what :class:`Cell` calls a round is one of them.
        """
        found = Cell(drafter, concurrency, kind)
        policy = AdaptivePolicy(self.longest, self.costs)
        policies: dict[str, Policy] = {OFF: policy, POLICY: policy}
        policies |= {name: FixedPolicy(int(name)) for name in self.names if name not in policies}
        invariant = bool(self.engine.executor.describe().get("row_invariant"))
        for number in range(len(self.names)):  # every engine's prefix cache, for either kind of request
            for lane in self.lanes(drafter, policies, number).values():
                lane.prefill(prompts)
        for number in range(-1, rounds * len(self.names)):  # the first one warms kernels and the policy
            lanes = self.lanes(drafter, policies, number)
            together(lanes, prompts, concurrency)
            for name, lane in lanes.items():
                if invariant and lane.answers != lanes[OFF].answers:
                    raise RuntimeError(f"{name} answers otherwise than off")
                if number >= 0 and lane.run is not None:
                    found.runs.setdefault(name, []).append(lane.run)
        explained = policy.explain()
        found.chosen = {
            key: explained[key] for key in ("mean_length", "steps", "drafting_steps", "probes", "acceptance")
        }
        return found


def together(lanes: Mapping[str, Lane], prompts: Sequence[Sequence[int]], concurrency: int) -> None:
    """Answer the prompts in all lanes: the one that has the fewest tokens steps next, so all see the same machine."""
    for lane in lanes.values():
        lane.begin(prompts, concurrency)
    going = list(lanes.values())
    while going:
        lane = min(going, key=lambda one: one.tokens)
        if not lane.step():
            going.remove(lane)


def cells(bench: Bench, args: argparse.Namespace) -> Iterator[Cell]:
    """One after another."""
    limits = bench.engine.core.limits
    longest = min(limits.max_input_len, limits.max_seq_len - args.tokens)
    most = max(args.prompts, *(2 * concurrency for concurrency in args.concurrency))
    prompts = chosen(bench.engine.tokenizer, most, longest) if set(args.classes) & set(CLASSES) else {}
    if DOCUMENTS in args.classes:
        texts = yaml.safe_load(_DOCUMENTS.read_text(encoding="utf-8"))
        prompts[DOCUMENTS] = [tokens_of(bench.engine.tokenizer, DOCUMENTS, text.rstrip("\n")) for text in texts]
    for drafter in args.drafter or bench.drafters():
        for kind in args.classes:
            for concurrency in args.concurrency:
                count = max(args.prompts, 2 * concurrency)
                if count > len(prompts[kind]):
                    raise SystemExit(f"class {kind} has {len(prompts[kind])} prompts, {count} are asked for")
                yield bench.cell(drafter, concurrency, kind, prompts[kind][:count], args.rounds)


def line(cell: Cell) -> str:
    """A row for people."""
    row = cell.to_json()
    lengths = "  ".join(f"{name} {value['mean']:.2f}" for name, value in row["over_off"].items() if name != POLICY)
    policy, held = row["over_off"][POLICY], row["policy_over_best"]
    kept = (
        ""
        if held is None
        else f"  of the best ({row['best']}) {held['mean']:.3f} ({held['low']:.2f}-{held['high']:.2f})"
    )
    return (
        f"{cell.drafter:6} {cell.concurrency:2} {cell.kind:5} policy {policy['mean']:.2f} "
        f"({policy['low']:.2f}-{policy['high']:.2f}){kept}  fixed: {lengths}"
    )


def summary(found: Sequence[Cell]) -> dict[str, Any]:
    """The worst cells of the policy against the best, and speed by drafter and class of single streams."""
    held = [(mean(cell.against_best()), cell) for cell in found if len(cell.runs[OFF]) > 1]
    worst = sorted(held, key=lambda pair: pair[0])[:5]
    single = [cell for cell in found if cell.concurrency == 1]
    return {
        "worst_policy_over_best": [
            {"drafter": c.drafter, "concurrency": c.concurrency, "class": c.kind, "ratio": round(r, 3)}
            for r, c in worst
        ],
        "policy_over_best": round(mean([ratio for ratio, _ in held]), 3) if held else None,
        "single_stream_over_off": {f"{c.drafter}, {c.kind}": spread(c.ratios(POLICY)) for c in single},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a cell, then the summary; with --json one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, help="engine directory of a recipe that speculates, or its bundle")
    parser.add_argument("--drafter", nargs="*", choices=("ngram", "model", "all"), help="default: each that is there")
    parser.add_argument("--concurrency", nargs="*", type=int, default=list(CONCURRENCY))
    parser.add_argument("--classes", nargs="*", choices=(*CLASSES, DOCUMENTS), default=list(CLASSES))
    parser.add_argument("--lengths", nargs="*", type=int, default=list(range(1, 9)), help="fixed draft lengths")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument(
        "--prompts", type=int, default=4, help="prompts of a cell at least; more at a higher concurrency"
    )
    parser.add_argument("--rounds", type=int, default=1, help="times that every variant runs in every engine")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="process: processor time, for a machine that others load; take --threads 1, then it is an idle one's wall",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    folder = args.engine / "engine" if (args.engine / "engine" / "engine.json").is_file() else args.engine
    bench = Bench(folder, args.threads, args.tokens, args.lengths, CLOCKS[args.clock])
    found: list[Cell] = []
    for cell in cells(bench, args):
        found.append(cell)
        print(line(cell), file=sys.stderr if args.json else sys.stdout, flush=True)
    document = {"cells": [cell.to_json() for cell in found], **summary(found), "costs": bench.costs.explain()}
    if args.json:
        print(json.dumps(document))
        return 0
    for name, value in summary(found).items():
        print(f"{name}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

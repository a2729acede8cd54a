"""Runs stages in order: look up by content key, run what is missing, publish, stop at a failed gate.

Policy:
- a stage runs only when no artifact has its key; a run that finds another run at the same work waits
  and uses its result;
- a stage that runs uses no input whose bytes it has not held against their hashes; a damaged one is taken out of
  use with everything that was made of it, and the run goes back to make it anew;
- a failed gate keeps its artifact (marked ``gates_passed: false``) and stops the run: nothing after it is
  built or published, and running again reports the same failure from the cache;
- an interrupted or failed stage leaves only its scratch folder; SIGTERM is treated as SIGINT;
- a full disk is reported as such whatever library met it.
"""

from __future__ import annotations

import contextlib
import difflib
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from trtforge.ground.errors import EnvironmentLacks, ForgeError, GateFailed
from trtforge.ground.files import free_bytes, tree_bytes
from trtforge.ground.units import format_size
from trtforge.pipeline.gate_remedies import gate_remedies
from trtforge.pipeline.gpu_memory import release_gpu_memory
from trtforge.pipeline.inputs import SoundInputs
from trtforge.pipeline.keys import describe_changes, ingredients_of, key_of
from trtforge.pipeline.links import link_bundle, linked_bundle
from trtforge.pipeline.observer import Observer
from trtforge.pipeline.result import RunResult, StageOutcome, Status
from trtforge.pipeline.runlog import LoggedProgress, RunLog
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.recipe.load import LoadedRecipe
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact, GateResult
from trtforge.store.export import DamagedArtifact
from trtforge.store.links import remember_link
from trtforge.store.manifest import gates_from_json
from trtforge.store.quarantine import quarantine, quarantine_of
from trtforge.store.runs import ActiveRun, RunRecord, StageRecord, active_run, load_record, save_record
from trtforge.store.steps import step
from trtforge.store.store import KEY_DIGITS, Damage, Store, is_disk_full

BUNDLE_STAGE = "bundle"
#: earlier artifacts of a stage that it may take samples from
_EARLIER = 6


class Pipeline:
    """A list of stages, each after everything that it needs, over one store.

    Raises:
        ValueError: when a stage needs one that does not come before it.
    """

    def __init__(self, stages: Sequence[Stage], store: Store) -> None:
        seen: set[str] = set()
        for stage in stages:
            missing = set(stage.needs) - seen
            if missing or stage.name in seen:
                raise ValueError(f"stage {stage.name!r} is listed twice or before its inputs {sorted(missing)}")
            seen.add(stage.name)
        self.stages = list(stages)
        self.store = store
        #: the newest run's result, complete or not (a failed run raises)
        self.last_result: RunResult | None = None

    def check_names(self, names: Collection[str], option: str) -> None:
        """Refuse names that are no stage (TF-STO-004), with the nearest one."""
        known = [stage.name for stage in self.stages]
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise ForgeError(
                    "TF-STO-004",
                    f"{option} {name}: there is no stage of that name",
                    asked=f"{option} {name}",
                    numbers={"stages": len(known)},
                    why=f"the stages are {', '.join(known)}",
                    remedies=[f"{option} {near[0]}" if near else f"name one of {', '.join(known)}"],
                )

    def select(self, recipe: Recipe, until: str | None = None, *, only_needed: bool = False) -> list[Stage]:
        """The stages that the recipe asks for: all up to ``until``, or with ``only_needed`` those that it depends on.

        Raises:
            ForgeError: TF-STO-004 ``until`` is no stage; TF-STO-016 the recipe has no such stage.
        """
        asked = [stage for stage in self.stages if stage.asked_for(recipe)]
        if until is None:
            return asked
        self.check_names([until], "--until")
        if until not in (stage.name for stage in asked):
            raise _unasked(until, recipe)
        position = next(i for i, stage in enumerate(asked) if stage.name == until)
        chosen = asked[: position + 1]
        if not only_needed:
            return chosen
        wanted = {until}
        for stage in reversed(chosen):
            if stage.name in wanted:
                wanted.update(stage.needs)
        return [stage for stage in chosen if stage.name in wanted]

    def run(
        self,
        loaded: LoadedRecipe,
        until: str | None = None,
        force: Collection[str] = (),
        *,
        observer: Observer | None = None,
        output: Path | None = None,
        only_needed: bool = False,
        full_check: bool = False,
        capture_output: bool = False,
    ) -> RunResult:
        """Run a recipe; returns when its last stage is published and every gate has passed.

        Args:
            until: the last stage to run; default all.
            force: stages that run even when they are cached.
            observer: receives events and supplies progress.
            output: folder of the bundle's link; default ``bundles`` below the working directory.
            only_needed: with ``until``, leave out stages that it does not depend on.
            full_check: hash every file of a cached artifact when it is looked up, not only before a stage runs on it.
            capture_output: send what libraries print to the run's log.

        Raises:
            GateFailed: TF-STO-009 with the figures of every missed gate.
            ForgeError: whatever a stage refuses; TF-STO-002 and TF-STO-010 for a full disk.
            KeyboardInterrupt: on SIGINT or SIGTERM, after cleaning up.
        """
        self.check_names(force, "--force")
        stages = self.select(loaded.recipe, until, only_needed=only_needed)
        result = self.last_result = RunResult(loaded.recipe.name)
        started = time.monotonic()
        try:
            with (
                _sigterm_interrupts(),
                RunLog(self.store.root / "logs", loaded.recipe.name) as log,
                active_run(self.store) as active,
            ):
                result.log = log.path
                watching = observer or Observer()
                run = _Run(self.store, loaded, log, active, watching, capture_output, full_check, result)
                try:
                    run.go(stages, set(force))
                    last = result.outcomes[-1].artifact if result.outcomes else None
                    if last is not None and last.stage == BUNDLE_STAGE:
                        result.bundle = last.path
                        folder = output or Path.cwd() / "bundles"
                        before = linked_bundle(folder, loaded.recipe.name)
                        result.link = link_bundle(last.path, folder, loaded.recipe.name)
                        result.moved_from = before if before != last.path.resolve() else None
                        remember_link(self.store, result.link)
                        log.line(f"bundle {result.bundle}, linked from {result.link}")
                except BaseException as error:
                    log.exception(error)
                    error.log = str(log.path)  # type: ignore[attr-defined]  # the console names it
                    raise
        except Exception as error:
            if not isinstance(error, ForgeError) and is_disk_full(error):
                raise self.store.disk_full("(bookkeeping)", "", 0, error) from error
            raise
        finally:
            result.seconds = time.monotonic() - started
        return result


@dataclass
class _Run:
    """The state of one run."""

    store: Store
    loaded: LoadedRecipe
    log: RunLog
    active: ActiveRun
    observer: Observer
    capture_output: bool
    full_check: bool
    result: RunResult
    #: inputs that were damaged and made anew in this run
    made_anew: set[tuple[str, str]] = field(default_factory=set)
    #: names of the stages that this run goes through; what a stage needs beside them the recipe does not have
    asked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        recipe = self.loaded.recipe
        self.sound = SoundInputs(self.store)
        self.previous = load_record(self.store, recipe.name)
        self.record = RunRecord(recipe.name, str(self.loaded.path or ""), log=str(self.log.path))
        # what this run does not reach keeps its last record: a run --until a stage must not unprotect the rest
        if self.previous is not None:
            self.record.stages.update(self.previous.stages)

    def _note_progress(self) -> None:
        """Keep the record of a run that may be killed at any time; what a full disk refuses is said by the run."""
        with contextlib.suppress(OSError):
            save_record(self.store, self.record)

    def go(self, stages: Sequence[Stage], force: set[str]) -> None:
        artifacts: dict[str, Artifact] = {}
        self.asked = {stage.name for stage in stages}
        status = "failed"
        self._note_progress()
        for leftover in self.store.sweep():
            self.log.line(f"removed the leftover of a killed run: {leftover.name}")
        position = 0
        try:
            while position < len(stages):
                stage = stages[position]
                self.observer.stage_started(stage.name, position + 1, len(stages))
                try:
                    artifacts[stage.name] = self._stage(stage, artifacts, stage.name in force)
                except DamagedArtifact as damaged:
                    position = self._go_back(damaged, [item.name for item in stages], artifacts)
                else:
                    force.discard(stage.name)  # going back does not make it run a second time
                    position += 1
            status = "done"
        except GateFailed:
            status = "gate failed"
            raise
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            self.record.status = status
            self._note_progress()

    def _message(self, text: str) -> None:
        self.log.line(text)
        self.observer.message(text)

    def _stage(self, stage: Stage, artifacts: dict[str, Artifact], forced: bool) -> Artifact:
        started = time.monotonic()
        artifact: Artifact | None = None
        status: Status = "failed"
        reasons: tuple[str, ...] = ()
        try:
            inputs = {name: artifacts[name] for name in stage.needs if name in self.asked}
            ingredients = ingredients_of(stage, self.loaded.recipe, self.loaded.directory, inputs)
            key = key_of(ingredients)
            if not forced:
                artifact = self._usable(stage, key, inputs, repair=False)
            status = "cached"
            if artifact is None:
                reasons = self._reasons(stage, ingredients, key, forced)
                with self.store.lock(
                    stage.name, key, lambda who: self._message(f"{stage.name}: waiting for {who}, at the same work")
                ):
                    artifact = self._usable(stage, key, inputs, repair=True, forced=forced)
                    if artifact is None:
                        status = "failed"
                        earlier = () if forced else self._earlier(stage, ingredients)
                        artifact = self._execute(stage, key, ingredients, inputs, earlier)
                        status = "left out" if left_out_by_target(ingredients) else "ran"
            self.record.stages[stage.name] = StageRecord(key, ingredients, status)
            if status != "cached":
                self._note_progress()
            self.log.line(f"{stage.name}: {status}, {artifact.path}")
            _check_gates(artifact, self.loaded.recipe)
        except BaseException:
            self._finished(StageOutcome(stage.name, "failed", time.monotonic() - started, artifact, reasons))
            raise
        shown = () if status == "cached" else reasons
        self._finished(StageOutcome(stage.name, status, time.monotonic() - started, artifact, shown))
        return artifact

    def _finished(self, outcome: StageOutcome) -> None:
        self.result.outcomes.append(outcome)
        self.observer.stage_finished(outcome)

    def _reasons(self, stage: Stage, ingredients: dict[str, object], key: str, forced: bool) -> tuple[str, ...]:
        if forced:
            return ("forced",)
        before = self.previous.stages.get(stage.name) if self.previous else None
        if before is None:
            return ("first run of this recipe's stage",)
        if before.key == key:
            stale = isinstance(self.store.find(stage.name, key), Artifact)
            return ("an input was measured anew" if stale else "its artifact is gone or unusable",)
        return tuple(describe_changes(before.ingredients, ingredients))

    def _usable(
        self, stage: Stage, key: str, inputs: dict[str, Artifact], *, repair: bool, forced: bool = False
    ) -> Artifact | None:
        """The cached artifact when it may be used; with ``repair`` a damaged one is taken out of the way.

        A forced stage uses none, but what was made of a damaged one must go with it.
        """
        found = self.store.find(stage.name, key, full=self.full_check or forced)
        if isinstance(found, Damage):
            if repair:
                self.result.quarantined.extend(quarantine(self.store, found, say=self._message, locked=True))
            return None
        if forced or found is None or not carries_current_measurements(stage, found, inputs):
            return None
        return found if self.active.use(found) else None

    def _go_back(self, error: DamagedArtifact, names: list[str], artifacts: dict[str, Artifact]) -> int:
        """Take a damaged input and all that was made of it out of use; the position to go on from.

        An input that is damaged again after it was made anew ends the run: then the machine is at fault.
        """
        damaged = error.artifact
        taken = quarantine_of(self.store, error, say=self._message)
        self.result.quarantined.extend(taken)
        if taken:  # else another run met the same damage first
            if (damaged.stage, damaged.key) in self.made_anew:
                raise error
            self.made_anew.add((damaged.stage, damaged.key))
        gone = {(item.stage, item.key) for item in taken} | {(damaged.stage, damaged.key[:KEY_DIGITS])}
        used = {name: (artifact.stage, artifact.key[:KEY_DIGITS]) for name, artifact in artifacts.items()}
        position = min(names.index(name) for name, identity in used.items() if identity in gone)
        del self.result.outcomes[position:]
        return position

    def _earlier(self, stage: Stage, ingredients: Mapping[str, object]) -> tuple[Artifact, ...]:
        """Sound artifacts of the stage, made by the same code, tools and machine; the newest few."""
        if not stage.reuses_samples:
            return ()
        same = ("code_version", "tools", "host")
        fitting = [
            artifact
            for artifact in self.store.of_stage(stage.name)
            if all(artifact.manifest["ingredients"].get(name) == ingredients[name] for name in same)
        ]
        return tuple(artifact for artifact in fitting[:_EARLIER] if self.store.check_bytes(artifact) is artifact)

    def _execute(
        self,
        stage: Stage,
        key: str,
        ingredients: dict[str, object],
        inputs: dict[str, Artifact],
        earlier: tuple[Artifact, ...],
    ) -> Artifact:
        self._check_space(stage, inputs)
        progress = LoggedProgress(self.observer.progress(stage.name), self.log, stage.name)
        self.sound.require(inputs.values(), progress)
        started = time.monotonic()
        out = self.store.begin(stage.name, key)
        section = ingredients["section"]
        assert isinstance(section, dict)
        context = StageContext(
            recipe=self.loaded.recipe,
            recipe_dir=self.loaded.directory,
            section=section,
            inputs=inputs,
            out=out,
            scratch=self.store.scratch_path(stage.name, key),
            progress=progress,
            earlier=earlier,
        )
        try:
            step(f"{stage.name}.begin")
            with self.log.capture() if self.capture_output else contextlib.nullcontext():
                outcome = stage.run(context)
            release_gpu_memory()
            step(f"{stage.name}.written")
            progress.start(f"publishing {stage.name}", float(tree_bytes(out)))
            artifact = self.store.publish(
                out,
                stage=stage.name,
                key=key,
                ingredients=ingredients,
                inputs=inputs,
                result=outcome,
                seconds=time.monotonic() - started,
                advance=progress.advance,
            )
        except BaseException as error:
            written = tree_bytes(out)
            self.store.abandon(out)
            if not isinstance(error, ForgeError) and isinstance(error, Exception):
                if is_disk_full(error):
                    raise self.store.disk_full(stage.name, key, written, error) from error
                if gone := [artifact for artifact in inputs.values() if not artifact.path.is_dir()]:
                    raise _taken_away(stage, gone[0]) from error
            raise
        self.active.use(artifact)
        return artifact

    def _check_space(self, stage: Stage, inputs: dict[str, Artifact]) -> None:
        needed = stage.disk_estimate(self.loaded.recipe, inputs)
        free = free_bytes(self.store.root)
        if needed > free:
            raise EnvironmentLacks(
                "TF-STO-010",
                f"stage {stage.name} needs about {format_size(needed)}, {format_size(free)} are free",
                asked=str(self.store.root),
                numbers={"needed_bytes": needed, "free_bytes": free},
                why="the store's disk would be full before the stage ends",
                remedies=[
                    "run `trtforge artifacts gc` to remove artifacts that no recipe's last run uses",
                    "put the store on a larger disk with --store or TRTFORGE_HOME",
                ],
            )


def carries_current_measurements(stage: Stage, artifact: Artifact, inputs: dict[str, Artifact]) -> bool:
    """False when the artifact copied measurements of an input that was measured anew since."""
    if not stage.carries_measurements:
        return True
    recorded = artifact.manifest["inputs"]
    return all(
        recorded.get(name, {}).get("measured_hash") == artifact.manifest["measured_hash"]
        for name, artifact in inputs.items()
    )


def _unasked(name: str, recipe: Recipe) -> ForgeError:
    return ForgeError(
        "TF-STO-016",
        f"recipe {recipe.name} has no stage {name}",
        asked=f"--until {name}",
        why="The recipe does not ask for what the stage looks at: without speculation.method there is no speculation.",
        remedies=["set speculation.method: ngram, draft_target or eagle3", "name another stage"],
    )


def _taken_away(stage: Stage, gone: Artifact) -> ForgeError:
    return ForgeError(
        "TF-STO-014",
        f"stage {stage.name} lost its input {gone.stage} while it ran",
        asked=str(gone.path),
        numbers={"stage": gone.stage, "key": gone.key[:KEY_DIGITS]},
        why="Another run found that artifact damaged and took it out of use, or somebody removed it.",
        remedies=["run the recipe again: what is missing is made anew"],
    )


def _verdict(gate: GateResult) -> str:
    """Name and figures of a gate; most details begin with the name already."""
    return gate.detail if gate.detail.startswith(gate.name) else f"{gate.name}: {gate.detail}".rstrip(": ")


def left_out_by_target(ingredients: Mapping[str, object]) -> bool:
    """Whether the stage's section says why it does not run for the recipe's target."""
    section = ingredients["section"]
    return isinstance(section, Mapping) and "not_run" in section


def _check_gates(artifact: Artifact, recipe: Recipe) -> None:
    missed = [gate for gate in gates_from_json(artifact.manifest["gates"]) if not gate.passed]
    if not missed:
        return
    raise GateFailed(
        "TF-STO-009",
        f"stage {artifact.stage} missed {'its gate' if len(missed) == 1 else f'{len(missed)} gates'}: "
        + "; ".join(_verdict(gate) for gate in missed),
        asked=", ".join(gate.name for gate in missed),
        numbers={gate.name: gate.figures() for gate in missed},
        why=f"the artifact is kept at {artifact.path}; nothing after it was built or published",
        remedies=[
            *gate_remedies((gate.name for gate in missed), recipe),
            f"measure again with --force {artifact.stage}",
        ],
    )


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """For the block, SIGTERM raises KeyboardInterrupt, so that a terminated run cleans up like an interrupted one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        # None: the handler was not installed from Python and cannot be put back
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

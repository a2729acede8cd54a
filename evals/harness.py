"""Tasks of the LM Evaluation Harness on any model that gives logits: its own ``LM`` class over our models.

The package ``lm-eval`` is an extra (``harness``) and is imported when a recipe asks for tasks. Hub tasks go by name; a
task of one's own is ``file:TASK.yaml`` beside the recipe. The harness asks for log-likelihoods and for greedy text, and
the model behind is a checkpoint's reference or a built engine, so that the engine itself is what is scored.

Source of the interface: lm_eval.api.model.TemplateLM and lm_eval.evaluator.simple_evaluate, 0.4.13.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evals.samples import Samples
from evals.statistics import McNemar, mcnemar, paired_mean_difference
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.sources import file_beside, names_file

PACKAGE = "lm_eval"
DISTRIBUTION = "lm-eval"
#: tokens that an answer may have where a task does not say
_MAX_TOKENS = 256
_TASK_LINE = re.compile(r"^task:\s*['\"]?([A-Za-z0-9_.-]+)['\"]?\s*(?:#.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class HarnessModel:
    """What the harness needs of a model.

    Attributes:
        encode, decode: text and tokens.
        log_probs: token ids [S] and a number n → log-probabilities float64 [n] of the last n tokens, and whether each
            is the model's choice, bool [n].
        answer: prompt tokens and a number → the greedy continuation.
        chat: messages → text by the model's template.
        longest: tokens of the longest sequence.
        end: the token before a text without context.
    """

    encode: Callable[[str, bool], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    log_probs: Callable[[Sequence[int], int], tuple[np.ndarray, np.ndarray]]
    answer: Callable[[Sequence[int], int], Sequence[int]]
    chat: Callable[[Sequence[Mapping[str, Any]]], str]
    longest: int
    end: int


def installed() -> bool:
    """Whether the harness is there; nothing is imported."""
    return importlib.util.find_spec(PACKAGE) is not None


def require_installed(tasks: Sequence[str]) -> None:
    """Raise TF-EVL-026 where a recipe asks for tasks and the harness is missing."""
    if tasks and not installed():
        raise EnvironmentLacks(
            "TF-EVL-026",
            "the LM Evaluation Harness is not installed",
            asked=f"evals.tasks: {', '.join(tasks)}",
            why="Its tasks are run by the package lm-eval, which is an extra.",
            remedies=["pip install 'trtforge[harness]'", "evals.tasks: []", "evals.suite needs nothing"],
        )


def local_task(spec: str, base_dir: Path) -> tuple[str, Path] | None:
    """Name and file of a task written as ``file:PATH.yaml``; None for a task of the hub.

    Raises:
        ForgeError: TF-EVL-027 no such file below the folder, no task in it, or one that would run Python.
    """
    if not names_file(spec):
        return None
    try:
        path = file_beside(spec, base_dir)
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _no_task(spec, str(error)) from error
    if "!function" in text:
        raise _no_task(spec, "it runs Python (!function), which a recipe does not make this machine do")
    found = _TASK_LINE.search(text)
    if found is None:
        raise _no_task(spec, "it has no line task: NAME")
    return found.group(1), path


def _no_task(spec: str, why: str) -> ForgeError:
    return ForgeError(
        "TF-EVL-027",
        f"the task {spec} cannot be used: {why}",
        asked=f"evals.tasks: {spec}",
        why="A local task is a YAML file of the harness beside the recipe or below its folder.",
        remedies=["file:TASK.yaml", "evals.custom reads prompts and answers from JSON lines"],
    )


def make_lm(model: HarnessModel) -> Any:
    """An instance of the harness' ``LM``, made when the package is there."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class ForgeLm(TemplateLM):
        """Requests one after the other; every figure is the model's own."""

        tokenizer_name = "trtforge"

        @property
        def eot_token_id(self) -> int:
            return model.end

        @property
        def max_length(self) -> int:
            return model.longest

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return list(model.encode(string, bool(add_special_tokens)))

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            return model.chat(chat_history)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            found = []
            for key, context, continuation in requests:
                ids = [*context, *continuation][-model.longest :]
                scored = min(len(continuation), len(ids) - 1)
                values, chosen = model.log_probs(ids, scored)
                found.append((float(values.sum()), bool(chosen.all())))
                self.cache_hook.add_partial("loglikelihood", key, found[-1])
            return found

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            found = []
            for request in requests:
                windows = get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=model.end,
                    max_seq_len=model.longest - 1,
                    context_len=1,
                )
                pairs = [("", *make_disjoint_window(window)) for window in windows]
                found.append(sum(value for value, _ in self._loglikelihood_tokens([(None, *p[1:]) for p in pairs])))
            return found

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            found = []
            for request in requests:
                context, asked = request.args
                until = asked.get("until") or []
                stops = [until] if isinstance(until, str) else list(until)
                most = int(asked.get("max_gen_toks", _MAX_TOKENS))
                ids = list(model.encode(context, False))[-(model.longest - most) :]
                found.append(cut(model.decode(model.answer(ids, most)), stops))
            return found

    return ForgeLm()


def cut(text: str, stops: Sequence[str]) -> str:
    """``text`` up to the first of ``stops`` in it."""
    ends = [text.index(stop) for stop in stops if stop and stop in text]
    return text[: min(ends)] if ends else text


def run_tasks(
    model: HarnessModel,
    tasks: Sequence[str],
    base_dir: Path,
    samples: Samples,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Each task's figures and what every document scored; one sample a task.

    Raises:
        EnvironmentLacks: TF-EVL-026 without the package.
        ForgeError: TF-EVL-027 a local task; TF-EVL-028 the harness has no such task, or cannot fetch its data.
    """
    report = progress or SilentProgress()
    report.start(f"harness tasks: {', '.join(tasks)}", total=len(tasks))
    for spec in tasks:
        if samples.get(spec) is None:
            require_installed(tasks)
            samples.add(spec, _run(model, spec, base_dir))
        report.advance()
    return samples.finish(list(tasks))


def _run(model: HarnessModel, spec: str, base_dir: Path) -> dict[str, Any]:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    local = local_task(spec, base_dir)
    name = spec if local is None else local[0]
    try:
        # data files of a local task are beside it
        with contextlib.chdir(base_dir if local is None else local[1].parent):
            manager = TaskManager(include_path=None if local is None else str(local[1].parent))
            results = simple_evaluate(
                make_lm(model), tasks=[name], task_manager=manager, bootstrap_iters=0, log_samples=True
            )
    except ForgeError:
        raise
    except Exception as error:  # the harness raises whatever its data sets' libraries do
        raise ForgeError(
            "TF-EVL-028",
            f"the harness cannot run {name}",
            asked=f"evals.tasks: {spec}",
            why=f"{type(error).__name__}: {error}"[:500],
            remedies=["lm-eval ls tasks lists the names", "tasks of the hub need a network or a filled cache"],
        ) from error
    assert results is not None
    return {"results": _figures(results["results"]), "documents": _documents(results["samples"])}


def _figures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """``task → metric → value``; the harness adds names and filters to keys."""
    return {
        task: {
            key.partition(",")[0]: float(value)
            for key, value in found.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and "_stderr" not in key and "," in key
        }
        for task, found in results.items()
    }


def _documents(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """``task metric → document → value``, for metrics that are a number a document."""
    found: dict[str, dict[str, float]] = {}
    for task, documents in samples.items():
        for document in documents:
            for metric in document.get("metrics", ()):
                value = document.get(metric)
                if isinstance(value, (bool, int, float)):
                    found.setdefault(f"{task} {metric}", {})[str(document["doc_id"])] = float(value)
    return found


def compare_harness(
    baseline: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Metric by metric both values, the paired difference with its interval, and McNemar's test for right and wrong."""
    figures: dict[str, dict[str, Any]] = {}
    for before, after in zip(baseline, candidate, strict=True):
        for name, values in before["documents"].items():
            other = after["documents"].get(name, {})
            shared = [document for document in values if document in other]
            if not shared:
                continue
            left, right = [values[d] for d in shared], [other[d] for d in shared]
            test: McNemar | None = None
            if {*left, *right} <= {0.0, 1.0}:
                test = mcnemar([bool(x) for x in left], [bool(x) for x in right])
            figures[name] = {
                "documents": len(shared),
                "baseline": float(np.mean(left)),
                "candidate": float(np.mean(right)),
                "change": (test.change if test else paired_mean_difference(left, right)).to_json(),
                "mcnemar": None if test is None else test.to_json(),
            }
    return figures

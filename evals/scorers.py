"""What makes an answer right: the same text, the same number, a pattern, or code that passes its tests."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from typing import Any, Literal

from trtforge.ground.errors import ForgeError

Kind = Literal["exact", "numeric", "regex", "code"]
KINDS: tuple[Kind, ...] = ("exact", "numeric", "regex", "code")
#: a number as people write it: a sign, thousands with commas, a fraction, an exponent
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?")
#: how long a pattern may look at one answer
PATTERN_SECONDS = 10.0
_FENCE = re.compile(r"```[a-zA-Z0-9_+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Scorer:
    """How an answer is judged.

    Attributes:
        kind: ``exact`` the text without surrounding space; ``numeric`` the last number in it, within ``tolerance``;
            ``regex`` the item's answer is a pattern that is found in it; ``code`` it is Python that the item's answer,
            statements that raise when something is wrong, accepts (in a sandbox).
        tolerance: of ``numeric``, relative to the right number (absolute at 0).
        ignore_case: of ``exact`` and ``regex``.
    """

    kind: Kind = "exact"
    tolerance: float = 0.0
    ignore_case: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "tolerance": self.tolerance, "ignore_case": self.ignore_case}


def last_number(text: str) -> float | None:
    """The last number that stands in a text."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def is_right(scorer: Scorer, answer: str, text: str) -> bool:
    """Whether ``text`` is right by ``scorer``; ``answer`` was accepted by :func:`check_answer`.

    Raises:
        ForgeError: TF-EVL-030 a pattern does not come to an end.
    """
    if scorer.kind == "exact":
        left, right = text.strip(), answer.strip()
        return left.casefold() == right.casefold() if scorer.ignore_case else left == right
    if scorer.kind == "numeric":
        got, want = last_number(text), float(answer)
        return got is not None and abs(got - want) <= scorer.tolerance * (abs(want) or 1.0)
    if scorer.kind == "regex":
        return _found(answer, text, re.IGNORECASE if scorer.ignore_case else 0)
    from evals.sandbox import run_python

    return run_python(code_of(text), answer).passed


def _found(pattern: str, text: str, flags: int) -> bool:
    """Whether the pattern is in the text; raises TF-EVL-030 when that is not known after :data:`PATTERN_SECONDS`.

    A search holds the interpreter, so nothing of this process can end it but an alarm, which only the main thread
    takes. Elsewhere a process of its own searches, which can be killed.
    """
    if threading.current_thread() is not threading.main_thread():
        return _found_by_a_process(pattern, text, flags)

    def late(*_: object) -> None:
        raise _endless(pattern, text)

    before = signal.signal(signal.SIGALRM, late)
    left, every = signal.setitimer(signal.ITIMER_REAL, PATTERN_SECONDS)
    try:
        return re.search(pattern, text, flags) is not None
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, every)
        signal.signal(signal.SIGALRM, before)


_SEARCH = "import json, re, sys; print(re.search(*json.load(sys.stdin)) is not None)"


def _found_by_a_process(pattern: str, text: str, flags: int) -> bool:
    command = [sys.executable, "-I", "-S", "-c", _SEARCH]
    asked = json.dumps([pattern, text, flags])
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True, timeout=PATTERN_SECONDS)
    except subprocess.TimeoutExpired:
        raise _endless(pattern, text) from None
    return done.stdout.strip() == "True"


def _endless(pattern: str, text: str) -> ForgeError:
    return ForgeError(
        "TF-EVL-030",
        f"the pattern {pattern[:80]!r} is not done with an answer after {PATTERN_SECONDS:g} s",
        asked=pattern[:80],
        numbers={"characters": len(text)},
        why="Repetitions within repetitions take time that doubles with every character of a text.",
        remedies=["write the pattern without a repetition of a repetition: a+ for (a+)+"],
    )


def code_of(text: str) -> str:
    """The code of an answer: what its first fence holds, else all of it."""
    fence = _FENCE.search(text)
    return fence.group(1) if fence else text


def check_answer(scorer: Scorer, answer: str, place: str) -> None:
    """Refuse an answer that the scorer cannot use; raises TF-EVL-014."""
    why = None
    if scorer.kind == "numeric":
        try:
            finite = math.isfinite(float(answer))
        except ValueError:
            finite = False
        if not finite:
            why = f"{answer[:80]!r} is no finite number"
    elif not answer.strip() and scorer.kind != "exact":
        why = f"an empty answer of the scorer {scorer.kind} takes every text for right"
    elif scorer.kind == "regex":
        try:
            re.compile(answer)
        except (re.error, OverflowError, RecursionError) as error:
            why = f"{answer[:80]!r} is no regular expression: {error}"
    elif scorer.kind == "code":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the tests' style
                compile(answer, place, "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = f"its tests are no Python: {error or type(error).__name__}"
    if why is not None:
        raise ForgeError(
            "TF-EVL-014",
            f"{place}: the answer does not fit the scorer {scorer.kind}",
            asked=answer[:80],
            why=why,
            remedies=["correct the line", f"another scorer: {', '.join(k for k in KINDS if k != scorer.kind)}"],
        )

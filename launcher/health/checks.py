"""The levels of health: ``live``, ``ready`` and ``deep``, each with those before it.

``deep`` asks the server what its bundle has on record. It passes where the tokens are the recorded ones or leave them
at a near tie, the mean log-probability up to there is within the recording's tolerance, and the answer takes no more
than :data:`launcher.health.recording.SLOWER` times the recorded time. A server that has just started may be slow once:
an answer that is late is asked for a second time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.health.asking import Said, Server, numbers_of
from launcher.health.recording import LEAST, SLOWER, Probe, Recording
from trtforge.ground.errors import ForgeError, GateFailed
from trtforge.targets.layouts import LAYOUTS

LEVELS = ("live", "ready", "deep")


@dataclass(frozen=True)
class Check:
    """One thing that was found to be as it should; what is not, is raised."""

    name: str
    detail: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(server: Server, level: str, model: str | None = None, recording: Recording | None = None) -> list[Check]:
    """What ``level`` asks for, in order.

    Args:
        model: the model's name on the server; None: every model that the server holds.
        recording: the bundle's; needed for ``deep``.

    Raises:
        ForgeError: TF-HLT-001 … 008: what is wrong (exit code 1); TF-HLT-023 the layout cannot be asked (2).
    """
    found = [_timed("live", "the server lives", server.require_live)]
    if level == "live":
        return found
    who = "all models" if model is None else f"model {model}"
    found.append(_timed("ready", f"the server and {who} are ready", lambda: server.require_ready(model)))
    if level == "ready":
        return found
    assert recording is not None
    require_tokens(recording)
    for number, probe in enumerate(recording.probes, 1):
        found.append(_probe(server, model or recording.model, number, probe, recording))
    return found


def require_tokens(recording: Recording) -> None:
    """Refuse a layout whose model takes no tokens or gives none.

    Raises:
        ForgeError: TF-HLT-023.
    """
    layout = LAYOUTS.get(recording.layout)
    if layout is None or not layout.own_runtime:
        raise ForgeError(
            "TF-HLT-023",
            f"the layout {recording.layout} is not asked for recorded tokens",
            asked="--level deep",
            why="Its models give text, and no log-probabilities of chosen tokens under the recording's names.",
            remedies=["--level ready", "trtforge eval --server HOST:PORT --bundle BUNDLE"],
        )


def _timed(name: str, detail: str, ask: Any) -> Check:
    begin = time.monotonic()
    ask()
    return Check(name, detail, round(time.monotonic() - begin, 4))


def request_of(probe: Probe) -> dict[str, Any]:
    """The tensors that ask for a probe's answer, greedy, without drafts, which would not change it."""
    return {
        "input_ids": list(probe.prompt),
        "max_tokens": len(probe.answer),
        "temperature": 0.0,
        "exclude_input_in_output": True,
        "return_log_probs": True,
    }


def answer_of(said: Said) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities in an answer.

    Raises:
        ForgeError: TF-HLT-006 it refuses, or has neither.
    """
    try:
        found = json.loads(said.text)
        tokens = [int(token) for token in numbers_of(found["output_ids"])]
        log_probs = [float(value) for value in numbers_of(found["output_log_probs"])]
        if said.status == 200 and len(tokens) == len(log_probs):
            return tokens, log_probs
    except (ValueError, LookupError, TypeError):
        pass
    raise GateFailed(
        "TF-HLT-006",
        "the server does not answer a recorded prompt",
        numbers={"status": said.status},
        why=f"It says: {said.error or 'nothing'}.",
        remedies=["read the server's log", "end and start it again: a model whose process died stays ready in Triton"],
    )


def _probe(server: Server, model: str, number: int, probe: Probe, recording: Recording) -> Check:
    limit = probe.limit
    # what is warmed up by the first answer may take its time once; what is late and no hang is said to be late
    waits = (limit + SLOWER * recording.warm_up_seconds, 2 * limit)
    for wait in waits:
        begin = time.monotonic()
        said = server.generate(model, request_of(probe), wait)
        seconds = time.monotonic() - begin
        tokens, log_probs = answer_of(said)
        detail = judge(number, probe, recording, tokens, log_probs)
        if seconds <= limit:
            return Check(f"recorded prompt {number}", f"{detail}; {seconds:.3f} s of {limit:.3f} s", round(seconds, 4))
    raise GateFailed(
        "TF-HLT-008",
        f"recorded prompt {number} took {seconds:.3f} s, twice more than {limit:.3f} s",
        numbers={"seconds": round(seconds, 4), "recorded_s": probe.seconds, "limit_s": round(limit, 4)},
        why=(
            f"{SLOWER:g} times the recorded time, and never less than {LEAST:g} s, is the limit: the server is "
            "overloaded or its machine slower."
        ),
        remedies=["fewer requests at once", "more servers", "look at what else runs on the machine"],
    )


def judge(number: int, probe: Probe, recording: Recording, tokens: Sequence[int], log_probs: Sequence[float]) -> str:
    """What an answer to a probe has to do with the recorded one, in words.

    Raises:
        ForgeError: TF-HLT-007 another answer, and no near tie or other probabilities.
    """
    expected = [position.token for position in probe.answer]
    parted = next((at for at, pair in enumerate(zip(expected, tokens, strict=False)) if pair[0] != pair[1]), None)
    if parted is None and len(tokens) != len(expected):
        raise _other(number, expected, tokens, f"it has {len(tokens)} tokens, and {len(expected)} are recorded")
    compared = len(expected) if parted is None else parted + 1
    recorded = [probe.answer[at].log_prob_of(tokens[at]) for at in range(compared)]
    known = [value for value in recorded if value is not None]
    if parted is not None and len(known) < compared:
        raise _other(number, expected, tokens, f"they part at token {parted}, which is no near tie")
    mean, wanted = sum(log_probs[:compared]) / compared, sum(known) / compared
    if not abs(mean - wanted) <= recording.tolerance:  # not a number is no agreement
        raise _other(
            number,
            expected,
            tokens,
            f"the mean log-probability is {mean:.4f}, and {wanted:.4f} ± {recording.tolerance:.3f} is recorded",
        )
    same = "the recorded tokens" if parted is None else f"left the recorded tokens at a near tie (token {parted})"
    return f"{same}, mean log-probability {mean:.4f} (recorded {wanted:.4f} ± {recording.tolerance:.3f})"


def _other(number: int, expected: Sequence[int], tokens: Sequence[int], why: str) -> ForgeError:
    return GateFailed(
        "TF-HLT-007",
        f"the server answers recorded prompt {number} otherwise than it was tested",
        numbers={"expected": list(expected), "got": list(tokens)},
        why=f"{why[0].upper()}{why[1:]}.",
        remedies=["serve the very bundle that --bundle names", "trtforge verify BUNDLE", "trtforge doctor"],
    )

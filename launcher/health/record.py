"""Makes the recording on a live server: what the offline engine answers, and how long the server takes for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from launcher.health.asking import Server
from launcher.health.checks import answer_of, judge, request_of
from launcher.health.recording import Position, Probe, Recording

#: seconds that an answer may take while it is recorded
PATIENCE = 120.0
#: answers of a warm server, the slowest of which is recorded
ROUNDS = 3


def record(
    url: str,
    *,
    model: str,
    layout: str,
    answers: Sequence[tuple[Sequence[int], Sequence[Position]]],
    noise: float,
    load_seconds: float,
) -> Recording:
    """Ask a server that has answered nothing yet for every prompt, and take the times.

    Args:
        url: ``HOST:PORT`` of its HTTP endpoint.
        answers: prompts in tokens, with what the offline engine answers.
        noise: what parity measured.
        load_seconds: from the server's start until it was ready.

    Raises:
        ForgeError: the server does not answer, or otherwise than the engine (TF-HLT-001 … 007).
    """
    server = Server(url, PATIENCE)
    probes = [Probe(prompt=list(prompt), answer=list(answer), seconds=0.0) for prompt, answer in answers]
    made = Recording(
        model=model,
        layout=layout,
        noise=noise,
        probes=probes,
        load_seconds=round(load_seconds, 3),
        first_seconds=0.0,
        warm_up_seconds=0.0,
    )
    first = _seconds(server, made, 1)
    taken = [[_seconds(server, made, number) for _ in range(ROUNDS)] for number in range(1, len(probes) + 1)]
    timed = [
        probe.model_copy(update={"seconds": round(max(times), 4)}) for probe, times in zip(probes, taken, strict=True)
    ]
    warm = max(0.0, first - max(taken[0]))
    return made.model_copy(
        update={"probes": timed, "first_seconds": round(first, 4), "warm_up_seconds": round(warm, 4)}
    )


def _seconds(server: Server, made: Recording, number: int) -> float:
    probe = made.probes[number - 1]
    begin = time.monotonic()
    tokens, log_probs = answer_of(server.generate(made.model, request_of(probe), PATIENCE))
    seconds = time.monotonic() - begin
    judge(number, probe, made, tokens, log_probs)
    return seconds

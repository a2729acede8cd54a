"""What a bundle's server must answer: two prompts with the greedy answer, its log-probabilities and its time.

The tokens and log-probabilities are the offline engine's. The times are the live server's, taken by the stage that
tests it. A token that rounding may choose in an expected one's stead is recorded with it, so that a check needs no
engine: :func:`runtime.determinism.near_tie_bound` says which those are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.determinism import near_tie_epsilon
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_bytes_file, read_json_file

RECORD_FILE = "evidence/health.json"
#: prompts, and tokens of each answer
PROBES, TOKENS = 2, 4
#: nats by which the mean log-probability of an answer may differ, and the multiple of parity's noise that it may too
NATS, NOISES = 0.1, 4.0
#: times the recorded time that an answer may take, and seconds that it may take in any case
SLOWER, LEAST = 5.0, 0.25
#: tokens that are recorded in an expected one's stead
_MOST_TIES = 16

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LogProb = Annotated[float, Field(le=0, allow_inf_nan=False)]
Token = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Position(_Strict):
    """One token of an answer: the expected one, its log-probability, and tokens that rounding may choose instead."""

    token: Token
    log_prob: LogProb
    ties: dict[Token, LogProb] = {}

    def log_prob_of(self, token: int) -> float | None:
        """The recorded log-probability of ``token``; None where it is not an answer that rounding explains."""
        return self.log_prob if token == self.token else self.ties.get(token)


class Probe(_Strict):
    """One prompt in tokens with its answer; ``seconds`` is what a warm server at rest took at most."""

    prompt: list[Token] = Field(min_length=1)
    answer: list[Position] = Field(min_length=1)
    seconds: Seconds

    @property
    def limit(self) -> float:
        """Seconds that an answer may take: of a few milliseconds the way to the server would be most."""
        return max(LEAST, SLOWER * self.seconds)


class Recording(_Strict):
    """What a server of the bundle is held against.

    Attributes:
        model, layout: what was asked, and by which tensors.
        noise: parity's: RMS change of the gap between the best logits by rounding, in nats.
        load_seconds: from the server's start until it was ready.
        first_seconds: the first answer of all, which finds nothing warm.
        warm_up_seconds: what that took longer than the same answer later.
    """

    version: Literal[1] = 1
    model: str
    layout: str
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    probes: list[Probe] = Field(min_length=1)
    load_seconds: Seconds
    first_seconds: Seconds
    warm_up_seconds: Seconds

    @property
    def tolerance(self) -> float:
        """Nats by which an answer's mean log-probability may differ from the recorded."""
        return max(NATS, NOISES * self.noise)

    def times(self) -> dict[str, float]:
        """Seconds of loading and warming up, by name."""
        return {
            "load_seconds": self.load_seconds,
            "first_seconds": self.first_seconds,
            "warm_up_seconds": self.warm_up_seconds,
        }


def positions(tokens: Sequence[int], rows_TV: npt.NDArray[np.float32], *, dtype: str, noise: float) -> list[Position]:
    """The first :data:`TOKENS` tokens of an answer by the logits [T, V] that they were chosen by.

    Args:
        dtype, noise: as for :func:`runtime.determinism.near_tie_bound`.
    """
    found = []
    for token, row in zip(tokens[:TOKENS], rows_TV, strict=False):
        logits = row.astype(np.float64)
        best = float(logits.max())
        log_probs = logits - (best + math.log(float(np.exp(logits - best).sum())))
        lowest = best - near_tie_epsilon(row, dtype, noise)
        likely = np.argsort(-logits, kind="stable")[: _MOST_TIES + 1].tolist() if logits[token] >= lowest else []
        ties = {int(t): min(0.0, float(log_probs[t])) for t in likely if t != token and logits[t] >= lowest}
        found.append(Position(token=int(token), log_prob=min(0.0, float(log_probs[token])), ties=ties))
    return found


def read_recording(bundle: Path) -> Recording:
    """The recording of a bundle, held against the hash that its manifest has of it.

    Raises:
        ForgeError: TF-HLT-020 this is no bundle; TF-HLT-021 the bundle has no recording; TF-HLT-022 it is damaged.
    """
    try:
        manifest = read_json_file(bundle / "manifest.json")
        listed = {str(row["path"]): str(row["sha256"]) for row in manifest["files"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ForgeError(
            "TF-HLT-020",
            "this is no bundle",
            asked=f"--bundle {bundle}",
            why=f"Its manifest.json cannot be read: {error}.",
            remedies=["trtforge run RECIPE prints the bundle's path", "trtforge artifacts list"],
        ) from error
    if RECORD_FILE not in listed:
        raise ForgeError(
            "TF-HLT-021",
            "the bundle has no recording that a server could be held against",
            asked=f"--level deep --bundle {bundle}",
            numbers={"missing": RECORD_FILE},
            why=(
                "It is made by the stage smoke, on the live server: bundles of earlier releases have none, and those "
                "whose target runs no server here."
            ),
            remedies=[
                "--level ready",
                "trtforge eval --server HOST:PORT --bundle BUNDLE holds the server against the bundle's answers",
                "trtforge run RECIPE makes the bundle anew, for targets that this machine serves",
            ],
        )
    try:
        content = read_bytes_file(bundle / RECORD_FILE)
        if hashlib.sha256(content).hexdigest() != listed[RECORD_FILE]:
            raise ValueError("its hash is not the manifest's")
        return Recording.model_validate(json.loads(content))
    except (OSError, ValueError, ValidationError) as error:
        raise ForgeError(
            "TF-HLT-022",
            f"the bundle's {RECORD_FILE} is damaged",
            asked=f"--bundle {bundle}",
            why=str(error).splitlines()[0],
            remedies=["trtforge verify BUNDLE", "trtforge run RECIPE makes the bundle anew"],
        ) from error

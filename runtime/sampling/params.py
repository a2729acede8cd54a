"""What a client may ask of generation, validated before anything runs.

Policy: every value that cannot be honoured is refused with its own code when the request is made, never
clamped and never discovered in the middle of a step. NaN fails every check. Temperature decides the
mode: 0 is greedy; left out, it is greedy unless a truncation (top_k, top_p, min_p) or a seed shows
that sampling is wanted, then 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from runtime.errors import short_repr
from trtforge.ground.errors import ForgeError

MAX_LOGPROBS = 64
MAX_STOP_CHARACTERS = 1024
#: Stop texts, bad words and bad sequences are compared at every token; an unbounded list would slow every client.
MAX_WORDS = 256


@dataclass(frozen=True, slots=True)
class GuidedDecoding:
    """A grammar that the output text must follow; exactly one field is set.

    Attributes:
        json_schema: a JSON Schema as text or mapping.
        regex: a regular expression that the whole output matches.
        choice: the output is one of these strings.
        grammar: an EBNF grammar (GBNF as llama.cpp and xgrammar read it, or Lark) whose start is ``root``.
    """

    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.grammar is not None and not isinstance(self.grammar, str):
            _refuse("guided", self.grammar, "a grammar that is text")
        if self.json_schema is not None and not isinstance(self.json_schema, (str, Mapping)):
            _refuse("guided", self.json_schema, "a json_schema that is text or a JSON object")
        if self.regex is not None and not isinstance(self.regex, str):
            _refuse("guided", self.regex, "a regex that is text")
        if self.choice is not None:
            if not isinstance(self.choice, (list, tuple)) or not all(isinstance(c, str) for c in self.choice):
                _refuse("guided", self.choice, "a choice that is a list of texts")
            object.__setattr__(self, "choice", tuple(self.choice))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request generates. Construction validates (``TF-RUN-070`` … ``TF-RUN-089``).

    Attributes:
        max_tokens: most tokens generated (≥ 1); the context limit may end the request earlier.
        temperature: ≥ 0; 0 is greedy; None see the module's policy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of likely tokens whose mass reaches p, in (0, 1].
        min_p: drop tokens less likely than min_p times the likeliest, in [0, 1].
        repetition_penalty: > 0; divides positive and multiplies negative logits of every token that
            occurs in prompt or output (Keskar et al. 2019). 1 is off.
        presence_penalty: in [-2, 2]; subtracted once from tokens that occur in the output.
        frequency_penalty: in [-2, 2]; subtracted per occurrence in the output.
        min_tokens: no end-of-sequence, stop token or stop string ends the request before that many tokens.
        bad_words: texts that the output never contains, however they are tokenized.
        bad_token_sequences: token sequences that are never completed.
        stop: texts that end the request; the output is cut before the first one.
        stop_token_ids: tokens that end the request; not part of the text.
        stop_token_sequences: token sequences that end the request once generated; part of the output.
        logit_bias: (token, bias) pairs, added to the logits before everything else; each token once.
        include_stop: keep the stop text at the end of the output.
        ignore_eos: generate past the model's own end-of-sequence tokens.
        seed: in [0, 2^64); the same seed gives the same tokens in any batch. None: drawn by the engine.
        logprobs: None for none, else the number of alternatives per token beside the chosen one (0–64).
        logprobs_mode: ``raw``: log-softmax of the model's logits; ``processed``: of what was sampled from
            (after penalties, bans, temperature and truncation).
        n: samples of one prompt; they share its blocks until they diverge.
        skip_special_tokens: leave special tokens out of the text.
        guided: grammar for the output, or None.
    """

    max_tokens: int = 128
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    bad_token_sequences: tuple[tuple[int, ...], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_token_sequences: tuple[tuple[int, ...], ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    n: int = 1
    skip_special_tokens: bool = True
    guided: GuidedDecoding | None = None

    def __post_init__(self) -> None:
        for name in ("bad_words", "stop"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        for name in ("bad_token_sequences", "stop_token_sequences"):
            object.__setattr__(self, name, _token_sequences(name, getattr(self, name)))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        for name, (test, allowed) in _NUMBER_RULES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            whole = name in _WHOLE
            # bool is an int to Python, never to a client: top_k=True is a mix-up.
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                _refuse(name, value, f"{'a whole number' if whole else 'a number'} {allowed}")
            if not _representable(value) or not test(value):
                _refuse(name, value, allowed)
        for name in ("include_stop", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "true or false")
        if self.logprobs_mode not in ("raw", "processed"):
            _refuse("logprobs_mode", self.logprobs_mode, "raw or processed")
        if self.min_tokens > self.max_tokens:
            _refuse("min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        if self.guided is not None:
            if not isinstance(self.guided, GuidedDecoding):
                _refuse("guided", self.guided, f"a GuidedDecoding (over the wire: one of {_GUIDES})")
            given = [f.name for f in dataclasses.fields(self.guided) if getattr(self.guided, f.name) is not None]
            if len(given) != 1:
                _refuse("guided", given, f"exactly one of {_GUIDES}")

    @property
    def effective_temperature(self) -> float:
        """The temperature after the default rule; 0 means greedy."""
        if self.temperature is not None:
            return float(self.temperature)
        sampled = self.top_k > 1 or self.top_p < 1 or self.min_p > 0 or self.seed is not None
        return 1.0 if sampled else 0.0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.effective_temperature == 0.0 or self.top_k == 1

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Parameters from a JSON object; an unknown name is an error with the nearest known one (``TF-RUN-085``)."""
        import difflib

        known = {f.name for f in dataclasses.fields(cls)}
        values = {str(name): value for name, value in values.items()}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise ForgeError(
                    "TF-RUN-085",
                    f"unknown sampling parameter {name!r}",
                    asked=name,
                    why="a parameter that is dropped in silence changes the output without a trace",
                    remedies=([f"did you mean {near[0]!r}?"] if near else []) + [f"known: {', '.join(sorted(known))}"],
                )
        arguments = dict(values)
        if isinstance(arguments.get("guided"), Mapping):
            try:
                arguments["guided"] = GuidedDecoding(**arguments["guided"])
            except TypeError:  # an unknown field
                _refuse("guided", arguments["guided"], f"one of {_GUIDES}")
        return cls(**arguments)


_CODES = {
    "max_tokens": "TF-RUN-070",
    "temperature": "TF-RUN-071",
    "top_k": "TF-RUN-072",
    "top_p": "TF-RUN-073",
    "min_p": "TF-RUN-074",
    "repetition_penalty": "TF-RUN-075",
    "presence_penalty": "TF-RUN-076",
    "frequency_penalty": "TF-RUN-077",
    "min_tokens": "TF-RUN-078",
    "stop": "TF-RUN-079",
    "stop_token_ids": "TF-RUN-080",
    "stop_token_sequences": "TF-RUN-080",
    "logit_bias": "TF-RUN-118",
    "bad_words": "TF-RUN-081",
    "bad_token_sequences": "TF-RUN-081",
    "seed": "TF-RUN-082",
    "logprobs": "TF-RUN-083",
    "logprobs_mode": "TF-RUN-083",
    "n": "TF-RUN-084",
    "guided": "TF-RUN-086",
    "include_stop": "TF-RUN-089",
    "ignore_eos": "TF-RUN-089",
    "skip_special_tokens": "TF-RUN-089",
}

_NUMBER_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda v: v >= 1, "at least 1"),
    "temperature": (lambda v: v >= 0, "at least 0 (0 is greedy)"),
    "top_k": (lambda v: v >= 0, "at least 0 (0 keeps every token)"),
    "top_p": (lambda v: 0 < v <= 1, "over 0 and at most 1"),
    "min_p": (lambda v: 0 <= v <= 1, "from 0 to 1"),
    "repetition_penalty": (lambda v: v > 0, "over 0 (1 is off)"),
    "presence_penalty": (lambda v: -2 <= v <= 2, "from -2 to 2"),
    "frequency_penalty": (lambda v: -2 <= v <= 2, "from -2 to 2"),
    "min_tokens": (lambda v: v >= 0, "at least 0"),
    "seed": (lambda v: 0 <= v < 2**64, "from 0 to 2^64 - 1"),
    "logprobs": (lambda v: 0 <= v <= MAX_LOGPROBS, f"from 0 to {MAX_LOGPROBS}"),
    "n": (lambda v: v >= 1, "at least 1"),
}
_GUIDES = "json_schema, regex, choice, grammar"
_WHOLE = {"max_tokens", "top_k", "min_tokens", "seed", "logprobs", "n"}
_OPTIONAL = {"temperature", "seed", "logprobs"}


def _refuse(name: str, value: Any, allowed: str) -> NoReturn:
    shown = short_repr(value)
    remedies = [f"give {name} {allowed}"]
    if name != "max_tokens":  # a server's clients must give it
        remedies.append(f"leave {name} out for its default")
    raise ForgeError(
        _CODES[name],
        f"{name} is {shown}; it must be {allowed}",
        asked=f"{name}={shown}",
        numbers={name: value if isinstance(value, int) and _representable(value) else shown},
        why="the value has no meaning for sampling, and a silent correction would hide the mistake",
        remedies=remedies,
    )


def _representable(value: float) -> bool:
    """Whether a number fits 64 bits (whole numbers; a seed takes all of them unsigned) or is finite."""
    return -(2**63) <= value < 2**64 if isinstance(value, int) else math.isfinite(value)


def _check_count(name: str, values: Sequence[Any]) -> None:
    if len(values) > MAX_WORDS:
        raise ForgeError(
            _CODES[name],
            f"{name} has {len(values)} entries; at most {MAX_WORDS} are taken",
            asked=f"{len(values)} entries of {name}",
            numbers={"entries": len(values), "limit": MAX_WORDS},
            why="every entry is compared at every token, and a long list would slow all requests of the server",
            remedies=[f"give at most {MAX_WORDS} entries of {name}", "hold the output to a grammar instead (guided)"],
        )


def _strings(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str):
        values = (values,)
    if not isinstance(values, (list, tuple)):
        _refuse(name, values, "a list of texts")
    _check_count(name, values)
    for value in values:
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_STOP_CHARACTERS:
            _refuse(name, value, f"texts of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(values)


def _token_sequences(name: str, values: Any) -> tuple[tuple[int, ...], ...]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        _refuse(name, values, "a list of token id lists")
    _check_count(name, values)
    return tuple(_token_ids(name, value, least=1) for value in values)


def _biases(values: Any) -> tuple[tuple[int, float], ...]:
    """Pairs of token and bias, from pairs or from a mapping."""
    pairs = list(values.items()) if isinstance(values, Mapping) else values
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
        _refuse("logit_bias", values, "a list of (token, bias) pairs")
    tokens = _token_ids("logit_bias", [token for token, _ in pairs])
    for _, bias in pairs:
        number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not number or not _representable(bias):
            _refuse("logit_bias", bias, "pairs of a token and a finite number")
    if len(set(tokens)) < len(tokens):
        _refuse("logit_bias", [token for token in tokens if tokens.count(token) > 1], "pairs with each token once")
    return tuple((token, float(bias)) for token, (_, bias) in zip(tokens, pairs, strict=True))


def _token_ids(name: str, values: Any, least: int = 0) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or len(values) < least:
        _refuse(name, values, f"a list of at least {least} token ids")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            _refuse(name, value, "a list of token ids (whole numbers, at least 0)")
    return tuple(values)

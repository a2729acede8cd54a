"""Smoke test of a live server: does it answer as the engine does, and does it survive its clients?

Each check is one fact; a failed one names what was expected and what came. The checks are run against
a real server through tritonclient.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.client import Answer, StreamClient
from launcher.metrics_page import read_figures
from trtforge.ground.errors import ForgeError, GateFailed
from trtforge.ground.progress import Progress, SilentProgress

ANSWER_SECONDS = 120.0
#: seconds after which a request that does not stream is taken to run
RUNNING_SECONDS = 0.2
#: tokens of an answer that may be over before its client has gone
SHORT = 64
#: short requests of each client in a burst
BURST = 16


@dataclass(frozen=True)
class Check:
    """One fact about the server."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Parting:
    """How an answer leaves the expected one: in words, and whether rounding explains it."""

    near_tie: bool
    detail: str


@dataclass(frozen=True)
class SmokeTarget:
    """The server under test and what is expected of it.

    Attributes:
        expected: greedy answers of the offline engine by prompt, ``max_tokens`` tokens each.
        parting: where an answer leaves the expected one to its prompt and by what margin, and whether that is a near
            tie; None: that is not known.
        ties: a near tie excuses a different answer in a batch, or behind drafts; for engines whose rows depend on
            their number.
        speculates: the engine drafts, and answers count it; ``expected`` was made without.
        streams: whether the model is decoupled; without, every answer is whole.
        max_input_len: tokens of the longest prompt that the engine takes.
        max_output_tokens: most tokens that a request may ask for; None: any number.
        says_max_tokens: the server says how long an answer is whose request does not.
    """

    grpc_url: str
    http_url: str
    metrics_url: str
    model: str
    expected: dict[str, str]
    max_tokens: int
    max_input_len: int
    clients: int = 32
    parting: Callable[[str, str], Parting] | None = None
    ties: bool = False
    streams: bool = True
    speculates: bool = False
    max_output_tokens: int | None = None
    says_max_tokens: bool = False


def run_smoke(target: SmokeTarget, progress: Progress | None = None) -> list[Check]:
    """All checks in order; an unexpected error of one is that check's failure."""
    report = progress or SilentProgress()
    steps: Sequence[tuple[str, Callable[[SmokeTarget], str]]] = (
        ("joined stream, whole answer and offline engine agree", _same_answers),
        ("HTTP generate and generate_stream agree with gRPC", _http_agrees),
        (f"{target.clients} concurrent clients get the answers that one gets", _concurrent_clients),
        (f"{target.clients} clients survive a burst of short requests", _burst),
        ("a cancelled client's request ends and its blocks are freed", _cancelled_client),
        ("a client that disappears does no harm", _vanishing_client),
        ("faulty requests get errors, not hangs", _faulty_requests),
        ("stop words end the answer and stay out of it", _stop_words),
    )
    if target.speculates:
        steps = (*steps, ("answers with and without drafts agree, and drafts are counted", _speculation))
    report.start("smoke test of the live server", total=len(steps))
    checks = []
    for name, step in steps:
        try:
            checks.append(Check(name, True, step(target)))
        except (AssertionError, ForgeError, OSError, ValueError, LookupError, TypeError) as error:
            detail = f"{error} {error.why or ''}" if isinstance(error, ForgeError) else str(error)
            checks.append(Check(name, False, detail.strip()))
        report.advance()
    return checks


def require(checks: Sequence[Check]) -> None:
    """Raise :class:`GateFailed` (TF-LCH-020) naming every failed check."""
    failed = [check for check in checks if not check.passed]
    if failed:
        raise GateFailed(
            "TF-LCH-020",
            f"{len(failed)} of {len(checks)} smoke checks failed",
            numbers={"failed": len(failed), "checks": len(checks)},
            why="; ".join(f"{check.name}: {check.detail}" for check in failed),
            remedies=["read the server's log", "trtforge run RECIPE --force smoke"],
        )


def checks_to_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [asdict(check) for check in checks]


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _agrees(target: SmokeTarget, who: str, prompt: str, text: str, *, batched: bool = False) -> bool:
    """Whether the answer is the expected one; False where a near tie, in a batch or behind drafts, excuses it.

    Raises:
        AssertionError: it is not; the message says where the answers part and by what margin.
    """
    expected = target.expected[prompt]
    if text == expected:
        return True
    found = None if target.parting is None else target.parting(prompt, text)
    excused = (batched or target.speculates) and target.ties and found is not None and found.near_tie
    where = "" if found is None else f"; {found.detail}"
    _expect(excused, f"{who}, prompt {prompt!r}: got {text!r}, expected {expected!r}{where}")
    return False


def _greedy(prompt: str, target: SmokeTarget, **more: Any) -> dict[str, Any]:
    return {"text_input": prompt, "max_tokens": target.max_tokens, **more}


def _same_answers(target: SmokeTarget) -> str:
    pieces = 0
    with StreamClient(target.grpc_url, target.model) as client:
        for prompt in target.expected:
            whole = client.ask(_greedy(prompt, target), ANSWER_SECONDS)
            streamed = client.ask(_greedy(prompt, target, stream=True), ANSWER_SECONDS) if target.streams else whole
            _expect(streamed.error is None and whole.error is None, f"refused: {streamed.error or whole.error}")
            _expect(len(whole.pieces) == 1, f"a request without stream got {len(whole.pieces)} responses")
            if not target.speculates:  # how far the engine drafts is not the same every time
                _expect(streamed.text == whole.text, f"stream {streamed.text!r} differs from whole {whole.text!r}")
            _agrees(target, "server against offline engine", prompt, whole.text)
            _agrees(target, "joined stream against offline engine", prompt, streamed.text)
            pieces += len(streamed.pieces)
    return f"{len(target.expected)} prompts, {pieces} {'streamed pieces' if target.streams else 'whole answers'}"


def _http_agrees(target: SmokeTarget) -> str:
    """The longest answers first, until one comes in several events: a stream of one piece would prove little."""
    prompts = sorted(target.expected, key=lambda prompt: -len(target.expected[prompt]))
    for prompt in prompts:
        events = _http_answer(target, prompt)
        if events > 1:
            return f"{events} server-sent events"
    return f"{len(prompts)} answers, each one piece long: no stream of several events was seen"


def _post(url: str, body: bytes) -> Any:
    """The open answer to a JSON request; without the header it would be taken for a form."""
    asked = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    return urllib.request.urlopen(asked, timeout=ANSWER_SECONDS)


def _http_answer(target: SmokeTarget, prompt: str) -> int:
    """One prompt, whole and streamed; returns how many events the stream had."""
    url = f"http://{target.http_url}/v2/models/{target.model}"
    body = json.dumps({"text_input": prompt, "max_tokens": target.max_tokens}).encode()
    with _post(f"{url}/generate", body) as answer:
        whole = json.loads(answer.read())["text_output"]
    _agrees(target, "generate", prompt, whole)
    if not target.streams:
        return 1
    body = json.dumps({"text_input": prompt, "max_tokens": target.max_tokens, "stream": True}).encode()
    with _post(f"{url}/generate_stream", body) as answer:
        events = [line[len("data:") :] for line in answer.read().decode().splitlines() if line.startswith("data:")]
    streamed = "".join(json.loads(event)["text_output"] for event in events)
    _agrees(target, "generate_stream, joined", prompt, streamed)
    return len(events)


def _concurrent_clients(target: SmokeTarget) -> str:
    prompts = list(target.expected)
    answers: dict[int, Answer | str] = {}

    def one(index: int) -> None:
        try:
            with StreamClient(target.grpc_url, target.model) as client:
                values = _greedy(prompts[index % len(prompts)], target, stream=target.streams and index % 2 == 0)
                answers[index] = client.ask(values, ANSWER_SECONDS)
        except Exception as error:  # a client's thread must not die in silence
            answers[index] = f"{type(error).__name__}: {error}"

    _in_threads(one, target.clients)
    excused = 0
    for index in range(target.clients):
        answer = answers.get(index, "no answer")
        prompt = prompts[index % len(prompts)]
        _expect(isinstance(answer, Answer), f"client {index}: {answer}")
        assert isinstance(answer, Answer)
        _expect(answer.error is None, f"client {index}: {answer.error}")
        excused += not _agrees(target, f"client {index}", prompt, answer.text, batched=True)
    ties = f", {excused} answers differ from a near tie on" if target.ties else ""
    return f"{target.clients} clients, {len(prompts)} prompts{ties}"


def _in_threads(one: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=2 * ANSWER_SECONDS)


def _burst(target: SmokeTarget) -> str:
    """Answers of one to three tokens: requests end and begin as fast as the server can take them."""
    prompt = next(iter(target.expected))
    failed: list[str] = []
    answered: list[int] = []

    def one(index: int) -> None:
        try:
            with StreamClient(target.grpc_url, target.model) as client:
                for turn in range(BURST):
                    stream = target.streams and turn % 2 == 0
                    values = {"text_input": prompt, "max_tokens": 1 + (index + turn) % 3, "stream": stream}
                    answer = client.ask(values, ANSWER_SECONDS)
                    if answer.error is not None:
                        failed.append(answer.error)
                    answered.append(index)
        except Exception as error:  # a client's thread must not die in silence
            failed.append(f"{type(error).__name__}: {error}")

    _in_threads(one, target.clients)
    _expect(not failed, f"{len(failed)} of {target.clients * BURST} failed, the first with: {failed[:1]}")
    _expect(len(answered) == target.clients * BURST, f"{len(answered)} of {target.clients * BURST} were answered")
    return f"{len(answered)} requests"


_GAUGES = ("num_requests_running", "kv_blocks_used")
_GENERATED = "generation_tokens_total"
_DRAFTED = "spec_decode_num_draft_tokens_total"
_ACCEPTED = "spec_decode_num_accepted_tokens_total"


def _metrics(target: SmokeTarget) -> dict[str, float]:
    """The engine's figures on the server's metrics page."""
    figures = read_figures(target.metrics_url)
    missing = {*_GAUGES, _GENERATED} - figures.keys()
    _expect(not missing, f"the metrics page lacks the engine's figures {sorted(missing)}")
    return figures


def _wait_idle(target: SmokeTarget, seconds: float = 20.0) -> dict[str, float]:
    """Figures once nothing runs and no block is held, or the last ones seen."""
    end = time.monotonic() + seconds
    figures = _metrics(target)
    while any(figures[name] for name in _GAUGES) and time.monotonic() < end:
        time.sleep(0.1)
        figures = _metrics(target)
    time.sleep(0.2)  # the page is refreshed every 50 ms: counters of the last step must be on it
    return _metrics(target)


def _held(figures: dict[str, float]) -> dict[str, float]:
    return {name: figures[name] for name in _GAUGES}


def _long_request(target: SmokeTarget) -> dict[str, Any]:
    """A request that runs as long as the engine's and the server's limits allow, streamed where the model streams."""
    tokens = max(1, target.max_input_len - 64)
    if target.max_output_tokens is not None:
        tokens = min(tokens, target.max_output_tokens)
    prompt = next(iter(target.expected))
    return {"text_input": prompt, "max_tokens": tokens, "min_tokens": tokens, "stream": target.streams}


def _cancelled_client(target: SmokeTarget) -> str:
    before = _wait_idle(target)[_GENERATED]
    request = _long_request(target)
    client = StreamClient(target.grpc_url, target.model)
    client.send(request)
    if target.streams:
        next(iter(client.receive(ANSWER_SECONDS)))
    else:
        time.sleep(RUNNING_SECONDS)
    client.close(cancel=True)
    after = _wait_idle(target)
    generated = after[_GENERATED] - before
    _expect(not any(after[name] for name in _GAUGES), f"after the cancellation the engine still holds {_held(after)}")
    if request["max_tokens"] <= SHORT and generated >= request["max_tokens"]:
        return f"an answer of {generated:.0f} tokens was over before its client could go; no block is held"
    _expect(generated < request["max_tokens"], f"the cancelled request ran to its end ({generated:.0f} tokens)")
    return f"ended after {generated:.0f} of {request['max_tokens']} tokens; no block is held"


def _vanishing_client(target: SmokeTarget) -> str:
    prompt = next(iter(target.expected))
    host, port = target.http_url.rsplit(":", 1)
    body = json.dumps(_long_request(target))
    verb = "generate_stream" if target.streams else "generate"
    request = (
        f"POST /v2/models/{target.model}/{verb} HTTP/1.1\r\nHost: {target.http_url}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as raw:
        raw.sendall(request.encode())
        if target.streams:
            raw.recv(256)  # the answer has begun; now the client is gone
        else:
            time.sleep(RUNNING_SECONDS)
    with StreamClient(target.grpc_url, target.model) as client:
        answer = client.ask(_greedy(prompt, target), ANSWER_SECONDS)
    _expect(answer.error is None, f"the next client got {answer.error}")
    _agrees(target, "the next client", prompt, answer.text)
    figures = _wait_idle(target, seconds=ANSWER_SECONDS)
    _expect(not any(figures[name] for name in _GAUGES), f"the engine still holds {_held(figures)}")
    return "the next client was answered and the engine came to rest"


def _faulty_requests(target: SmokeTarget) -> str:
    prompt = next(iter(target.expected))
    cases: list[tuple[str, dict[str, Any], dict[str, str] | None]] = [
        ("over-long prompt", {"text_input": "word " * (target.max_input_len + 8), "max_tokens": 4}, None),
        ("max_tokens 0", {"text_input": prompt, "max_tokens": 0}, None),
        ("negative temperature", _greedy(prompt, target, temperature=-1.0), None),
        ("top_p 1.5", _greedy(prompt, target, top_p=1.5), None),
        ("NaN temperature", _greedy(prompt, target, temperature=float("nan")), None),
        ("beam_width 4", _greedy(prompt, target, beam_width=4), None),
        ("text that is not UTF-8", _greedy(prompt, target) | {"text_input": b"\xff\xfe"}, None),
        ("two prompts in one tensor", _greedy(prompt, target) | {"text_input": [prompt, prompt]}, None),
        ("max_tokens as INT64", _greedy(prompt, target), {"max_tokens": "INT64"}),
    ]
    if not target.says_max_tokens:
        cases.append(("missing max_tokens", {"text_input": prompt}, None))
    if target.max_output_tokens is not None:
        over = {"text_input": prompt, "max_tokens": target.max_output_tokens + 1}
        cases.append(("more tokens than the server gives", over, None))
    for name, values, dtypes in cases:
        with StreamClient(target.grpc_url, target.model) as client:
            answer = client.ask(values, 30.0, dtypes)
        _expect(answer.error is not None, f"{name}: accepted and answered {answer.text!r}")
    with StreamClient(target.grpc_url, target.model) as client:
        answer = client.ask(_greedy(prompt, target), ANSWER_SECONDS)
    _expect(answer.error is None, f"after the faulty requests a good one got {answer.error}")
    _agrees(target, "after the faulty requests", prompt, answer.text)
    return f"{len(cases)} faulty requests refused"


def _stop_words(target: SmokeTarget) -> str:
    prompt, expected = max(target.expected.items(), key=lambda item: len(item[1]))
    with StreamClient(target.grpc_url, target.model) as client:
        if target.speculates:  # where a near tie turned the answer, what is cut is the answer that the server gives
            expected = client.ask(_greedy(prompt, target), ANSWER_SECONDS).text
        _expect(len(expected) >= 8, f"no answer is long enough to stop inside: {expected!r}")
        middle = len(expected) // 2
        stop = expected[middle : middle + 3]
        cut = expected[: expected.index(stop)]
        whole = client.ask(_greedy(prompt, target, stop_words=[stop]), ANSWER_SECONDS)
        streamed = client.ask(_greedy(prompt, target, stop_words=[stop], stream=target.streams), ANSWER_SECONDS)
    _expect(whole.text == cut, f"stop word {stop!r}: got {whole.text!r}, expected {cut!r}")
    _expect(streamed.text == cut, f"stop word {stop!r} in a stream: got {streamed.text!r}, expected {cut!r}")
    _expect(whole.finish_reason == "stop", f"finish_reason is {whole.finish_reason!r}")
    return f"stopped at {stop!r}"


def _speculation(target: SmokeTarget) -> str:
    """The switch, the counts in answers, and those on the metrics page."""
    before = _wait_idle(target)
    drafted = accepted = 0
    with StreamClient(target.grpc_url, target.model) as client:
        for prompt in target.expected:
            off = client.ask(_greedy(prompt, target, speculate=False), ANSWER_SECONDS)
            on = client.ask(_greedy(prompt, target, speculate=True, stream=target.streams), ANSWER_SECONDS)
            _expect(off.error is None and on.error is None, f"refused: {off.error or on.error}")
            _expect((off.draft_tokens, off.accepted_tokens) == (0, 0), f"drafts that a request forbade: {off}")
            _expect(on.draft_tokens is not None, "an answer has no total_draft_tokens")
            assert on.draft_tokens is not None and on.accepted_tokens is not None
            _expect(0 <= on.accepted_tokens <= on.draft_tokens, f"accepted more than was drafted: {on}")
            _expect(on.accepted_tokens < max(1, on.output_tokens), f"more drafts accepted than tokens: {on}")
            _agrees(target, "without drafts", prompt, off.text)
            _agrees(target, "with drafts", prompt, on.text)
            drafted, accepted = drafted + on.draft_tokens, accepted + on.accepted_tokens
    after = _wait_idle(target)
    for name, counted in ((_DRAFTED, drafted), (_ACCEPTED, accepted)):
        grown = after.get(name, 0.0) - before.get(name, 0.0)
        _expect(grown == counted, f"{name} grew by {grown:.0f}, and the answers count {counted}")
    return f"{len(target.expected)} prompts; {drafted} draft tokens, {accepted} of them accepted"

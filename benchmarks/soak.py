"""A soak of a live server whose engine speculates: many clients at once, over a KV pool that is too small for them.

    python -m benchmarks.soak --engine DIR [--minutes M] [--clients N] [--blocks N] [--seed S] [--json FILE]

Requests are greedy, endless, sampled, guided, with stop words or log-probabilities; streamed or whole; with drafts,
without, or silent about them; a fifth of them is withdrawn on the way. Every answer is held against what the engine
says offline, alone and without drafts (up to near ties where its rows depend on their number). At the end nothing may
run and no block may be held, no step may have failed, and there must have been drafts and preemptions. Exit code 1 when
a fact is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.client import Answer, StreamClient
from launcher.local import TritonServer
from launcher.metrics_page import read_figures
from launcher.smoke import Parting
from launcher.stubs import stubs_of
from triton_repo.layouts.native import emit
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress

MODEL = "soak"
TOKENS = 48
#: share of the requests that are withdrawn
CANCELLED = 0.2
#: seconds for an answer under load, and for the engine to come to rest
ANSWER_SECONDS, REST_SECONDS = 300.0, 60.0
_SENTENCE = "The quick brown fox jumps over the lazy dog while seven wizards mix a potion of ink and salt. "
#: texts with much, some and nothing to copy, of one to a dozen blocks
PROMPTS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "one two three four one two three four one two three four one two three",
    f"Repeat this text word for word: {_SENTENCE * 2}\nThe text again: {_SENTENCE}",
    f"Correct the spelling of this text. {_SENTENCE * 4}\nCorrected: {_SENTENCE[:40]}",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["red", "green", "blue"]}, "sure": {"type": "boolean"}},
    "required": ["kind", "sure"],
    "additionalProperties": False,
}
SAMPLING = {"temperature": 0.8, "top_k": 40}


@dataclass(frozen=True)
class Asked:
    """A kind of request for one prompt, and what the engine answers alone and without drafts."""

    kind: str
    prompt: str
    values: dict[str, Any]
    expected: str


@dataclass
class Tally:
    """What the clients saw; written under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Soak:
    """The result: figures for people, and the facts that were missed."""

    figures: dict[str, Any]
    missed: list[str]


class Judge:
    """Holds answers against the offline engine's.

    Args:
        asked: every kind of request with its expected answer.
        parting: where an answer to a greedy request leaves the expected one.
        exact: no near tie excuses anything: the engine's rows do not depend on their number.
        tokens: of an answer at most.
    """

    def __init__(
        self, asked: Sequence[Asked], parting: Callable[[str, str], Parting], *, exact: bool, tokens: int = TOKENS
    ) -> None:
        self.asked, self.tokens = list(asked), tokens
        self._parting, self._exact = parting, exact

    def fault(self, asked: Asked, answer: Answer, *, drafts: bool) -> str | None:
        """What is wrong with an answer that came to its end; None: nothing."""
        if answer.error is not None:
            return f"{asked.kind}: {answer.error}"
        if answer.draft_tokens is None or answer.accepted_tokens is None:
            return f"{asked.kind}: the answer counts no drafts"
        if not 0 <= answer.accepted_tokens <= answer.draft_tokens or (answer.draft_tokens and not drafts):
            return f"{asked.kind}: {answer.draft_tokens} drafted, {answer.accepted_tokens} accepted, drafts {drafts}"
        if asked.kind == "log-probabilities" and len(answer.log_probs) != answer.output_tokens:
            return f"{len(answer.log_probs)} log-probabilities of {answer.output_tokens} tokens"
        if asked.kind == "guided" and answer.finish_reason == "stop" and not _fits(answer.text):
            return f"guided: {answer.text!r} does not fit its schema"
        if answer.text == asked.expected or (asked.kind in ("sampled", "guided", "endless") and not self._exact):
            return None
        found = self._parting(asked.prompt, answer.text)
        if found.near_tie and not self._exact:
            return None
        return f"{asked.kind}, {asked.prompt[:40]!r}: {answer.text!r} for {asked.expected!r}; {found.detail}"


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and set(value) == set(SCHEMA["required"])
        and value["kind"] in SCHEMA["properties"]["kind"]["enum"]
        and isinstance(value["sure"], bool)
    )


def with_blocks(engine_dir: Path, out: Path, blocks: int) -> Path:
    """A copy of an engine (its files as links) that plans ``blocks`` KV blocks, its draft's engine likewise."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copyfile(source, target)

    shutil.copytree(engine_dir, out, copy_function=link)
    for path in out.rglob("engine.json"):
        engine = json.loads(path.read_text(encoding="utf-8"))
        engine["kv_cache"]["num_blocks"] = blocks
        path.unlink()  # the original stays as it is
        path.write_text(json.dumps(engine), encoding="utf-8")
    return out


def offline_judge(engine_dir: Path, *, noise: float = 0.0, tokens: int = TOKENS) -> Judge:
    """Ask the engine of the directory in this process, one request after the other and without drafts."""
    from runtime.offline import Engine
    from runtime.sampling.params import GuidedDecoding, SamplingParams
    from trtforge.pipeline.stages.smoke import Partings, answer_offline

    with Engine.load(engine_dir) as engine:
        offline = answer_offline(engine, SilentProgress(), PROMPTS, tokens)

        def alone(prompt: str, **more: Any) -> str:
            params = SamplingParams(max_tokens=tokens, **more)
            return engine.generate(prompt, params, speculate=False)[0].text

        asked = []
        for number, (prompt, text) in enumerate(offline.texts.items()):
            asked += [Asked(kind, prompt, {}, text) for kind in ("greedy", "greedy")]
            asked.append(Asked("log-probabilities", prompt, {"return_log_probs": True}, text))
            # answers that end at max_tokens grow into blocks that others hold
            endless = Asked("endless", prompt, {"end_id": -1}, alone(prompt, temperature=0.0, ignore_eos=True))
            asked += [endless, endless]
            sampled = alone(prompt, **SAMPLING, seed=number)
            asked.append(Asked("sampled", prompt, {**SAMPLING, "seed": number}, sampled))
            guide = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)}
            guided = alone(prompt, temperature=0.0, guided=GuidedDecoding(json_schema=json.dumps(SCHEMA)))
            asked.append(Asked("guided", prompt, guide, guided))
            stop = text[len(text) // 2 :][:3]
            if stop.strip():
                asked.append(Asked("stop words", prompt, {"stop_words": [stop]}, text[: text.index(stop)]))
        tokenizer = engine.tokenizer
        assert tokenizer is not None
    return Judge(asked, Partings(offline, tokenizer.decode, noise), exact=offline.repeats_exactly, tokens=tokens)


class Client(threading.Thread):
    """One client: asks, listens or leaves, until the time is over."""

    def __init__(self, number: int, seed: int, url: str, judge: Judge, tally: Tally, end: float) -> None:
        super().__init__(daemon=True)
        self._random = random.Random(f"{seed}/{number}")
        self._url, self._judge, self._tally, self._end = url, judge, tally, end
        self._client: StreamClient | None = None

    def run(self) -> None:
        while time.monotonic() < self._end:
            try:
                self._once()
            except Exception as error:  # a client's thread must not die in silence
                self._tell(f"{type(error).__name__}: {error}")
                self._leave()
        self._leave()

    def _once(self) -> None:
        choose = self._random
        asked, stream = choose.choice(self._judge.asked), choose.random() < 0.5
        values = {"text_input": asked.prompt, "max_tokens": self._judge.tokens, "stream": stream, **asked.values}
        switch = choose.choice((None, True, False))
        if switch is not None:
            values["speculate"] = switch
        self._client = self._client or StreamClient(self._url, MODEL)
        if choose.random() < CANCELLED:
            self._client.send(values)
            if stream:
                for count, _ in enumerate(self._client.receive(ANSWER_SECONDS)):
                    if count >= choose.randrange(12):
                        break
            else:
                time.sleep(choose.random() * 0.5)
            self._leave()
            with self._tally.lock:
                self._tally.cancelled += 1
            return
        answer = self._client.ask(values, ANSWER_SECONDS)
        fault = self._judge.fault(asked, answer, drafts=switch is not False)
        if fault is not None:
            self._tell(fault)
        with self._tally.lock:
            self._tally.answered[asked.kind] += 1
            self._tally.differing[asked.kind] += answer.text != asked.expected
            self._tally.tokens += answer.output_tokens
            self._tally.drafted += answer.draft_tokens or 0
            self._tally.accepted += answer.accepted_tokens or 0

    def _leave(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            client.close(cancel=True)

    def _tell(self, fault: str) -> None:
        with self._tally.lock:
            self._tally.faults.append(fault)


def soak(server: TritonServer, judge: Judge, *, clients: int, seconds: float, seed: int) -> Soak:
    """Let the clients loose on a running server of :data:`MODEL`, then wait for it to come to rest and judge."""
    url = f"{server.host}:{server.metrics_port}"
    before, held, begin = read_figures(url), _resident(server), time.monotonic()
    tally = Tally()
    threads = [Client(i, seed, server.grpc_url, judge, tally, begin + seconds) for i in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 2)
    half = _resident(server)
    for thread in threads:
        thread.join(timeout=seconds + ANSWER_SECONDS)
    took = time.monotonic() - begin
    after = _rest(url)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items() if name.endswith("_total")}
    drafts, accepted = grown.get("spec_decode_num_drafts_total", 0.0), grown["spec_decode_num_accepted_tokens_total"]
    figures: dict[str, Any] = {
        "seconds": round(took, 1),
        "clients": clients,
        "answered": dict(sorted(tally.answered.items())),
        "differing": {kind: count for kind, count in sorted(tally.differing.items()) if count},
        "cancelled": tally.cancelled,
        "tokens_per_second": round(tally.tokens / took, 1),
        "preemptions": int(grown["num_preemptions_total"]),
        "drafts": int(drafts),
        "draft_tokens": int(grown.get("spec_decode_num_draft_tokens_total", 0.0)),
        "accepted_tokens": int(accepted),
        "tokens_without_draft": int(grown.get("spec_decode_num_skipped_total", 0.0)),
        "accepted_length": round((drafts + accepted) / drafts, 2) if drafts else 0.0,
        "kv_blocks": int(after["kv_blocks_total"]),
        "kv_blocks_held": int(after["kv_blocks_used"]),
        "running": int(after["num_requests_running"] + after["num_requests_waiting"]),
        "resident_mib": [held, half, _resident(server)],
    }
    facts = {
        "every answer is right": not tally.faults,
        "every client came to its end": not any(thread.is_alive() for thread in threads),
        "there were answers of every kind": set(tally.answered) == {asked.kind for asked in judge.asked},
        "requests were withdrawn": tally.cancelled > 0,
        "nothing runs any more": figures["running"] == 0,
        "no block is held": figures["kv_blocks_held"] == 0,
        "no step failed": grown["step_failures_total"] == 0,
        "sequences were preempted": figures["preemptions"] > 0,
        "drafts were verified and some accepted": accepted > 0,
        "answers count no more drafts than the engine": tally.drafted <= figures["draft_tokens"],
    }
    missed = [fact for fact, holds in facts.items() if not holds]
    return Soak(figures, missed + [f"  {fault}" for fault in tally.faults[:20]])


def _rest(url: str) -> dict[str, float]:
    """Figures once nothing runs, or the last ones within the time that is given."""
    end = time.monotonic() + REST_SECONDS
    figures = read_figures(url)
    while (figures["num_requests_running"] or figures["kv_blocks_used"]) and time.monotonic() < end:
        time.sleep(0.2)
        figures = read_figures(url)
    time.sleep(0.3)  # the page is refreshed every 50 ms
    return read_figures(url)


def _resident(server: TritonServer) -> int:
    """MiB that the model's process holds."""
    if server.process is None:
        return 0
    return sum(process.memory_info().rss for process in stubs_of(server.process.pid)) >> 20


def run(
    engine_dir: Path,
    *,
    blocks: int,
    clients: int,
    seconds: float,
    log: Path,
    seed: int = 11,
    noise: float = 0.0,
    tokens: int = TOKENS,
) -> Soak:
    """The whole soak over a copy of the engine with a small pool; the server is started and stopped here."""
    with tempfile.TemporaryDirectory(prefix="trtforge-soak-", dir=engine_dir.resolve().parent) as name:
        folder = Path(name)
        engine = with_blocks(engine_dir, folder / "engine", blocks)
        judge = offline_judge(engine, noise=noise, tokens=tokens)
        emit(engine, folder / "repository", name=MODEL)
        with TritonServer(folder / "repository", log_path=log) as server:
            return soak(server, judge, clients=clients, seconds=seconds, seed=seed)


def main() -> int:
    """Exit 1 when a fact is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, metavar="DIR", required=True, help="an engine that speculates")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M")
    parser.add_argument("--clients", type=int, default=32, metavar="N")
    parser.add_argument("--blocks", type=int, default=24, metavar="N", help="KV blocks of the pool")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="tokens of an answer at most")
    parser.add_argument("--seed", type=int, default=11, metavar="S")
    parser.add_argument("--noise", type=float, default=0.0, help="parity's figure of that name, for near ties")
    parser.add_argument("--log", type=Path, default=Path("soak-server.log"), metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        result = run(
            options.engine,
            blocks=options.blocks,
            clients=options.clients,
            seconds=60 * options.minutes,
            seed=options.seed,
            noise=options.noise,
            tokens=options.tokens,
            log=options.log,
        )
    except ForgeError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result.figures, indent=1))
    for line in result.missed:
        print(f"MISSED {line}")
    if options.json:
        options.json.write_text(json.dumps({**result.figures, "missed": result.missed}, indent=1) + "\n")
    return 1 if result.missed else 0


if __name__ == "__main__":
    sys.exit(main())

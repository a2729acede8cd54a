"""What OpenAI's API costs: the front's streams beside gRPC streams of the same Triton, in one run.

    python -m benchmarks.openai_front [--engine DIR] [--rounds 5] [--quick] [--json FILE]

Both ask the same chats of one server, in turn; each prompt is new, so that nothing is found in a cache. Bars: the
median time to the first text through the front is at most 3 ms longer than by gRPC, alone on the server; and with 16
streams the front's process takes at most 10 % of the processor time that Triton's processes take for them.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import common
from launcher.client import StreamClient
from launcher.local import TritonServer
from triton_repo.layouts.native import emit

RECIPE = common.ROOT / "configs" / "smollm2-135m-fp8.yaml"
MODEL = "bench"
MOST_ADDED_MS = 3.0
MOST_SHARE = 0.10
STREAMS = 16
#: a client: asks a prompt for so many tokens; seconds to the first text
Ask = Callable[[str, int], float]


def prompts() -> Iterator[str]:
    """Prompts of one length, none like another from its first word on."""
    for number in itertools.count(int(time.time()) % 10_000 * 10_000):
        yield f"{number} is a number. Write a short story about a harbour in which it plays a part."


def by_grpc(address: str) -> tuple[Ask, Callable[[], None]]:
    """A client on a gRPC stream of its own, and what ends it."""
    client = StreamClient(address, MODEL)

    def ask(prompt: str, tokens: int) -> float:
        values = {"text_input": prompt, "chat": True, "stream": True, "max_tokens": tokens, "min_tokens": tokens}
        answer = client.ask({**values, "temperature": 0.0})
        if answer.error is not None or answer.output_tokens != tokens or answer.seconds_to_first is None:
            raise RuntimeError(f"by gRPC: {answer.error or answer.output_tokens}")
        return answer.seconds_to_first

    return ask, client.close


def by_front(address: str) -> tuple[Ask, Callable[[], None]]:
    """A client on a connection of its own, which stays open, and what ends it."""
    connection = http.client.HTTPConnection(address, timeout=120)

    def ask(prompt: str, tokens: int) -> float:
        messages = [{"role": "user", "content": prompt}]
        options = {"temperature": 0, "min_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
        body = {"model": MODEL, "messages": messages, "max_tokens": tokens, **options}
        begin, first, made = time.monotonic(), 0.0, 0
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            if not first and b'"delta":{"content":"' in line:
                first = time.monotonic() - begin
            elif b'"usage":{' in line:
                made = json.loads(line[6:])["usage"]["completion_tokens"]
        if response.status != 200 or made != tokens or not first:
            raise RuntimeError(f"through the front: HTTP {response.status}, {made} tokens")
        return first

    return ask, connection.close


@contextmanager
def front_of(server: TritonServer, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """The front in a process of its own: its address and the process."""
    command = [sys.executable, "-m", "trtforge", "openai", "--server", server.grpc_url, "--repository"]
    process = subprocess.Popen(
        [*command, str(folder / "repository"), "--port", "0", "--model", MODEL, "--quiet"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=common.ROOT,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://([^/]+)/v1", process.stdout.readline())
        if found is None:
            raise RuntimeError("the front did not start")
        yield found[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


def processor_seconds(process: psutil.Process) -> float:
    """Of a process and all below it so far."""
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def first_texts(clients: dict[str, Ask], rounds: int, asks: int, new: Iterator[str]) -> dict[str, list[float]]:
    """Milliseconds to the first text of each client, asked in turn."""
    found: dict[str, list[float]] = {name: [] for name in clients}
    for number in range(rounds * asks):
        order = list(clients) if number % 2 else list(reversed(clients))
        for name in order:
            found[name].append(clients[name](next(new), 4) * 1e3)
    return found


def load(make: Callable[[], tuple[Ask, Callable[[], None]]], tokens: int, new: Iterator[str]) -> float:
    """Seconds in which 16 streams have two answers each."""
    made = [make() for _ in range(STREAMS)]
    asked = [[next(new), next(new)] for _ in made]
    begin = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(lambda pair: [pair[0][0](prompt, tokens) for prompt in pair[1]], zip(made, asked, strict=True)))
    seconds = time.monotonic() - begin
    for _, close in made:
        close()
    return seconds


def measure(engine: Path, rounds: int, asks: int, tokens: int) -> dict[str, Any]:
    """All figures of one server."""
    new = prompts()
    with tempfile.TemporaryDirectory(prefix="trtforge-openai-") as name:
        folder = Path(name)
        (folder / "engine").symlink_to(engine.resolve())
        emit(folder / "engine", folder / "repository", name=MODEL)
        log = folder / "server.log"
        with TritonServer(folder / "repository", log_path=log) as server, front_of(server, folder) as (address, front):
            assert server.process is not None
            triton = psutil.Process(server.process.pid)
            ways = {"gRPC": lambda: by_grpc(server.grpc_url), "front": lambda: by_front(address)}
            opened = {way: make() for way, make in ways.items()}
            asking = {way: ask for way, (ask, _) in opened.items()}
            first_texts(asking, 1, 3, new)  # the first ones pay for what comes up once
            first = first_texts(asking, rounds, asks, new)
            for _, close in opened.values():
                close()
            rows = []
            for _ in range(rounds):
                row: dict[str, float] = {}
                for way, make in ways.items():
                    before = processor_seconds(triton), processor_seconds(front)
                    row[f"{way} tokens/s"] = 2 * STREAMS * tokens / load(make, tokens, new)
                    row[f"{way} triton s"] = processor_seconds(triton) - before[0]
                    row[f"{way} front s"] = processor_seconds(front) - before[1]
                rows.append(row)
            memory = front.memory_info().rss / 2**20
    added = statistics.median(first["front"]) - statistics.median(first["gRPC"])
    shares = [row["front front s"] / row["front triton s"] for row in rows]
    return {
        "first_ms": {way: [statistics.median(values), *_quartiles(values)] for way, values in first.items()},
        "added_ms": added,
        "share": statistics.median(shares),
        "share_range": [min(shares), max(shares)],
        "front_us_a_token": statistics.median(row["front front s"] for row in rows) / (2 * STREAMS * tokens) * 1e6,
        "speed_ratio": statistics.median(row["front tokens/s"] / row["gRPC tokens/s"] for row in rows),
        "rounds": rows,
        "front_rss_mib": memory,
    }


def _quartiles(values: list[float]) -> list[float]:
    low, _, high = statistics.quantiles(values, n=4)
    return [low, high]


def main() -> int:
    """Print the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, metavar="DIR", help="default: that of the demo's recipe, built first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer under load")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    engine = options.engine or common.run_recipe(RECIPE)["build"]
    figures = measure(engine, 2 if options.quick else options.rounds, 12, options.tokens)
    for way, (median, low, high) in figures["first_ms"].items():
        print(f"first text, {way:6}{median:8.1f} ms, quartiles {low:.1f} to {high:.1f}")
    low, high = figures["share_range"]
    added, share = figures["added_ms"], figures["share"]
    held = {
        f"the front adds {added:.2f} ms to the first text (at most {MOST_ADDED_MS:g})": added <= MOST_ADDED_MS,
        f"{STREAMS} streams: the front takes {share:.1%} of Triton's processor time, {low:.1%} to {high:.1%} "
        f"(at most {MOST_SHARE:.0%})": share <= MOST_SHARE,
    }
    print(
        f"{STREAMS} streams: {figures['front_us_a_token']:.0f} µs of the front a token, {figures['speed_ratio']:.2f} "
        f"of gRPC's tokens/s; the front holds {figures['front_rss_mib']:.0f} MiB"
    )
    for name, ok in held.items():
        print(f"  {'holds ' if ok else 'MISSED'} {name}")
    if options.json:
        options.json.write_text(json.dumps(figures | {"held": held}, indent=1) + "\n")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

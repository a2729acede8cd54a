"""Load on a live Triton server with NVIDIA's perf_analyzer (the binary in tritonclient's wheel).

perf_analyzer exports the time of every response of every request; the figures here are computed from
that export, so a server and an in-process engine are measured by the same definitions. Needs the
model's ``text_input, max_tokens, min_tokens, stream`` inputs; ``min_tokens`` equals ``max_tokens`` so
that every request has the same length.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from evals.speed.latency import LevelResult, RequestTiming, summarize
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema import Slo

#: libraries that the binary needs under their sonames; the server's wheel carries them renamed
_SONAMES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}

#: times that a level is measured until its export can be read
ATTEMPTS = 2


def find_perf_analyzer() -> Path:
    """The binary beside this interpreter or on PATH.

    Raises:
        EnvironmentLacks: TF-ENV-031 when there is none.
    """
    beside = Path(sys.executable).parent / "perf_analyzer"
    found = str(beside) if beside.is_file() else shutil.which("perf_analyzer")
    if found is None:
        raise EnvironmentLacks(
            "TF-ENV-031",
            "perf_analyzer is not installed",
            remedies=["pip install 'tritonclient[grpc,http]==2.51.0'"],
        )
    return Path(found)


def library_environment(folder: Path) -> dict[str, str]:
    """Environment in which the binary finds its libraries; symlinks are made in ``folder``."""
    environment = dict(os.environ)
    with contextlib.suppress(metadata.PackageNotFoundError):
        carried = Path(str(metadata.distribution("nvidia-pytriton").locate_file("nvidia_pytriton.libs")))
        for soname, pattern in _SONAMES.items():
            matches = sorted(carried.glob(pattern))
            link = folder / soname
            if matches and not link.exists():
                link.symlink_to(matches[0])
        paths = [str(folder), str(carried), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    return environment


def input_data(prompts: Sequence[str], max_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    """perf_analyzer's ``--input-data`` for requests of a fixed length."""
    return {
        "data": [
            {
                "text_input": [prompt],
                "max_tokens": [max_tokens],
                "min_tokens": [max_tokens],
                "stream": [stream],
                "exclude_input_in_output": [True],
            }
            for prompt in prompts
        ]
    }


def parse_export(export: dict[str, Any], max_tokens: int, *, speculates: bool = False) -> list[RequestTiming]:
    """Request timings from a profile export.

    A response may carry several tokens: accepted drafts, or text that the detokenizer held back. Where the model
    counts its tokens, each response's count says how many. Else responses without text (the final flag alone) carry
    none, the others one each, and the last one the remainder: first-token and total times stay exact.

    Args:
        speculates: the model counts drafts. Of an output that a response lacks the export holds whatever was in
            memory there, so nothing is read that the model is not known to send.
    """
    timings = []
    for experiment in export["experiments"]:
        for request in experiment["requests"]:
            sent = request["timestamp"] / 1e9
            outputs = request.get("response_outputs") or [{}] * len(request["response_timestamps"])
            pairs = [
                (stamp / 1e9, output) for stamp, output in zip(request["response_timestamps"], outputs, strict=False)
            ]
            times = _counted(pairs, max_tokens)
            if times is None:
                texts = [stamp for stamp, output in pairs if output.get("text_output", "x") != ""]
                times = texts + texts[-1:] * max(0, max_tokens - len(texts))
            timing = RequestTiming(sent=sent, done=request["response_timestamps"][-1] / 1e9 if times else sent)
            if times:
                timing.token_times = times
                ends = [output for _, output in pairs if output.get("num_output_tokens") == max_tokens]
                if speculates and ends:
                    timing.drafted = int(ends[-1]["total_draft_tokens"])
                    timing.accepted = int(ends[-1]["total_accepted_draft_tokens"])
            else:
                timing.error = "no text came back"
            timings.append(timing)
    return timings


def _counted(pairs: Sequence[tuple[float, Mapping[str, Any]]], max_tokens: int) -> list[float] | None:
    """The time of each token by the model's own counts so far; None where these are no counts."""
    times: list[float] = []
    for stamp, output in pairs:
        count = output.get("num_output_tokens")
        if count is None:
            continue
        if not isinstance(count, int) or not len(times) <= count <= max_tokens:
            return None
        times += [stamp] * (count - len(times))
    return times if len(times) == max_tokens else None


@dataclass(frozen=True)
class ServedModel:
    """What a model's configuration says of it.

    Attributes:
        streams: it may send more than one response.
        speculates: it drafts, and counts drafts in its answers.
    """

    streams: bool = True
    speculates: bool = False


def served_model(grpc_url: str, model: str) -> ServedModel:
    """A served model as its server describes it; one that streams where no server says otherwise."""
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    try:
        with grpc.InferenceServerClient(grpc_url) as client:
            config = client.get_model_config(model).config
    except InferenceServerException:
        return ServedModel()
    return ServedModel(bool(config.model_transaction_policy.decoupled), "speculation" in config.parameters)


def measure(
    *,
    grpc_url: str,
    model: str,
    prompts: Sequence[str],
    concurrency: Sequence[int],
    requests_per_level: int,
    max_tokens: int,
    slo: Slo | None = None,
    timeout: float = 900.0,
    progress: Progress | None = None,
) -> list[LevelResult]:
    """A concurrency sweep against ``model`` on a running server.

    A model that is not decoupled sends whole answers: the time to the first token is then that of the answer.
    A level whose export is empty or cut is measured once more: perf_analyzer now and then ends with code 0 without
    having written all of it.

    Raises:
        EnvironmentLacks: TF-ENV-031 without the binary.
        ForgeError: TF-BEN-004 when perf_analyzer fails, TF-BEN-006 when its export is unusable twice (its last lines
            are in ``why``).
    """
    binary = find_perf_analyzer()
    report = progress or SilentProgress()
    levels = []
    with tempfile.TemporaryDirectory(prefix="trtforge-bench-") as name:
        folder = Path(name)
        environment = library_environment(folder)
        data = folder / "input.json"
        served = served_model(grpc_url, model)
        data.write_text(json.dumps(input_data(prompts, max_tokens, stream=served.streams)), encoding="utf-8")
        report.start(f"perf_analyzer against {model}", total=len(concurrency))
        for level in concurrency:
            export = folder / f"export-{level}.json"
            command = [
                str(binary),
                *("-m", model, "-u", grpc_url, "-i", "grpc", "--streaming", "--async"),
                *("--input-data", str(data), "--concurrency-range", str(level)),
                *("--request-count", str(max(requests_per_level, level))),
                *("--profile-export-file", str(export)),
            ]
            timings = _timings(command, environment, timeout, level, export, max_tokens, served.speculates)
            levels.append(summarize(level, timings, slo))
            report.advance()
    return levels


def _timings(
    command: list[str],
    environment: dict[str, str],
    timeout: float,
    level: int,
    export: Path,
    max_tokens: int,
    speculates: bool,
) -> list[RequestTiming]:
    """One level, measured a second time when perf_analyzer left no whole export."""
    faults = []
    for _ in range(ATTEMPTS):
        export.unlink(missing_ok=True)
        said = _run(command, environment, timeout, level)
        try:
            found = json.loads(export.read_text(encoding="utf-8"))
            timings = parse_export(found, max_tokens, speculates=speculates)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            faults.append(f"{type(error).__name__}: {error}")
            continue
        if timings:
            return timings
        faults.append("the export holds no request")
    raise ForgeError(
        "TF-BEN-006",
        f"perf_analyzer ended without a usable export, {ATTEMPTS} times",
        asked=f"concurrency {level}",
        numbers={"export_bytes": export.stat().st_size if export.is_file() else 0, "faults": faults},
        why=_tail(said) or "perf_analyzer printed nothing",
        remedies=["measure again", "look at the server's log", "trtforge bench --in-process"],
    )


def _tail(text: str) -> str:
    return " / ".join(line.strip() for line in text.splitlines()[-6:] if line.strip())


def _run(command: list[str], environment: dict[str, str], timeout: float, level: int) -> str:
    """What perf_analyzer printed."""
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False, errors="replace"
        )
        text, code = result.stdout + result.stderr, result.returncode
    except subprocess.TimeoutExpired as error:
        text, code = f"no end after {error.timeout:.0f} s", -1
    if code != 0:
        raise ForgeError(
            "TF-BEN-004",
            "perf_analyzer failed",
            asked=f"concurrency {level}",
            numbers={"exit": code},
            why=_tail(text),
            remedies=["look at the server's log", "trtforge bench --in-process"],
        )
    return text

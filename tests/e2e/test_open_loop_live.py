"""Requests that arrive by themselves at a real Triton server, at the engine alone, and through the command."""

import json

import pytest

from evals.speed.open_figures import summarize_open
from evals.speed.open_loop import send_on_schedule
from evals.speed.schedule import Due
from evals.speed.served_target import ServedTarget
from launcher.local import TritonServer
from trtforge.cli.main import invoke
from trtforge.ground.errors import ForgeError

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(bundle, tmp_path_factory):
    with TritonServer(bundle / "repository", log_path=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def test_every_token_is_counted_ttft_is_split_and_an_error_is_its_request_s(server):
    target = ServedTarget(server.grpc_url, "tiny")
    try:
        target.warm_up("hello", 2)
        schedule = [Due(0.05 * i, "too long " * 4000 if i == 3 else "hello there", 4 + i) for i in range(8)]
        run = send_on_schedule(target, schedule, patience=120.0)
    finally:
        target.close()
    level = summarize_open(run, None)
    assert sum(level.errors.values()) == 1 and next(iter(level.errors)).startswith("TF-")
    assert run.timings[3].error is not None
    good = [timing for timing in run.timings if timing.error is None]
    assert [len(timing.token_times) for timing in good] == [4, 5, 6, 8, 9, 10, 11]
    for timing in good:
        assert timing.token_times == sorted(timing.token_times)
        assert 0 < timing.parts["prefill"] < timing.ttft and timing.parts["queue"] >= 0
        assert sum(timing.parts.values()) == pytest.approx(timing.ttft)


def test_a_model_that_is_not_there_is_refused(server):
    with pytest.raises(ForgeError) as caught:
        ServedTarget(server.grpc_url, "other")
    assert caught.value.code == "TF-BEN-009"


def test_the_command_measures_rates_and_a_trace_and_holds_a_baseline(bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"isl": 5 + i, "osl": 3, "timestamp": 40 * i} for i in range(4)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["bench", str(bundle), "--json", "--no-verify", "--concurrency", "1", "--requests", "2"]
    command += ["--max-tokens", "4", "--rate", "20", "--trace", "t.jsonl", "--set", "bench.arrivals.requests=4"]
    assert invoke([*command, "-o", "first"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [sweep["target"] for sweep in said["open"]] == ["in-process", "server"]
    for sweep in said["open"]:
        assert [(level["source"], level["requests"], level["errors"]) for level in sweep["levels"]] == [
            ("rate", 4, {}),
            ("trace", 4, {}),
        ]
        assert sweep["levels"][0]["tokens"] == 16 and sweep["levels"][1]["tokens"] == 12
        assert sweep["levels"][0]["parts"]["samples"] == 4
    assert {row["load"] for row in said["service_tax"]} == {"concurrency 1", "20/s", "trace"}
    assert "requests that arrive by themselves" in (tmp_path / "first" / "report.md").read_text()
    # so large a tolerance that only the reading and the likeness of the runs are looked at
    again = [*command, "--no-server", "--baseline", "first", "--tolerance", "100%"]
    invoke(again)
    held = json.loads(capsys.readouterr().out)["baseline"]
    assert {one["load"] for one in held["held"]} == {"concurrency 1", "20/s × 4", "trace × 4"}
    assert invoke([*again, "--set", "bench.max_tokens=5", "--max-tokens", "5"]) == 2

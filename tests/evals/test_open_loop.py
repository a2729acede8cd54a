import json

import numpy as np
import pytest
from pydantic import ValidationError

from evals.speed.capacity import TOLERANCE, is_good, largest_good
from evals.speed.latency import RequestTiming
from evals.speed.open_figures import error_code, figures, split_ttft, summarize_open
from evals.speed.open_loop import send_on_schedule
from evals.speed.open_sweep import OpenSweep, measure_open, open_gates
from evals.speed.schedule import Due, arrival_times, load_trace, prompt_of, traced_due
from tests.evals.simulated_load import SimulatedServer
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.recipe.schema_bench import Arrivals, Bench, Slo, Trace

SLO = {"ttft_p99": 0.5}


def _bench(**keys):
    return Bench.model_validate(keys)


def _measure(server, asked, traced=None, **more):
    return measure_open("server", server, asked, ["a", "b"], traced, SilentProgress(), clock=server, **more)


def test_constant_gaps_and_random_ones_have_the_rate_and_repeat():
    asked = Arrivals(rate=(4.0,), process="constant", requests=3)
    assert arrival_times(asked, 4.0) == [0.25, 0.5, 0.75]
    asked = Arrivals(rate=(5.0,), requests=20_000)
    times = np.array(arrival_times(asked, 5.0))
    assert len(times) / times[-1] == pytest.approx(5.0, rel=0.03)
    gaps = np.diff(times)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # exponential
    assert arrival_times(asked, 5.0) == times.tolist()
    assert arrival_times(Arrivals(rate=(5.0,), requests=20_000, seed=1), 5.0) != times.tolist()
    assert np.allclose(np.array(arrival_times(asked, 10.0)) * 2, times)


def test_seconds_bound_the_arrivals():
    times = arrival_times(Arrivals(rate=(50.0,), seconds=10.0), 50.0)
    assert times[-1] <= 10.0 and 400 < len(times) < 600
    assert len(arrival_times(Arrivals(rate=(5.0,), process="constant", seconds=2.0), 5.0)) == 10


def test_requests_go_out_when_due_whatever_has_come_back():
    server = SimulatedServer(prefill=10.0)
    run = send_on_schedule(server, [Due(0.5 * i, "p", 2) for i in range(4)], clock=server)
    assert [time - 1000.0 for time, _, _ in server.sent] == [0.0, 0.5, 1.0, 1.5]
    # one at a time: the queue is in the first token's time
    assert [t.ttft for t in run.timings] == pytest.approx([10.0, 19.51, 29.02, 38.53])


def test_latency_counts_from_when_a_request_was_due_and_a_late_sender_is_said_to_be_so():
    schedule = [Due(0.1 * i, "p", 3) for i in range(20)]
    on_time = SimulatedServer(slots=50)
    level = summarize_open(send_on_schedule(on_time, schedule, clock=on_time), None)
    assert not level.sender_late and level.lateness["max"] == pytest.approx(0.0, abs=1e-9)
    jammed = SimulatedServer(slots=50, jam=1.0)
    level = summarize_open(send_on_schedule(jammed, schedule, clock=jammed), None)
    assert level.sender_late and level.lateness["max"] == pytest.approx(1.0)
    # the first request took as long as the server needs and the second that nobody sent it
    assert level.ttft["max"] == pytest.approx(1.1)


def test_figures_of_a_known_run():
    server = SimulatedServer(slots=10, prefill=0.2, step=0.05)
    run = send_on_schedule(server, [Due(1.0 * (i + 1), "p", 5) for i in range(40)], clock=server)
    level = summarize_open(run, Slo.model_validate({"ttft_p99": 0.3, "itl_p99": 0.06}))
    assert level.offered == pytest.approx(1.0) and level.requests == level.planned == 40
    assert level.seconds == pytest.approx(40.4) and level.achieved == pytest.approx(40 / 40.4)
    assert level.ttft["mean"] == pytest.approx(0.2) and level.e2e["mean"] == pytest.approx(0.4)
    assert level.tpot["p50"] == pytest.approx(0.05) and level.itl["samples"] == 160
    assert level.good_share == 1.0 and level.goodput == pytest.approx(40 / 40.4)


def test_failures_are_counted_by_code_and_miss_the_limits():
    server = SimulatedServer(slots=10, refuse=(1, 3))
    run = send_on_schedule(server, [Due(1.0 * i, "p", 2) for i in range(4)], clock=server)
    level = summarize_open(run, Slo.model_validate(SLO))
    assert level.errors == {"TF-RUN-056": 2} and level.good_share == 0.5
    assert error_code("[StatusCode.UNAVAILABLE] gone") == "StatusCode.UNAVAILABLE"
    assert error_code("no idea") == "other"


@pytest.mark.parametrize(
    ("count", "known"),
    [(19, []), (20, ["p50"]), (99, ["p50"]), (100, ["p50", "p90"]), (200, ["p50", "p90", "p95"]),
     (999, ["p50", "p90", "p95"]), (1000, ["p50", "p90", "p95", "p99"]),
     (10_000, ["p50", "p90", "p95", "p99", "p99.9"])],
)  # fmt: skip
def test_a_percentile_needs_ten_values_beyond_it(count, known):
    assert [name for name in figures(np.arange(count)) if name.startswith("p")] == known
    assert figures([]) == {}


def test_ttft_is_split_where_the_engine_tells():
    timing = RequestTiming(sent=10.0, token_times=[11.0, 11.1], late=0.1)
    split_ttft(timing, 500.0, 500.2, 500.7)
    assert timing.parts == pytest.approx({"sender": 0.1, "outside": 0.2, "queue": 0.2, "prefill": 0.5})
    assert sum(timing.parts.values()) == pytest.approx(timing.ttft)
    untold = RequestTiming(sent=10.0, token_times=[11.0])
    split_ttft(untold, 0.0, 0.0, 0.0)  # zeros: the engine did not say
    assert untold.parts == {}


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 460.0])
@pytest.mark.parametrize("start", [0.01, 1.0, 1000.0])
def test_bisection_comes_within_its_tolerance(limit, start):
    tried = []

    def probe(rate):
        tried.append(rate)
        return rate <= limit

    found = largest_good(probe, start, lambda: 1.0)
    assert found.settled and found.low <= limit < found.high
    assert found.high - found.low <= TOLERANCE * found.high
    assert len(tried) < 30


def test_bisection_ends_with_its_budget_or_with_nothing_good():
    left = iter([3.0, 2.0, 1.0, 0.0])
    found = largest_good(lambda rate: True, 1.0, lambda: next(left))
    assert (found.low, found.high, found.settled) == (4.0, None, False) and "budget" in found.why
    found = largest_good(lambda rate: False, 1.0, lambda: 1.0)
    assert found.low == 0.0 and not found.settled and "was good" in found.why
    assert is_good(99, 100) and not is_good(98, 100) and not is_good(19, 20)


def test_auto_finds_what_the_server_bears():
    # one slot of 0.1 s a request at equal gaps: ten a second, whatever the limit on the first token
    server = SimulatedServer(prefill=0.1, step=0.0)
    asked = _bench(
        max_tokens=1, slo=SLO, arrivals={"rate": "auto", "process": "constant", "requests": 200, "budget": 1e6}
    )
    sweep = _measure(server, asked, start=1.0)
    assert sweep.capacity.settled and 9.5 <= sweep.capacity.low <= 10.6
    stopped = [level for level in sweep.levels if level.requests < level.planned]
    assert stopped and all(level.offered > 10.0 for level in stopped)
    assert OpenSweep.of_json(json.loads(json.dumps(sweep.to_json()))) == sweep


def test_the_gate_on_goodput_is_decided_or_says_why_not():
    def gates(rates, least):
        server = SimulatedServer(prefill=0.1, step=0.0)
        arrivals = {"rate": rates, "process": "constant", "requests": 200}
        asked = _bench(max_tokens=1, slo={**SLO, "min_goodput": least}, arrivals=arrivals)
        return {gate.name: gate for gate in open_gates(_measure(server, asked), asked.slo)}

    assert gates((5.0, 9.0, 20.0), 9.0)["min_goodput"].passed
    missed = gates((5.0, 12.0, 20.0), 12.0)["min_goodput"]
    assert not missed.passed and "not decided" not in missed.detail
    open_ = gates((5.0, 20.0), 9.0)["min_goodput"]
    assert not open_.passed and "not decided: the smallest bad rate is 20" in open_.detail
    assert gates((5.0,), 5.0)["failed_requests@5/s"].passed


def test_failures_at_the_lowest_rate_fail_the_run():
    server = SimulatedServer(slots=10, refuse=(0,))
    asked = _bench(max_tokens=1, arrivals={"rate": [1.0], "requests": 4})
    [gate] = open_gates(_measure(server, asked), None)
    assert gate.name == "failed_requests@1/s" and not gate.passed


@pytest.mark.parametrize(
    "keys",
    [
        {"arrivals": {"rate": "auto"}},
        {"arrivals": {"rate": []}},
        {"arrivals": {"rate": [0]}},
        {"arrivals": {"rate": [1], "seconds": "5s", "requests": 5}},
        {"arrivals": {"rate": [1], "seconds": "0s"}},
        {"arrivals": {"rate": [0.01], "seconds": "1s"}},
        {"arrivals": {"rate": [1000], "seconds": "10h"}},
        {"slo": {"ttft_p99": "1s", "min_goodput": 1}},
        {"slo": {"min_goodput": 1}, "arrivals": {"rate": [1]}},
        {"slo": {"ttft_p99": "1s", "min_goodput": 3}, "arrivals": {"rate": [1, 2]}},
        {"trace": {"file": "file:t.jsonl", "speed": 0}},
    ],
)
def test_what_cannot_be_measured_or_decided_is_refused(keys):
    with pytest.raises(ValidationError):
        _bench(**keys)


def test_a_trace_is_replayed_by_arrival_at_its_speed(tmp_path):
    rows = [(3, 2, 5000), (7, 1, 4000), (5, 4, 4500)]
    lines = [json.dumps({"isl": a, "osl": b, "timestamp": t}) for a, b, t in rows]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    trace = load_trace(Trace(file="file:t.jsonl", speed=2.0), tmp_path)
    assert (trace.at, trace.isl, trace.osl) == ((0.0, 0.25, 0.5), (7, 5, 3), (1, 4, 2))
    words = {}

    def encode(text):
        return [words.setdefault(word, len(words)) for word in text.split()]

    def decode(ids):
        names = list(words)
        return " ".join(names[i] for i in ids)

    schedule = traced_due(trace, ["one two three", "four five"], encode, decode)
    assert [len(encode(one.prompt)) for one in schedule] == [7, 5, 3]
    server = SimulatedServer(slots=5)
    sweep = _measure(server, _bench(trace={"file": "file:t.jsonl"}), schedule)
    assert sweep.levels[0].source == "trace" and sweep.levels[0].tokens == 7
    assert [tokens for _, _, tokens in server.sent] == [1, 4, 2]


def test_a_prompt_has_its_length_where_cut_tokens_merge_again():
    def encode(text):  # pairs of equal letters are one token, with one more at the beginning
        ids, at = [0], 0
        while at < len(text):
            pair = text[at : at + 2] in ("aa", "bb")
            ids.append(ord(text[at]) + (1000 if pair else 0))
            at += 2 if pair else 1
        return ids

    def decode(ids):
        return "".join(chr(i % 1000) * (2 if i > 1000 else 1) for i in ids if i)

    for tokens in (1, 2, 5, 40):
        assert len(encode(prompt_of(tokens, ["aabba b", "xyz"], 0, encode, decode))) == tokens


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "TF-BEN-007"),
        ('{"isl": 1, "osl": 1}', "TF-BEN-007"),
        ('{"isl": 0, "osl": 1, "timestamp": 1}', "TF-PLN-006"),
    ],
)
def test_a_trace_without_times_or_requests_is_refused(tmp_path, text, code):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ForgeError) as caught:
        load_trace(Trace(file="file:t.jsonl"), tmp_path)
    assert caught.value.code == code and "bench.trace.file" in caught.value.asked
    with pytest.raises(ForgeError) as caught:
        load_trace(Trace(file="file:../t.jsonl"), tmp_path)
    assert caught.value.code == "TF-BEN-007"


def test_requests_that_never_end_are_refused_with_their_number():
    class Silent(SimulatedServer):
        def send(self, prompt, max_tokens, timing, ended):
            return

    server = Silent()
    with pytest.raises(ForgeError) as caught:
        send_on_schedule(server, [Due(0.0, "p", 1)], clock=server, patience=5.0)
    assert caught.value.code == "TF-BEN-008" and caught.value.numbers["ended"] == 0

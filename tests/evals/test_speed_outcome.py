import json
from dataclasses import replace

import pytest

from evals.speed.baseline import compare_runs
from evals.speed.latency import RequestTiming, summarize
from evals.speed.line import fit
from evals.speed.open_sweep import measure_open
from evals.speed.outcome import Outcome, identity_of
from evals.speed.sweep import Sweep
from evals.speed.tax import service_tax
from tests.evals.simulated_load import SimulatedServer
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.recipe.schema_bench import Bench, Slo

MACHINE = {"cpu": "X", "capability": "avx2", "cpus": 2, "memory": 1}


def _level(batch, step, requests=50, first=0.1, jitter=0.0):
    timings = []
    for i in range(requests):
        own = first * (1 + (jitter if i % 2 else -jitter))
        times = [i + own + step * k for k in range(5)]
        timings.append(RequestTiming(sent=float(i), token_times=times, done=times[-1]))
    return summarize(batch, timings)


def _outcome(step=0.01, asked=None, jitter=0.0, target="server", machine=MACHINE, prompts=("a",)):
    asked = asked or Bench()
    sweep = Sweep(target, tuple(_level(b, step * b, jitter=jitter) for b in (1, 4, 16)))
    return Outcome((sweep,), (), identity_of(asked, list(prompts), None, machine), asked.slo)


def test_the_line_through_known_levels():
    levels = [_level(b, 0.02 + 0.001 * b) for b in (1, 4, 16)]
    line = fit(levels, Slo.model_validate({"itl_p99": 0.05}))
    assert (line.a, line.b, line.r_squared) == pytest.approx((0.02, 0.001, 1.0))
    assert line.knee == pytest.approx(20.0) and line.largest == 30 and line.beyond
    assert fit(levels, Slo.model_validate({"itl_p99": 0.03})).largest == 10
    assert fit(levels[:2], None) is None
    falling = fit([_level(b, 0.02 - 0.001 * b) for b in (1, 4, 16)], Slo.model_validate({"itl_p99": 0.05}))
    assert falling.knee is None and falling.largest is None


def test_the_service_tax_of_known_times():
    inside, outside = _outcome(target="in-process").sweeps[0], _outcome(step=0.02).sweeps[0]
    [first, *_] = service_tax([inside, outside], [])
    assert first["load"] == "concurrency 1"
    assert first["tpot"] == pytest.approx(0.5) and first["ttft"] == pytest.approx(0.0)
    assert service_tax([outside], []) == []


def test_figures_come_back_as_they_were_written():
    server = SimulatedServer(slots=4)
    asked = Bench.model_validate({"arrivals": {"rate": [2.0], "requests": 5}, "slo": {"ttft_p99": 1.0}})
    opened = measure_open("server", server, asked, ["a"], None, SilentProgress(), clock=server)
    outcome = replace(_outcome(asked=asked), opened=(opened,))
    again = Outcome.of_json(json.loads(json.dumps(outcome.to_json())))
    assert again == outcome
    assert [gate.name for gate in again.gates()] == ["failed_requests", "ttft_p99@1", "failed_requests@2/s"]
    section = again.section("Text.")
    assert "good up to 2/s" in section.text
    assert [table.caption.split(",")[0] for table in section.tables][:2] == ["server", "server"]
    # what earlier versions wrote
    assert Outcome.of_json({"sweeps": []}).identity is None


def test_a_slower_run_is_worse_and_noise_is_not():
    before = _outcome()
    assert compare_runs(before, _outcome(), 0.1, "x").passed
    slower = compare_runs(before, _outcome(step=0.02), 0.1, "x")
    assert not slower.passed and "tpot of server, concurrency 1" in slower.worse
    assert compare_runs(before, _outcome(step=0.0105), 0.1, "x").passed
    assert compare_runs(_outcome(step=0.02), before, 0.1, "x").passed  # faster
    # first tokens 15 % later, but they spread by 90 % over 50 requests: the interval holds 1.1
    noisy = replace(before, sweeps=(Sweep("server", (_level(1, 0.01, jitter=0.9),)),))
    later = replace(before, sweeps=(Sweep("server", (_level(1, 0.01, first=0.115, jitter=0.9),)),))
    held = {one.kind: one for one in compare_runs(noisy, later, 0.1, "x").held}
    assert held["ttft"].ratio.value == pytest.approx(1.15) and not held["ttft"].worse
    quiet = replace(before, sweeps=(Sweep("server", (_level(1, 0.01),)),))
    later = replace(before, sweeps=(Sweep("server", (_level(1, 0.01, first=0.115),)),))
    assert not compare_runs(quiet, later, 0.1, "x").passed
    assert compare_runs(quiet, later, 0.1, "x").only_one == ()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"prompts": ("b",)}, "prompts"),
        ({"machine": {**MACHINE, "cpu": "Y"}}, "machine"),
        ({"asked": Bench(max_tokens=7)}, "tokens an answer"),
    ],
)
def test_unlike_runs_are_refused_by_name(other, named):
    with pytest.raises(ForgeError) as caught:
        compare_runs(_outcome(), _outcome(**other), 0.1, "old.json")
    assert caught.value.code == "TF-BEN-026" and named in caught.value.message


def test_a_run_that_does_not_say_what_it_was_or_shares_nothing_is_refused():
    for before in (replace(_outcome(), identity=None), replace(_outcome(), sweeps=())):
        with pytest.raises(ForgeError) as caught:
            compare_runs(before, _outcome(), 0.1, "old.json")
        assert caught.value.code == "TF-BEN-026"
    only = replace(_outcome(), sweeps=(Sweep("server", (_level(1, 0.01), _level(2, 0.01))),))
    assert "concurrency 2 (server)" in compare_runs(only, _outcome(), 0.1, "x").only_one

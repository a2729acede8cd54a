import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.speed.latency import RequestTiming, meets, percentiles, summarize
from evals.speed.load import run_level
from evals.speed.perf_analyzer import input_data, parse_export
from evals.speed.prompts import load_prompts
from evals.speed.sweep import Sweep, slo_gates, sweep_plot, sweep_table
from trtforge.ground.errors import ForgeError
from trtforge.ground.knee import knee_index
from trtforge.preflight.rules.corpora import BUILTIN_PROMPTS
from trtforge.preflight.rules.limits import BUILTIN_PROMPT_TOKENS
from trtforge.recipe.schema import Slo


def _timing(sent, *times, error=None):
    return RequestTiming(sent=sent, token_times=list(times), done=times[-1] if times else sent, error=error)


def test_figures_of_two_known_requests():
    level = summarize(2, [_timing(0.0, 0.1, 0.2, 0.4), _timing(0.0, 0.3, 0.4, 0.5)])
    assert level.tokens == 6
    assert level.seconds == pytest.approx(0.5)
    assert level.tokens_per_second == pytest.approx(12.0)
    assert level.ttft["p50"] == pytest.approx(0.2)
    assert level.itl["p50"] == pytest.approx(0.1)
    assert level.itl["max"] == pytest.approx(0.2) and level.itl["samples"] == 4
    assert "p95" not in level.itl and "p99" not in level.itl  # of four values


def test_failed_requests_are_errors_and_miss_the_slo():
    slo = Slo.model_validate({"ttft_p99": "150ms"})
    level = summarize(1, [_timing(0.0, 0.1), _timing(0.0, 0.2), _timing(0.0, error="boom")], slo)
    assert level.errors == 1
    assert level.good_share == pytest.approx(1 / 3)
    assert not meets(_timing(0.0, 0.1, 0.5), Slo.model_validate({"itl_p99": "200ms"}))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=200))
def test_percentiles_are_ordered(values):
    figures = percentiles(values)
    known = [figures[name] for name in ("p50", "p95", "p99", "max") if name in figures]
    assert known == sorted(known) and min(values) <= known[0] and figures["max"] == max(values)
    assert ("p95" in figures) == (len(values) >= 20) and ("p99" in figures) == (len(values) >= 100)


def test_a_gate_on_a_p99_of_too_few_values_says_what_it_stood_on():
    few = Sweep("server", (summarize(1, [_timing(0.0, 0.1, 0.2), _timing(0.0, 0.3, 0.4)]),))
    gate = {gate.name: gate for gate in slo_gates(few, Slo.model_validate({"ttft_p99": "200ms"}))}["ttft_p99@1"]
    assert not gate.passed and "the largest of 2 values, which are too few for a p99" in gate.detail
    many = Sweep("server", (summarize(1, [_timing(0.0, 0.1) for _ in range(100)]),))
    gate = {gate.name: gate for gate in slo_gates(many, Slo.model_validate({"ttft_p99": "200ms"}))}["ttft_p99@1"]
    assert gate.passed and "too few" not in gate.detail


def test_knee_of_a_saturating_curve_and_of_a_line():
    assert knee_index([10, 11, 13, 40, 90], [100, 195, 370, 400, 410]) == 2
    assert knee_index([10, 20, 30], [100, 200, 300]) is None
    assert knee_index([10, 20], [1, 2]) is None


class _FakeEngine:
    def __init__(self, fail=False, stall=False):
        self.active = self.peak = 0
        self.fail, self.stall = fail, stall
        self.lock = threading.Lock()

    def submit(self, prompt, max_tokens, on_tokens, on_done):
        if self.fail:
            raise ForgeError("TF-RUN-099", "refused")

        def work():
            with self.lock:
                self.active += 1
                self.peak = max(self.peak, self.active)
            if self.stall:
                return
            for _ in range(max_tokens):
                time.sleep(0.001)
                on_tokens(1)
            with self.lock:
                self.active -= 1
            on_done(None)

        threading.Thread(target=work, daemon=True).start()


def test_closed_loop_keeps_the_concurrency_and_counts_every_token():
    engine = _FakeEngine()
    level = run_level(engine, ["a", "b"], concurrency=3, requests=10, max_tokens=4)
    assert (level.requests, level.tokens, level.errors) == (10, 40, 0)
    assert engine.peak == 3


def test_refused_requests_and_stalls_end_with_figures_or_a_code():
    level = run_level(_FakeEngine(fail=True), ["a"], concurrency=2, requests=5, max_tokens=1)
    assert level.errors == 5
    with pytest.raises(ForgeError) as caught:
        run_level(_FakeEngine(stall=True), ["a"], concurrency=1, requests=1, max_tokens=1, timeout=0.2)
    assert caught.value.code == "TF-BEN-003"


def test_perf_analyzer_export_is_read_by_the_same_definitions():
    second = 1_000_000_000
    export = {
        "experiments": [
            {
                "requests": [
                    {
                        "timestamp": 0,
                        "response_timestamps": [second, 2 * second, 4 * second, 4 * second],
                        "response_outputs": [
                            {"text_output": "a"},
                            {"text_output": "b"},
                            {"text_output": "cd"},
                            {"text_output": ""},
                        ],
                    },
                    {"timestamp": 0, "response_timestamps": [second], "response_outputs": [{"text_output": ""}]},
                ]
            }
        ]
    }
    timings = parse_export(export, 4)
    assert timings[0].token_times == [1.0, 2.0, 4.0, 4.0]
    assert timings[0].ttft == 1.0
    assert timings[1].error is not None
    data = input_data(["x"], 7)["data"][0]
    assert data["min_tokens"] == data["max_tokens"] == [7]


def _export(*counts, **more):
    """One request whose i-th response came after i + 1 seconds, with these counts so far."""
    stamps = [(at + 1) * 1_000_000_000 for at in range(len(counts))]
    outputs = [{"text_output": "x", "num_output_tokens": count, **more} for count in counts]
    request = {"timestamp": 0, "response_timestamps": stamps, "response_outputs": outputs}
    return {"experiments": [{"requests": [request]}]}


def test_a_response_of_several_tokens_gives_each_its_time():
    [timing] = parse_export(_export(1, 4, 5), 5)
    assert timing.token_times == [1.0, 2.0, 2.0, 2.0, 3.0]
    assert timing.drafted is None
    assert summarize(1, [timing]).speculation is None


@pytest.mark.parametrize("counts", [(226, 181, 54), (3, 2, 4), (0, 0, 0), (0.5, 1.5, 4)])
def test_counts_that_are_none_are_not_believed(counts):
    """perf_analyzer exports whatever lies in memory for an output that a response lacks."""
    [timing] = parse_export(_export(*counts), 4)
    assert timing.token_times == [1.0, 2.0, 3.0, 3.0]


def test_drafts_of_a_level_are_sums_and_the_accepted_length_is_tokens_a_step():
    export = _export(1, 4, 5, total_draft_tokens=6, total_accepted_draft_tokens=2)
    [timing] = parse_export(export, 5, speculates=True)
    assert (timing.drafted, timing.accepted) == (6, 2)
    plain = RequestTiming(0.0, [1.0, 2.0, 3.0], 3.0, drafted=0, accepted=0)
    level = summarize(2, [timing, plain])
    assert level.speculation == {
        "draft_tokens": 6.0, "accepted_tokens": 2.0, "acceptance_rate": 2 / 6, "accepted_length": 6 / 4,
    }  # fmt: skip
    sweep = Sweep("server", (level, summarize(1, [_timing(0.0, 0.1)])))
    rows = sweep_table(sweep).rows
    assert sweep_table(sweep).columns[-3:] == ("drafted", "accepted", "accepted length")
    assert rows[0][-3:] == ("6", "2", "1.50")
    assert rows[1][-3:] == ("–", "–", "–")
    assert "drafted" not in sweep_table(Sweep("server", (summarize(1, [_timing(0.0, 0.1)]),))).columns


def test_the_closed_loop_keeps_what_its_target_says_of_drafts():
    class Drafting(_FakeEngine):
        def submit(self, prompt, max_tokens, on_tokens, on_done):
            super().submit(prompt, max_tokens, on_tokens, lambda error: on_done(error, (8, 2)))

    level = run_level(Drafting(), ["a"], concurrency=1, requests=3, max_tokens=5)
    assert level.speculation["draft_tokens"] == 24
    assert level.speculation["accepted_length"] == 12 / 6
    assert run_level(_FakeEngine(), ["a"], concurrency=1, requests=1, max_tokens=2).speculation is None


def test_prompts_from_files_stay_in_their_folder(tmp_path):
    recipe_dir = tmp_path / "recipes"
    recipe_dir.mkdir()
    (recipe_dir / "p.txt").write_text("one\n\ntwo\n")
    (tmp_path / "outside.txt").write_text("secret\n")
    assert load_prompts("file:p.txt", recipe_dir) == ["one", "two"]
    assert len(set(map(len, load_prompts("builtin:mixed", recipe_dir)))) > 3
    for spec, code in (
        ("file:../outside.txt", "TF-BEN-002"),
        ("file:none.txt", "TF-BEN-002"),
        ("builtin:none", "TF-BEN-001"),
    ):
        with pytest.raises(ForgeError) as caught:
            load_prompts(spec, recipe_dir)
        assert caught.value.code == code


def test_every_builtin_set_that_a_recipe_may_name_has_prompts_of_the_stated_length(tmp_path):
    for spec in BUILTIN_PROMPTS:
        prompts = load_prompts(spec, tmp_path)
        assert len(prompts) >= 8
        assert max(len(prompt) for prompt in prompts) <= 1.1 * BUILTIN_PROMPT_TOKENS[spec], "a character a token"
    assert set(BUILTIN_PROMPT_TOKENS) == set(BUILTIN_PROMPTS)


def test_sweep_marks_its_knee_and_gates_the_lowest_level():
    def level(concurrency, rate, latency):
        timings = [_timing(0.0, *(0.05 + latency * i for i in range(1, 5)))]
        result = summarize(concurrency, timings)
        return type(result)(**{**result.to_json(), "tokens_per_second": rate})

    sweep = Sweep("server", (level(1, 100, 0.01), level(2, 195, 0.011), level(4, 370, 0.013), level(16, 400, 0.09)))
    assert sweep.knee is not None
    assert sweep.knee.concurrency == 4
    assert "knee (server): 4" in sweep_plot([sweep]).marks[0][1]
    assert len(sweep_table(sweep).rows) == 4
    gates = {g.name: g.passed for g in slo_gates(sweep, Slo.model_validate({"ttft_p99": "2s", "itl_p99": "5ms"}))}
    assert gates == {"failed_requests": True, "ttft_p99@1": True, "itl_p99@1": False}

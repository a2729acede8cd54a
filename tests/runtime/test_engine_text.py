"""Text through the whole engine: streaming, stop and bad words, end of sequence, log-probabilities, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from runtime.determinism import first_divergence, near_tie_epsilon
from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.metrics import register_prometheus
from runtime.offline import Engine, prompt_index
from runtime.request import FinishReason, GenerationResult, Request
from runtime.sampling import SamplingParams
from runtime.tokenizer import EngineTokenizer
from tests.support.simulation import SimulatedExecutor
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError

LIMITS = ExecutorLimits(8, 64, 256, 255)
EOS = 2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> EngineTokenizer:
    return EngineTokenizer.load(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", layers=1))


class ScriptExecutor(SimulatedExecutor):
    """Makes the likeliest tokens those of a script (by position after a prompt of one token)."""

    def __init__(self, script: Sequence[int], rivals: Sequence[int] = (), **options: object) -> None:
        super().__init__(
            num_blocks=256,
            block_size=4,
            vocab_size=512,
            limits=LIMITS,
            eos_token_ids=(EOS,),
            **options,
        )
        self.script = list(script)
        self.rivals = list(rivals)

    def execute(self, batch: StepBatch) -> np.ndarray:
        logits = super().execute(batch)
        for row, token in enumerate(batch.logit_indices.tolist()):
            at = int(batch.positions[token])
            for level, wanted in enumerate([*self.rivals, self.script[at] if at < len(self.script) else EOS]):
                logits[row, wanted] = 50.0 + 10 * level
        return logits


def run(
    tokenizer: EngineTokenizer, script: Sequence[int], params: SamplingParams, rivals: Sequence[int] = ()
) -> GenerationResult:
    core = EngineCore(ScriptExecutor(script, rivals), tokenizer)
    core.add_request(Request("r", prompt_token_ids=[1], params=params))
    result, shown = GenerationResult(), ""
    while core.has_unfinished():
        for output in core.step():
            shown += output.text
            for stop in params.stop:
                assert params.include_stop or stop not in shown
            result.add(output)
    assert core.pool.num_used == 0
    return result


def test_end_of_sequence_ends_and_is_not_text(tokenizer: EngineTokenizer) -> None:
    ids = tokenizer.encode("Hello world")
    result = run(tokenizer, ids, SamplingParams(max_tokens=50))
    assert result.text == "Hello world"
    assert result.token_ids == [*ids, EOS]
    assert result.finish_reason is FinishReason.STOP and result.completions[0].stop_reason == EOS


def test_ignore_eos_runs_on(tokenizer: EngineTokenizer) -> None:
    result = run(tokenizer, tokenizer.encode("Hi"), SamplingParams(max_tokens=9, ignore_eos=True))
    assert len(result.token_ids) == 9 and result.finish_reason is FinishReason.LENGTH


def test_min_tokens_holds_off_the_end(tokenizer: EngineTokenizer) -> None:
    result = run(tokenizer, tokenizer.encode("Hi"), SamplingParams(max_tokens=40, min_tokens=12))
    assert len(result.token_ids) == 13 and result.token_ids[-1] == EOS and EOS not in result.token_ids[:-1]


def test_stop_token_ends_and_is_not_text(tokenizer: EngineTokenizer) -> None:
    ids = tokenizer.encode("one two three four")
    result = run(tokenizer, ids, SamplingParams(max_tokens=50, stop_token_ids=(ids[-2],)))
    first = ids.index(ids[-2])
    assert result.token_ids == ids[: first + 1]
    assert result.completions[0].stop_reason == ids[-2]
    assert result.text == tokenizer.decode(ids[:first])


@pytest.mark.parametrize("text", ["The answer is 42. END of it", "Grüße 🙂 und Ende", "a\nb\nc\n\nd"])
@pytest.mark.parametrize("include", [False, True])
def test_stop_words_across_token_borders(tokenizer: EngineTokenizer, text: str, include: bool) -> None:
    ids = tokenizer.encode(text)
    for start in range(len(text)):
        for length in (1, 2, 5):
            stop = text[start : start + length]
            at = text.index(stop)
            result = run(tokenizer, ids, SamplingParams(max_tokens=90, stop=(stop,), include_stop=include))
            assert result.text == (text[:at] + stop if include else text[:at]), stop
            assert result.finish_reason is FinishReason.STOP and result.completions[0].stop_reason == stop


def test_text_held_back_for_a_stop_word_is_shown_at_the_end(tokenizer: EngineTokenizer) -> None:
    result = run(tokenizer, tokenizer.encode("wait for the EN"), SamplingParams(max_tokens=90, stop=("END",)))
    assert result.text == "wait for the EN"


def test_incomplete_character_is_shown_as_replacement_at_the_end(tokenizer: EngineTokenizer) -> None:
    ids = tokenizer.encode("🙂")
    assert len(ids) > 1
    result = run(tokenizer, ids, SamplingParams(max_tokens=len(ids) - 1))
    assert result.text == tokenizer.decode(ids[:-1]) == "\ufffd"


def test_bad_words_never_appear(tokenizer: EngineTokenizer) -> None:
    text = "this secret word is secret"
    ids = tokenizer.encode(text)
    assert "secret" in run(tokenizer, ids, SamplingParams(max_tokens=30)).text
    for bad in ("secret", "cre", "s", " word", "this secret word"):
        result = run(tokenizer, ids, SamplingParams(max_tokens=30, bad_words=(bad,)), rivals=[65, 66])
        assert bad not in result.text and result.text


@given(script=st.lists(st.integers(3, 511), min_size=1, max_size=25), data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_rules_hold_for_any_tokens(tokenizer: EngineTokenizer, script: list[int], data: st.DataObject) -> None:
    full = tokenizer.decode(script)
    pieces = [full[i : i + 3] for i in range(len(full)) if full[i : i + 3].strip("\ufffd")] or ["zzz"]
    stop = data.draw(st.sampled_from(pieces))
    if "\ufffd" in stop:
        return
    result = run(tokenizer, script, SamplingParams(max_tokens=60, stop=(stop,)))
    at = full.find(stop)
    assert result.text == (full if at < 0 else full[:at])
    result = run(tokenizer, script, SamplingParams(max_tokens=40, bad_words=(stop,)))
    assert stop not in result.text


def test_logprobs_per_token_and_cumulated(tokenizer: EngineTokenizer) -> None:
    ids = tokenizer.encode("Hello world")
    result = run(tokenizer, ids, SamplingParams(max_tokens=50, logprobs=2))
    completion = result.completions[0]
    assert [lp.token for lp in completion.logprobs] == completion.token_ids
    assert all(len(lp.top) == 2 and lp.top[0][0] == lp.token for lp in completion.logprobs)
    assert completion.cumulative_logprob == pytest.approx(sum(lp.logprob for lp in completion.logprobs))
    assert run(tokenizer, ids, SamplingParams(max_tokens=2)).completions[0].cumulative_logprob is None


def test_nan_logits_end_their_request_only(tokenizer: EngineTokenizer) -> None:
    class Broken(SimulatedExecutor):
        def execute(self, batch: StepBatch) -> np.ndarray:
            logits = super().execute(batch)
            if self.steps == 3:
                logits[0, 7] = np.nan
            return logits

    core = EngineCore(Broken(vocab_size=512), tokenizer)
    results = {name: GenerationResult() for name in ("a", "b")}
    for name in results:
        core.add_request(Request(name, prompt_token_ids=[5, 6], params=SamplingParams(max_tokens=6)))
    while core.has_unfinished():
        for output in core.step():
            results[output.request_id].add(output)
    assert results["a"].finish_reason is FinishReason.ERROR and len(results["a"].token_ids) == 2
    assert results["a"].error is not None and results["a"].error["code"] == "TF-RUN-060"
    assert results["b"].finish_reason is FinishReason.LENGTH and results["b"].error is None
    assert core.pool.num_used == 0


def test_a_failed_step_ends_everybody_and_the_engine_goes_on() -> None:
    executor = SimulatedExecutor()
    core = EngineCore(executor)
    for name in ("a", "b"):
        core.add_request(Request(name, prompt_token_ids=[1] * 9, params=SamplingParams(max_tokens=6)))
    core.step()
    executor.fault = RuntimeError("out of memory")
    outputs = core.step()
    assert {o.request_id for o in outputs} == {"a", "b"} and all(o.finished for o in outputs)
    assert all(o.error is not None and o.error["code"] == "TF-RUN-059" for o in outputs)
    assert core.consecutive_failures == 1 and core.pool.num_free == core.pool.num_blocks and core.pool.num_cached == 0
    core.add_request(Request("c", prompt_token_ids=[1] * 9, params=SamplingParams(max_tokens=6)))
    tokens = []
    while core.has_unfinished():
        for output in core.step():
            assert output.error is None
            tokens += output.token_ids
    assert tokens == executor.greedy([1] * 9, 6) and core.consecutive_failures == 0


def test_seed_gives_the_same_output_alone_in_a_batch_and_after_preemption() -> None:
    params = SamplingParams(max_tokens=12, temperature=1.2, top_p=0.95, seed=42)
    alone = Engine(EngineCore(SimulatedExecutor())).generate([[1, 2, 3]], params)[0].token_ids
    tight = Engine(EngineCore(SimulatedExecutor(num_blocks=10)))
    prompts = [[9] * 6, [1, 2, 3], [8] * 7, [7] * 5]
    results = tight.generate(prompts, params)
    assert tight.stats()["num_preemptions_total"] > 0
    assert results[1].token_ids == alone
    assert Engine(EngineCore(SimulatedExecutor())).generate([[1, 2, 3]])[0].token_ids != alone


def test_offline_prompt_kinds(tokenizer: EngineTokenizer) -> None:
    engine = Engine(EngineCore(ScriptExecutor([]), tokenizer))
    chat = [{"role": "user", "content": "Hi"}]
    results = engine.generate(["text", [5, 6, 7], chat], SamplingParams(max_tokens=2))
    lengths = [len(tokenizer.encode("text")), 3, len(tokenizer.encode_chat(chat))]
    assert [r.num_prompt_tokens for r in results] == lengths
    for single in ("text", [5, 6, 7], np.array([5, 6, 7]), chat):
        assert len(engine.generate(single, SamplingParams(max_tokens=2))) == 1
    assert engine.generate([]) == []


def test_offline_stream_joins_to_generate() -> None:
    engine = Engine(EngineCore(SimulatedExecutor()))
    prompts, params = [[i, i + 1] for i in range(12)], SamplingParams(max_tokens=7)
    joined: dict[int, GenerationResult] = {}
    for output in engine.stream(prompts, params):
        joined.setdefault(prompt_index(output.request_id), GenerationResult()).add(output)
    whole = engine.generate(prompts, params)
    assert [joined[i].token_ids for i in range(12)] == [r.token_ids for r in whole]
    assert [r.num_prompt_tokens for r in whole] == [2] * 12


def test_offline_stream_closed_early_cancels() -> None:
    engine = Engine(EngineCore(SimulatedExecutor()))
    stream = engine.stream([[1], [2]], SamplingParams(max_tokens=40))
    next(iter(stream))
    assert isinstance(stream, Iterator)
    stream.close()
    assert not engine.core.has_unfinished() and engine.core.pool.num_used == 0


def test_offline_refuses_before_generating() -> None:
    engine = Engine(EngineCore(SimulatedExecutor()))
    with pytest.raises(ForgeError, match="TF-RUN-051"):
        engine.generate([[1], [1] * 99])
    with pytest.raises(ForgeError, match="TF-RUN-065"):
        engine.generate([[1], [2]], [SamplingParams()])
    assert not engine.core.has_unfinished()
    engine.core.executor.fault = RuntimeError("x")
    with pytest.raises(ForgeError, match="TF-RUN-059"):
        engine.generate([[1], [2]])
    assert not engine.core.has_unfinished() and engine.core.pool.num_used == 0


def test_offline_feeds_more_prompts_than_the_queue_holds() -> None:
    engine = Engine(EngineCore(SimulatedExecutor(), config=EngineConfig(max_waiting=2)))
    assert len(engine.generate([[i] for i in range(20)], SamplingParams(max_tokens=2))) == 20


def test_teacher_forced_logits_are_the_models() -> None:
    executor = SimulatedExecutor(limits=ExecutorLimits(8, 5, 64, 63))
    engine = Engine(EngineCore(executor))
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]
    engine.generate([tokens], SamplingParams(max_tokens=3))
    logits = engine.logits(tokens)
    assert logits.shape == (13, 97) and logits.dtype == np.float32
    for at in range(13):
        np.testing.assert_array_equal(logits[at], executor.reference(tokens[: at + 1]))
    assert engine.core.pool.num_used == 0
    for bad, code in (([], "050"), ([1] * 65, "051"), ([99], "054")):
        with pytest.raises(ForgeError, match=f"TF-RUN-{code}"):
            engine.logits(bad)


def test_near_ties() -> None:
    row = np.array([10.0, 9.9, 5.0], dtype=np.float32)
    assert near_tie_epsilon(row, "bfloat16") == pytest.approx(4 * 2**-7 * 10)
    after: Callable[[Sequence[int]], np.ndarray] = lambda tokens: row  # noqa: E731
    assert first_divergence([1, 2], [1, 2], after) is None
    tie = first_divergence([1, 0, 5], [1, 1, 7], after)
    assert tie is not None and tie.position == 1 and tie.tokens == (0, 1) and tie.near_tie
    wrong = first_divergence([0], [2], after)
    assert wrong is not None and not wrong.near_tie and wrong.gap == pytest.approx(5.0)
    short = first_divergence([0], [0, 1], after)
    assert short is not None and not short.near_tie
    exact = first_divergence([0], [1], after, dtype="float32")
    assert exact is not None and not exact.near_tie


def test_metrics_in_every_form() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    engine = Engine(EngineCore(SimulatedExecutor()))
    engine.generate([[1, 2, 3], [4, 5]], SamplingParams(max_tokens=5))
    stats = engine.stats()
    assert stats["prompt_tokens_total"] == 5 and stats["generation_tokens_total"] == 10
    assert stats["request_success_total"]["length"] == 2
    assert stats["time_to_first_token_seconds"]["count"] == 2
    assert stats["inter_token_latency_seconds"]["count"] == 8
    assert stats["num_requests_running"] == 0 and stats["kv_blocks_used"] == 0
    text = engine.core.metrics.prometheus_text()
    assert "trtforge_generation_tokens_total 10.0" in text
    assert 'trtforge_time_to_first_token_seconds_bucket{le="+Inf"} 2.0' in text
    registry = CollectorRegistry()
    register_prometheus(engine.core.metrics, registry)
    official = generate_latest(registry).decode()
    assert "trtforge_generation_tokens_total 10.0" in official
    assert 'trtforge_request_success_total{finished_reason="length"} 2.0' in official

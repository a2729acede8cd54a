"""The engine core: a plain synchronous class that adds requests, steps, and aborts.

Policy: whatever is wrong with a request is refused by :meth:`EngineCore.prepare`, before it costs a step;
whatever goes wrong in a step ends the live requests with an error output and leaves the engine usable.
Every accepted request yields exactly one output with ``finished`` set, from ``step`` or from ``abort``.
Servers are thin around this class and serialize calls to it; only ``prepare`` may be called from any thread.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime import errors
from runtime.admission import LiveRequest, PreparedRequest, prepare_request
from runtime.blocks import BlockPool, PrefixHasher
from runtime.engine_config import EngineConfig
from runtime.engine_parts import check_limits, gauges
from runtime.executors.base import Executor, ExecutorLimits, StepBatch
from runtime.metrics import Metrics
from runtime.prompts import check_tokens
from runtime.request import FinishReason, Request, RequestOutput, RequestTimes, SampleOutput
from runtime.sample import Sample
from runtime.sampling.state import SamplingState
from runtime.sampling.words import BadWordFilter, StopMatcher
from runtime.scheduler import Scheduler, SchedulerConfig, Sequence, StepPlan
from runtime.scoring import teacher_forced
from runtime.tracing import trace
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from runtime.sampling.sampler import Sampler, TokenLogprobs
    from runtime.speculation.speculator import Fork, Speculator
    from runtime.speculation.verification import Branch
    from runtime.tokenizer import EngineTokenizer

log = logging.getLogger("trtforge.runtime")


@dataclass(slots=True)
class _News:
    """What a step at ``now`` made: tokens, and the samples that their clients hear of."""

    now: float
    tokens: int = 0
    changed: dict[LiveRequest, list[Sample]] = field(default_factory=dict)


class EngineCore:
    """Scheduler, sampler and text pipeline around one executor.

    Args:
        executor: computes logits; owns weights and pools.
        tokenizer: None for an engine that takes and gives tokens only.
        limits: default: the executor's.
        config: runtime choices.
        clock: seconds, monotonic; tests pass their own.
        speculator: who drafts; None: every step decodes one token a sequence.

    Raises:
        ForgeError: ``TF-RUN-061`` when the limits contradict each other.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: EngineTokenizer | None = None,
        *,
        limits: ExecutorLimits | None = None,
        config: EngineConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
    ) -> None:
        self.executor = executor
        self.tokenizer = tokenizer
        self.limits = limits or executor.limits
        self.config = config or EngineConfig()
        self.clock = clock
        self.speculator = speculator
        check_limits(self.limits, executor)
        self.pool = BlockPool(executor.num_blocks, prefix_cache=self.config.prefix_cache)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_batch_size=self.limits.max_batch_size,
                max_num_tokens=self.limits.max_num_tokens,
                max_seq_len=self.limits.max_seq_len,
                block_size=executor.block_size,
                aging_seconds=self.config.aging_seconds,
                max_prefill_tokens=self.config.max_prefill_tokens,
                max_logit_rows=executor.limits.max_logit_rows,
            ),
            self.pool,
        )
        self.metrics = Metrics(speculation=None if speculator is None else speculator.figures)
        # not a method of this object: a cycle would keep the executor's memory until a collection
        self.metrics.sources.append(partial(gauges, self.pool, self.scheduler))
        # not through this object: an engine must go as soon as nobody holds it
        self.metrics.recomputed = partial(getattr, self.scheduler, "recomputed")
        self.consecutive_failures = 0
        self._sampler: Sampler | None = None
        self._live: dict[str, LiveRequest] = {}
        self._by_sequence: dict[Sequence, tuple[LiveRequest, Sample]] = {}
        self._deadlines: dict[str, float] = {}
        #: by arrival; those that have run or ended meanwhile are left in until they come first
        self._queued: deque[LiveRequest] = deque()
        self._order = itertools.count()
        self._ids = itertools.count()

    # -- requests ------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> PreparedRequest:
        """Tokenize and validate; changes nothing in the engine, so any thread may call it.

        Raises:
            ForgeError: ``TF-RUN-050`` … ``TF-RUN-067``, ``TF-RUN-133`` for a request that this engine cannot serve.
        """
        return prepare_request(
            request,
            self.executor,
            self.tokenizer,
            self.limits,
            self.pool.num_blocks,
            self.scheduler.config.max_running,
            self.config.max_output_tokens,
            cleanses=self.config.cleanse,
        )

    def add_request(self, request: Request | PreparedRequest) -> str:
        """Queue a request; returns its id.

        Raises:
            ForgeError: what :meth:`prepare` raises; ``TF-RUN-053`` for an id in use; ``TF-RUN-056`` when the
                queue is full.
        """
        prepared = request if isinstance(request, PreparedRequest) else self.prepare(request)
        request = prepared.request
        request_id = request.request_id
        while request_id is None or (request.request_id is None and request_id in self._live):
            request_id = f"request-{next(self._ids)}"
        if request_id in self._live:
            raise errors.duplicate_id(request_id)
        if len(self.scheduler.waiting) >= self.config.max_waiting:
            raise errors.queue_full(len(self.scheduler.waiting), self.config.max_waiting)
        now = self.clock()
        live = LiveRequest(request_id, prepared, now, None if request.timeout is None else now + request.timeout)
        live.stream_interval = request.stream_interval or self.config.stream_interval
        sequence = Sequence(
            request_id,
            prepared.prompt,
            capacity=prepared.capacity,
            hasher=PrefixHasher(self.executor.block_size, self.config.salt + b"\0" + request.cache_salt.encode()),
            priority=request.priority,
            order=next(self._order),
            slots=request.params.n,
            now=now,
            speculates=request.speculate,
        )
        self.metrics.counters["prompt_characters_removed_total"] += prepared.characters_removed
        self._attach(live, sequence)  # first: when it fails, nothing of the request is left
        self._live[request_id] = live
        if live.deadline is not None:
            self._deadlines[request_id] = live.deadline
        if self.config.queue_timeout is not None:
            self._queued.append(live)
        self.scheduler.add(sequence)
        return request_id

    def abort(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> RequestOutput | None:
        """End a request now and free its blocks; its final output, or None when it is not live."""
        live = self._live.get(request_id)
        if live is None:
            return None
        self._waste(live, reason)
        for sample in live.samples:
            sample.end(reason)
        return self._emit(live, list(live.samples), self.clock())

    def has_unfinished(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self._live)

    def live_ids(self) -> list[str]:
        """Ids of live requests in order of arrival."""
        return list(self._live)

    # -- stepping ------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Run one step; the news of every request that has some.

        Never raises for a fault of the executor or the sampler: every live request then ends with
        ``error``, :attr:`consecutive_failures` counts up, and the engine can go on.
        """
        tick = time.perf_counter if self.speculator is None else self.speculator.tick
        started, begun = time.perf_counter(), tick()
        outputs = self._expire(self.clock())
        if not self._live:
            return outputs
        try:
            plan = self._plan()
            if plan.num_tokens == 0:
                return outputs
            batch = self.scheduler.assemble(plan)
            with trace("execute"):
                before, mark = time.perf_counter(), tick()
                logits = self.executor.execute(batch)
                in_executor, in_target = time.perf_counter() - before, tick() - mark
            self._finish_step(plan, batch, logits, outputs)
        except Exception as error:
            log.exception("engine step failed")
            self.consecutive_failures += 1
            self.metrics.counters["step_failures_total"] += 1
            return outputs + self.fail_all(errors.step_failed(error))
        self.consecutive_failures = 0
        self.metrics.counters["iterations_total"] += 1
        self.metrics.iteration_tokens.observe(batch.num_tokens)
        host = time.perf_counter() - started - in_executor
        if self.speculator is not None:
            host -= self.speculator.timed(plan, in_executor, in_target, tick() - begun - in_target)
        self.metrics.iteration_host_seconds.observe(host)
        return outputs

    def fail_all(self, error: ForgeError) -> list[RequestOutput]:
        """End every live request with ``error``; cached prefixes are dropped, their contents are in doubt."""
        outputs = []
        now = self.clock()
        for live in list(self._live.values()):
            live.error = error.to_json()
            self._waste(live, FinishReason.ERROR)
            for sample in live.samples:
                sample.end(FinishReason.ERROR)
            outputs.append(self._emit(live, list(live.samples), now))
        self.pool.forget_cache()
        return outputs

    def _waste(self, live: LiveRequest, reason: FinishReason) -> None:
        """Count what was computed for a request that ends before its time."""
        self.metrics.wasted[reason.value] += sum(sample.sequence.spent for sample in live.samples)

    def close(self) -> None:
        """Release the memory of executor and drafters; the engine cannot step afterwards. May be repeated."""
        if self.speculator is not None:
            self.speculator.close()
        self.executor.close()

    def stats(self) -> dict[str, Any]:
        """Every metric as a JSON-able dict (see :mod:`runtime.metrics`)."""
        return self.metrics.snapshot()

    # -- teacher forcing -----------------------------------------------------------------------------

    def logits(self, token_ids: Iterable[int]) -> npt.NDArray[np.float32]:
        """Logits of every position of ``token_ids``, float32 [S, V], through the same executor.

        Runs in chunks over a fresh set of blocks (no prefix cache), between the steps of live requests.

        Raises:
            ForgeError: ``TF-RUN-050``, ``051``, ``052`` or ``054``.
        """
        tokens = check_tokens(token_ids, self.executor.vocab_size)
        return teacher_forced(tokens, self.executor, self.pool, self.limits)

    # -- inside --------------------------------------------------------------------------------------

    def _attach(self, live: LiveRequest, sequence: Sequence) -> Sample:
        """Build the sampling and text pipeline of one sample."""
        prepared, params = live.prepared, live.prepared.request.params
        detokenizer = bad_words = None
        if self.tokenizer is not None:
            detokenizer = self.tokenizer.detokenizer(
                skip_special_tokens=params.skip_special_tokens, context=prepared.prompt[-8:].tolist()
            )
            if params.bad_words:
                bad_words = BadWordFilter(params.bad_words, detokenizer.peek)
        sampling = SamplingState(
            params,
            seed=prepared.seed,
            sample=sequence.sample,
            prompt=prepared.prompt,
            end_ids=prepared.end_ids,
            completes_bad_word=bad_words.completes if bad_words else None,
            guided=prepared.guided.fork() if prepared.guided is not None else None,
        )
        stops = StopMatcher(params.stop, include=params.include_stop) if params.stop else None
        sample = Sample(sequence, sampling, detokenizer=detokenizer, stops=stops, bad_words=bad_words)
        live.samples.append(sample)
        self._by_sequence[sequence] = (live, sample)
        return sample

    def _plan(self) -> StepPlan:
        """What the next step runs, drafts included."""
        speculator = self.speculator
        if speculator is None:
            return self.scheduler.schedule(self.clock())

        def wanted(decodes: list[Sequence], prompt_tokens: int) -> list[int]:
            return speculator.choose([self._by_sequence[s][1] for s in decodes], prompt_tokens)

        plan = self.scheduler.schedule(self.clock(), wanted)
        speculator.draft(plan)
        return plan

    def _finish_step(self, plan: StepPlan, batch: StepBatch, logits: Any, outputs: list[RequestOutput]) -> None:
        """Sample and emit; appends to ``outputs`` one by one, so that none is lost if a later one raises."""
        if self._sampler is None:
            from runtime.sampling.sampler import Sampler  # torch: only once something is really sampled

            self._sampler = Sampler()
        self.scheduler.commit(plan)
        news = _News(self.clock())
        for sequence in plan.admitted:
            live = self._by_sequence[sequence][0]
            if live.first_scheduled is None:
                live.first_scheduled = plan.made
                self.metrics.request_queue_time_seconds.observe(plan.made - live.arrival)
                self.metrics.counters["prompt_tokens_total"] += len(live.prepared.prompt)
        samples, rows, forks = self._fork(plan, batch)
        take = partial(self._take, news)
        branches: list[Branch] = []
        with trace("sample"):
            if plan.drafts:
                from runtime.speculation.verification import branches_of, verify

                branches = branches_of(samples, rows, plan.drafts)
                verify(logits, branches, self._sampler, take, partial(self._take_all, news))
            elif samples:
                sampled = self._sampler.sample(logits, [sample.sampling for sample in samples], rows)
                for row, (sample, token) in enumerate(zip(samples, sampled.tokens, strict=True)):
                    take(sample, token, sampled.logprobs.get(row))
        self.metrics.counters["generation_tokens_total"] += news.tokens
        if self.speculator is not None:
            self.speculator.settle(plan, batch, branches, self.scheduler, self.executor, forks)
        for live, samples in news.changed.items():
            output = self._emit(live, samples, news.now)
            # A request that does not stream is told once, when its last sample ended.
            if output.finished or output.samples:
                outputs.append(output)

    def _take(self, news: _News, sample: Sample, token: int, logprobs: TokenLogprobs | None) -> bool:
        """Give a sample its next token (negative: none could be chosen); whether it goes on."""
        live = self._by_sequence[sample.sequence][0]
        news.tokens += 1
        if token < 0:
            live.error = self._no_token(sample.sampling).to_json()
            sample.end(FinishReason.ERROR)
        else:
            self.scheduler.append(sample.sequence, token)
            sample.accept(token, logprobs)
            self._times(news.now, live, sample, 1)
        self._changes(news, live, sample)
        return sample.finish_reason is None

    def _no_token(self, sampling: SamplingState) -> ForgeError:
        """Why no token could be chosen."""
        spent = sampling.guided.failure() if sampling.guided is not None else ""
        if spent:
            return errors.grammar_spent(spent)
        return errors.cornered() if sampling.cornered(self.executor.vocab_size) else errors.not_finite()

    def _take_all(self, news: _News, sample: Sample, tokens: list[int]) -> int:
        """Give a sample its next tokens, in order, until one ends it; how many it took."""
        if not sample.sampling.takes_runs:
            for number, token in enumerate(tokens, 1):
                if not self._take(news, sample, token, None):
                    return number
            return len(tokens)
        live = self._by_sequence[sample.sequence][0]
        count = sample.accept_all(tokens)
        self.scheduler.extend(sample.sequence, tokens[:count])
        news.tokens += count
        self._times(news.now, live, sample, count)
        self._changes(news, live, sample)
        return count

    def _times(self, now: float, live: LiveRequest, sample: Sample, count: int) -> None:
        """Count the times of ``count`` tokens that a sample got at once."""
        if live.first_token is None:
            live.first_token = now
            self.metrics.time_to_first_token_seconds.observe(now - live.arrival)
        latency = self.metrics.inter_token_latency_seconds
        if sample.last_token_at is not None:
            latency.observe(now - sample.last_token_at)
        if count > 1:
            latency.observe(0.0, count - 1)
        sample.last_token_at = now

    def _changes(self, news: _News, live: LiveRequest, sample: Sample) -> None:
        """Note a sample that its client hears of."""
        if sample.finish_reason is not None or (
            live.prepared.request.stream
            and (live.stream_interval == 1 or sample.untold >= live.stream_interval or not sample.told)
        ):
            changed = news.changed.setdefault(live, [])
            if sample not in changed:
                changed.append(sample)

    def _fork(self, plan: StepPlan, batch: StepBatch) -> tuple[list[Sample], list[int], list[Fork]]:
        """The samples that choose a token, each one's row of logits, and who split off.

        Prompts that just finished split into their n samples; every sample draws from the same row. Whoever split off
        stands behind all others.
        """
        samples: list[Sample] = []
        rows: list[int] = []
        forks: list[Fork] = []
        late: list[tuple[Sample, int]] = []
        # rows are those of the step's tokens as long as these are decodes; a prompt has its last token's only
        drafted = batch.query_start[: len(plan.decodes) + 1].tolist() if plan.drafts else None
        for at, sequence in enumerate(plan.sampled()):
            live, sample = self._by_sequence[sequence]
            row = at
            if drafted is not None:
                row = drafted[at] if at < len(plan.decodes) else drafted[-1] + at - len(plan.decodes)
            samples.append(sample)
            rows.append(row)
            if sequence.slots > 1:
                children = self.scheduler.fork(sequence, range(1, sequence.slots))
                forks.append((sequence, children))
                late.extend((self._attach(live, child), row) for child in children)
        for sample, row in late:
            samples.append(sample)
            rows.append(row)
        return samples, rows, forks

    def _emit(self, live: LiveRequest, samples: list[Sample], now: float) -> RequestOutput:
        """Take the samples' news; drop the ended ones, and the request with its last one."""
        news = []
        blocks = _blocks(samples)
        last = samples[0].last_token_at if len(samples) == 1 else _latest(samples)
        for sample in samples:
            output = sample.take_output()
            if sample.finish_reason is not None:
                live.samples.remove(sample)
                del self._by_sequence[sample.sequence]
                if self.speculator is not None:
                    self.speculator.leave(sample.sequence)
                self.scheduler.remove(sample.sequence)
            news.append(output)
        if not live.prepared.request.stream:
            live.ended.extend(news)
            live.blocks = max(live.blocks, blocks)
            news = [] if live.samples else sorted(live.ended, key=lambda o: o.index)
        finished = not live.samples
        if finished:
            del self._live[live.id]
            self._deadlines.pop(live.id, None)
            self._record_end(live, news, now)
        return RequestOutput(
            request_id=live.id,
            samples=news,
            finished=finished,
            num_prompt_tokens=len(live.prepared.prompt),
            num_cached_tokens=samples[0].sequence.cached_tokens or 0 if samples else 0,
            times=RequestTimes(live.arrival, live.first_scheduled, live.first_token, now if finished else None, last),
            error=live.error,
            max_tokens=live.prepared.capacity - len(live.prepared.prompt),
            num_blocks=max(live.blocks, blocks),
            prompt_characters_removed=live.prepared.characters_removed,
        )

    def _record_end(self, live: LiveRequest, news: list[SampleOutput], now: float) -> None:
        reason = news[-1].finish_reason if news else None
        if reason is not None:
            self.metrics.finished[reason.value] += 1
        self.metrics.e2e_request_latency_seconds.observe(now - live.arrival)
        self.metrics.request_prompt_tokens.observe(len(live.prepared.prompt))
        self.metrics.request_generation_tokens.observe(sum(o.num_tokens for o in news))

    def _expire(self, now: float) -> list[RequestOutput]:
        outputs = self._end_queued(now) if self._queued else []
        if not self._deadlines:
            return outputs
        late = [request_id for request_id, deadline in self._deadlines.items() if deadline <= now]
        ended = (self.abort(request_id, FinishReason.TIMEOUT) for request_id in late)
        return outputs + [output for output in ended if output is not None]

    def _end_queued(self, now: float) -> list[RequestOutput]:
        """End what waited longer than it may for its first step."""
        limit, outputs = self.config.queue_timeout, []
        assert limit is not None
        while self._queued:
            live = self._queued[0]
            waits = live.first_scheduled is None and bool(live.samples)
            if waits and now - live.arrival < limit:
                break
            self._queued.popleft()
            if waits:
                error = errors.queued_too_long(now - live.arrival, limit)
                live.error = error.to_json()
                self.metrics.reject(error.code)
                output = self.abort(live.id, FinishReason.ERROR)
                assert output is not None
                outputs.append(output)
        return outputs


def _latest(samples: list[Sample]) -> float | None:
    """When the last of the samples' tokens came."""
    return max((s.last_token_at for s in samples if s.last_token_at is not None), default=None)


def _blocks(samples: list[Sample]) -> int:
    """KV blocks that the samples hold, shared ones counted once."""
    if len(samples) == 1:
        return len(samples[0].sequence.blocks)
    return len({block for sample in samples for block in sample.sequence.blocks})

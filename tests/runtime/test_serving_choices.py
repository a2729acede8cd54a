"""What a server is told to do with requests: limits, streams, and prefixes that salts keep apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.request import FinishReason, GenerationResult, Request
from runtime.sampling import SamplingParams
from tests.support.simulation import SimulatedExecutor
from trtforge.ground.errors import ForgeError

LIMITS = ExecutorLimits(4, 16, 64, 63)


def _core(**config: object) -> EngineCore:
    return EngineCore(SimulatedExecutor(num_blocks=64, limits=LIMITS), config=EngineConfig(**config))


def _run(core: EngineCore, *requests: Request) -> dict[str, list[int]]:
    """Tokens of each output by request."""
    for request in requests:
        core.add_request(request)
    pieces: dict[str, list[int]] = {}
    while core.has_unfinished():
        for output in core.step():
            pieces.setdefault(output.request_id, []).append(len(output.token_ids))
    return pieces


def _request(name: str, tokens: int, **more: object) -> Request:
    return Request(name, prompt_token_ids=[3, 5], params=SamplingParams(max_tokens=tokens), **more)


def test_pieces_of_a_stream_are_as_long_as_asked_and_the_first_comes_at_once() -> None:
    core = _core(stream_interval=4)
    pieces = _run(
        core,
        _request("servers choice", 11),
        _request("own", 11, stream_interval=3),
        _request("every token", 4, stream_interval=1),
        _request("whole", 11, stream=False),
    )
    assert pieces == {"servers choice": [1, 4, 4, 2], "own": [1, 3, 3, 3, 1], "every token": [1] * 4, "whole": [11]}


def test_a_cancelled_request_is_told_what_it_was_not_told_yet() -> None:
    core = _core(stream_interval=10)
    core.add_request(_request("r", 40))
    told = GenerationResult()
    for _ in range(5):
        for output in core.step():
            told.add(output)
    assert len(told.token_ids) == 1
    last = core.abort("r")
    assert last is not None
    assert len(told.add(last).token_ids) == 5


@pytest.mark.parametrize("interval", [0, -1, True, 1.5, "2"])
def test_an_interval_that_is_none_is_refused(interval: object) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-067"):
        _core().prepare(_request("r", 3, stream_interval=interval))


def test_a_server_may_bound_answers() -> None:
    core = _core(max_output_tokens=8)
    core.prepare(_request("fits", 8))
    with pytest.raises(ForgeError) as caught:
        core.prepare(_request("r", 9))
    assert caught.value.code == "TF-RUN-133"
    assert caught.value.numbers == {"max_tokens": 9, "max_output_tokens": 8}


def test_a_wait_that_is_too_long_ends_and_is_counted() -> None:
    now = [0.0]
    executor = SimulatedExecutor(num_blocks=64, limits=ExecutorLimits(1, 16, 64, 63))
    core = EngineCore(executor, config=EngineConfig(queue_timeout=2.0), clock=lambda: now[0])
    core.add_request(_request("runs", 40))
    core.step()
    core.add_request(_request("waits", 3))
    core.add_request(_request("leaves", 3))
    core.abort("leaves")
    now[0] = 1.9
    assert {output.request_id for output in core.step()} == {"runs"}
    core.add_request(_request("waits less", 3))
    now[0] = 2.0
    ended = {output.request_id: output for output in core.step()}
    assert ended["waits"].finished
    assert ended["waits"].error is not None
    assert ended["waits"].error["code"] == "TF-RUN-132"
    assert ended["waits"].finish_reason is FinishReason.ERROR
    assert not ended["runs"].finished, "it has run: it does not wait"
    now[0] = 3.0
    assert "waits less" not in {output.request_id for output in core.step()}
    assert core.stats()["requests_rejected_total"] == {"TF-RUN-132": 1}
    assert _run(core)["waits less"], "it ran once there was room"


_SALTS = st.sampled_from(["", "a", "b", "a\0", "\0", "ä"])


@given(
    st.lists(st.tuples(_SALTS, st.integers(1, 3), st.integers(1, 20), st.integers(1, 6)), min_size=2, max_size=14),
    st.sampled_from([b"", b"s", b"s\0a"]),
)
def test_blocks_are_never_shared_between_salts(asked: list[tuple[str, int, int, int]], own: bytes) -> None:
    """Neither by two that run, nor through what is left in the cache; prompts are prefixes of each other."""
    core = EngineCore(SimulatedExecutor(num_blocks=64, limits=LIMITS), config=EngineConfig(salt=own))
    salts: dict[str, str] = {}
    digests: dict[bytes, str] = {}
    for number, (salt, kind, length, tokens) in enumerate(asked):
        salts[str(number)] = salt
        request = Request(
            str(number), prompt_token_ids=[kind] * length, params=SamplingParams(max_tokens=tokens), cache_salt=salt
        )
        core.add_request(request)
        if number % 3 == 2:
            while core.has_unfinished():
                _step(core, salts, digests)
        else:
            _step(core, salts, digests)
    while core.has_unfinished():
        _step(core, salts, digests)


def _step(core: EngineCore, salts: dict[str, str], digests: dict[bytes, str]) -> None:
    core.step()
    holders: dict[int, str] = {}
    for sequence in core.scheduler.running:
        salt = salts[sequence.key]
        for block in sequence.blocks:
            assert holders.setdefault(block, salt) == salt, "a block held by two salts"
            digest = core.pool.digest(block)
            if digest is not None:
                assert digests.setdefault(digest, salt) == salt, "a block found under another salt"


def test_equal_salts_do_share() -> None:
    core = _core()
    prompt = [7] * 40
    cached = {}
    for name, salt in (("first", "a"), ("second", "a"), ("other", "b")):
        core.add_request(
            Request(name, prompt_token_ids=prompt, params=SamplingParams(max_tokens=2), cache_salt=salt, stream=False)
        )
        while core.has_unfinished():
            for output in core.step():
                cached[name] = output.num_cached_tokens
    assert cached["first"] == cached["other"] == 0
    assert cached["second"] > 0


def test_no_prefix_is_kept_where_a_server_keeps_none() -> None:
    core = _core(prefix_cache=False)
    for name in ("first", "second"):
        core.add_request(Request(name, prompt_token_ids=[7] * 40, params=SamplingParams(max_tokens=2)))
        while core.has_unfinished():
            assert all(output.num_cached_tokens == 0 for output in core.step())

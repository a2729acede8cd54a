"""The pool's books under any sequence of actions, checked against a naive model."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from runtime.blocks import BlockPool, OutOfBlocks, PrefixHasher


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share, publish, write and release blocks; ``contents`` is what a block really holds."""

    holders = Bundle("holders")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.held: dict[int, list[int]] = {}
        self.contents: dict[int, bytes] = {}
        self.next = 0

    def _new(self, blocks: list[int]) -> int:
        self.next += 1
        self.held[self.next] = blocks
        return self.next

    @rule(target=holders, count=st.integers(1, 4))
    def allocate(self, count: int) -> object:
        free = self.pool.num_free
        if count > free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            assert self.pool.num_free == free
            return multiple()
        blocks = self.pool.allocate(count)
        for block in blocks:
            self.contents[block] = b"written by %d" % self.next
        return self._new(blocks)

    @rule(target=holders, holder=holders)
    def share(self, holder: int) -> object:
        blocks = self.held[holder]
        self.pool.hold(blocks)
        return self._new(list(blocks))

    @rule(holder=consumes(holders))
    def release(self, holder: int) -> None:
        self.pool.release(self.held.pop(holder))

    @rule(holder=holders, number=st.integers(0, 3), name=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def publish(self, holder: int, number: int, name: bytes) -> None:
        blocks = self.held[holder]
        block = blocks[number % len(blocks)]
        if self.pool.digest(block) is None and self.pool.references(block) == 1:
            self.contents[block] = name
            self.pool.publish(block, name)

    @rule(target=holders, names=st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=3))
    def reuse(self, names: list[bytes]) -> object:
        blocks = self.pool.lookup(names)
        assert [self.contents[b] for b in blocks] == names[: len(blocks)]
        free = self.pool.num_free
        idle = self.pool.idle(blocks)
        self.pool.hold(blocks)
        # the same digest may be named twice, but idle blocks become held once
        assert free - self.pool.num_free == len({b for b in blocks if self.pool.references(b) == blocks.count(b)})
        assert idle >= free - self.pool.num_free
        return self._new(blocks) if blocks else multiple()

    @rule(holder=holders, number=st.integers(0, 3))
    def write(self, holder: int, number: int) -> None:
        blocks = self.held[holder]
        number %= len(blocks)
        old = blocks[number]
        references, digest = self.pool.references(old), self.pool.digest(old)
        try:
            block, copied = self.pool.make_writable(old)
        except OutOfBlocks:
            assert self.pool.num_free == 0 and self.pool.references(old) == references
            return
        assert copied == (references > 1 or digest is not None)
        assert self.pool.references(block) == 1 and self.pool.digest(block) is None
        blocks[number] = block
        self.contents[block] = b"rewritten"

    @rule()
    def forget(self) -> None:
        self.pool.forget_cache()
        assert self.pool.num_cached == 0

    @invariant()
    def books_agree(self) -> None:
        self.pool.check()
        count = [0] * self.pool.num_blocks
        for blocks in self.held.values():
            for block in blocks:
                count[block] += 1
        assert count == [self.pool.references(b) for b in range(self.pool.num_blocks)]
        for name in (b"a", b"b", b"c", b"d"):
            for block in self.pool.lookup([name]):
                assert self.contents[block] == name

    def teardown(self) -> None:
        for blocks in self.held.values():
            self.pool.release(blocks)
        assert self.pool.num_free == self.pool.num_blocks
        self.pool.check()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_release_twice_is_a_bug_not_a_corruption() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="more often than held"):
        pool.release(blocks)


def test_free_block_cannot_be_shared() -> None:
    with pytest.raises(RuntimeError, match="no contents"):
        BlockPool(2).hold([0])


def test_eviction_is_least_recently_used_and_tail_first() -> None:
    pool = BlockPool(4)
    old, new = pool.allocate(2), pool.allocate(2)
    for block, name in zip(old + new, [b"o0", b"o1", b"n0", b"n1"], strict=True):
        pool.publish(block, name)
    pool.release(old)
    pool.release(new)
    assert pool.num_free == 4 and pool.num_cached == 4
    pool.allocate(1)
    assert pool.lookup([b"o0", b"o1"]) == old[:1], "the tail of the older prefix goes first"
    pool.hold(pool.lookup([b"o0"]))
    pool.allocate(2)
    assert pool.lookup([b"n0"]) == [] and pool.lookup([b"o0"]) == old[:1], "what is in use stays"
    assert pool.evictions == 3


def test_known_digest_keeps_its_block() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, b"x")
    pool.publish(second, b"x")
    assert pool.lookup([b"x"]) == [first]
    pool.release([second])
    assert pool.num_cached == 0 and pool.num_free == 1


def test_without_prefix_cache_nothing_is_found() -> None:
    pool = BlockPool(2, prefix_cache=False)
    block = pool.allocate(1)[0]
    pool.publish(block, b"x")
    assert pool.lookup([b"x"]) == []


def test_digests_chain_and_depend_on_salt() -> None:
    tokens = np.arange(12, dtype=np.int64)
    one = PrefixHasher(4).extend(tokens, 12)
    assert len(one) == 3 and len(set(one)) == 3
    assert PrefixHasher(4).extend(tokens, 11) == one[:2], "only full blocks"
    changed = tokens.copy()
    changed[0] = 99
    assert not set(one) & set(PrefixHasher(4).extend(changed, 12)), "an early token changes every later digest"
    assert not set(one) & set(PrefixHasher(4, b"tenant").extend(tokens, 12))


def test_hasher_grows_and_forks() -> None:
    tokens = np.arange(12, dtype=np.int64)
    hasher = PrefixHasher(4)
    hasher.extend(tokens, 4)
    fork = hasher.fork()
    assert fork.extend(tokens, 12) == PrefixHasher(4).extend(tokens, 12)
    assert len(hasher.digests) == 1

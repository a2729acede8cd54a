"""The block pool's books: reference counts, free list, prefix cache with LRU eviction.

Policy: every block is in exactly one of three states.

* **held**: reference count ≥ 1. Several sequences may hold a block; then nobody writes to it
  (:meth:`BlockPool.make_writable` gives the writer its own).
* **cached**: count 0 and its contents are a known full block of some prefix. Counts as free; handed
  out for other contents only when the free list is empty, least recently used first.
* **free**: count 0, contents meaningless.

A digest names at most one block and a block carries at most one digest; both only after the block's
keys and values were computed, so a failed step never leaves a cache entry behind. Releasing more often
than holding is a bug and raises ``RuntimeError`` at once rather than corrupting somebody's context.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for; nothing was taken."""


class BlockPool:
    """Books for N pool blocks of one engine. Not thread-safe: only the stepping thread touches it.

    Args:
        num_blocks: N.
        prefix_cache: keep released full blocks for reuse.
    """

    def __init__(self, num_blocks: int, *, prefix_cache: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; at least 1")
        self.num_blocks = num_blocks
        self.prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        # Popped from the end: low numbers first, which keeps a young pool's memory compact.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self.evictions = 0

    @property
    def num_free(self) -> int:
        """Blocks that :meth:`allocate` could hand out now (free and cached)."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks held by at least one sequence."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but whose contents can still be reused."""
        return len(self._cached)

    def references(self, block: int) -> int:
        """How many holders ``block`` has."""
        return self._references[block]

    def digest(self, block: int) -> bytes | None:
        """The digest under which ``block`` can be found, or None."""
        return self._digest_of.get(block)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks with count 1 each.

        Raises:
            OutOfBlocks: fewer are free; nothing was taken.
        """
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks asked for, {self.num_free} of {self.num_blocks} free")
        blocks = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                del self._block_of[self._digest_of.pop(block)]
                self.evictions += 1
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def lookup(self, digests: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known prefix of ``digests``; takes nothing (see :meth:`hold`)."""
        blocks: list[int] = []
        if self.prefix_cache:
            for digest in digests:
                block = self._block_of.get(digest)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` are unheld now, so that holding them would lower :attr:`num_free`."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, which must be held or cached."""
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._cached:
                    raise RuntimeError(f"block {block} is free: it has no contents to share")
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block, given in sequence order.

        Worked from the back, so that of one sequence the last block becomes the first to be evicted: a
        prefix is useful without its tail, never a tail without its prefix.
        """
        for block in reversed(blocks):
            count = self._references[block] - 1
            if count < 0:
                raise RuntimeError(f"block {block} released more often than held")
            self._references[block] = count
            if count == 0:
                if block in self._digest_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int, digest: bytes) -> None:
        """Make a held, fully computed block findable; a digest already known keeps its block."""
        if not self.prefix_cache or digest in self._block_of or block in self._digest_of:
            return
        if self._references[block] == 0:
            raise RuntimeError(f"block {block} is not held: its contents may change")
        self._digest_of[block] = digest
        self._block_of[digest] = block

    def make_writable(self, block: int) -> tuple[int, bool]:
        """The block that its holder may write to, and whether ``block`` must be copied there first.

        A block held once and not findable is the holder's own. Otherwise the holder's reference moves
        to a fresh block.

        Raises:
            OutOfBlocks: no block is free for the copy; nothing changed.
        """
        if self._references[block] == 1 and block not in self._digest_of:
            return block, False
        fresh = self.allocate(1)[0]
        self.release([block])
        return fresh, True

    def forget_cache(self) -> None:
        """Drop every prefix entry (after a failed step: contents can no longer be trusted)."""
        self._free.extend(reversed(self._cached))
        self._cached.clear()
        self._digest_of.clear()
        self._block_of.clear()

    def check(self) -> None:
        """Raise ``AssertionError`` unless the books agree with themselves (tests call it after each action)."""
        free, cached = set(self._free), set(self._cached)
        held = {block for block, count in enumerate(self._references) if count > 0}
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert not free & cached and not free & held and not cached & held, "a block has two states"
        assert len(free) + len(cached) + len(held) == self.num_blocks, "a block is lost"
        assert {self._block_of[d]: d for d in self._block_of} == self._digest_of, "digests and blocks disagree"
        assert cached <= set(self._digest_of), "a cached block has no digest"
        assert not free & set(self._digest_of), "a free block can still be found"

"""Paged KV blocks: who owns which pool block, which blocks hold reusable prefixes, when a write must copy."""

from runtime.blocks.hashing import PrefixHasher
from runtime.blocks.pool import BlockPool, OutOfBlocks

__all__ = ["BlockPool", "OutOfBlocks", "PrefixHasher"]

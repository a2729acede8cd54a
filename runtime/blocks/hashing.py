"""Identity of a full block: a chained hash over its tokens, everything before it, and a salt.

Policy: two blocks have the same digest only if their keys and values are interchangeable, so the
digest covers the whole prefix (chaining) and a salt for whatever else decides the contents or who may
share them (a tenant, an adapter). BLAKE2b of 128 bits: a collision, by accident or by a crafted
prompt, would hand one user another user's context, so Python's ``hash`` will not do.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16


class PrefixHasher:
    """Digests of the full blocks of one sequence, computed once each as the sequence grows."""

    __slots__ = ("_block_size", "digests", "root")

    def __init__(self, block_size: int, salt: bytes = b"") -> None:
        self._block_size = block_size
        self.root = hashlib.blake2b(salt, digest_size=DIGEST_BYTES, person=b"trtforge-kv-1").digest()
        self.digests: list[bytes] = []

    def fork(self) -> PrefixHasher:
        """A copy that grows on its own."""
        other = object.__new__(PrefixHasher)
        other._block_size, other.root, other.digests = self._block_size, self.root, list(self.digests)
        return other

    def extend(self, tokens: npt.NDArray[np.int64], length: int) -> list[bytes]:
        """Digests of every full block of ``tokens[:length]`` (int64); blocks already seen are not read again."""
        digests, size = self.digests, self._block_size
        for number in range(len(digests), length // size):
            parent = digests[-1] if digests else self.root
            content = tokens[number * size : (number + 1) * size].tobytes()
            digests.append(hashlib.blake2b(parent + content, digest_size=DIGEST_BYTES).digest())
        return digests

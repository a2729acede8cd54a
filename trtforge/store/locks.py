"""One lock a (stage, key): two runs on one store never do the same work twice.

Policy: locks are ``flock`` locks (by ``filelock``), so the kernel releases them when a process dies in
any way; who holds one is written beside it for the message that a waiting run shows. Lock files are
left in place: removing them would let two processes lock two different inodes of one name.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock

from trtforge.ground.files import read_json

#: a waiting run looks again after this many seconds
POLL_SECONDS = 0.1


def _describe(holder: Any) -> str:
    if not isinstance(holder, dict) or "pid" not in holder:
        return "another process"
    text = f"process {holder['pid']}"
    if holder.get("host") not in (None, socket.gethostname()):
        text += f" on {holder['host']}"
    if isinstance(holder.get("since"), (int, float)):
        text += f", since {time.strftime('%H:%M:%S', time.localtime(holder['since']))}"
    return text


@contextlib.contextmanager
def hold(path: Path, *, on_wait: Callable[[str], None] | None = None, note_holder: bool = True) -> Iterator[None]:
    """Hold the lock at ``path`` for the block; waits as long as it takes.

    ``on_wait`` is called once, with a description of the holder, when the lock is not free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path, thread_local=False, poll_interval=POLL_SECONDS)
    holder = path.with_suffix(".holder")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if on_wait is not None:
            on_wait(_describe(read_json(holder)))
        lock.acquire()
    try:
        if note_holder:
            facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
            with contextlib.suppress(OSError):  # the note is a courtesy: a full disk must not stop the lock
                holder.write_text(json.dumps(facts), encoding="utf-8")
        yield
    finally:
        if note_holder:
            with contextlib.suppress(OSError):
                holder.unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def try_hold(path: Path) -> Iterator[bool]:
    """Hold the lock at ``path`` when it is free at once; the block receives whether it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()

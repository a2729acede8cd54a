"""Answers on their way to clients, sent by a thread of their own.

Policy: the stepping thread never waits for a client's way back. What a request has to say while its last response is
still being sent waits in its box as *one* output, however many steps it grows over; it goes as one response once the
sender comes to it. A box therefore holds at most one answer, and a slow way back gets fewer, longer responses instead
of a queue. Boxes are served in turn.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from runtime.merging import absorb, own_copy
from runtime.request import RequestOutput

log = logging.getLogger("trtforge.runtime")


class Box:
    """What waits to be sent for one request.

    Args:
        send: sends an output; raises when there is nobody to take it.
        gone: told once when ``send`` raised.
    """

    __slots__ = ("broken", "gone", "joined", "send", "waiting")

    def __init__(self, send: Callable[[RequestOutput], None], gone: Callable[[], None]) -> None:
        self.send = send
        self.gone = gone
        self.waiting: RequestOutput | None = None
        #: ``waiting`` is the box's own copy, which may grow
        self.joined = False
        self.broken = False


class Outbox:
    """One sender thread for all requests of a model; it starts with the first output.

    Attributes:
        joins: outputs that were joined to one that waited.
    """

    def __init__(self, name: str = "answers") -> None:
        self._name = name
        self._changed = threading.Condition()
        self._boxes: deque[Box] = deque()
        self._sending = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self.joins = 0

    def put(self, box: Box, output: RequestOutput) -> None:
        """Leave an output of the box's request; any one thread a box.

        Raises:
            RuntimeError: the client has gone.
        """
        with self._changed:
            if box.broken:
                raise RuntimeError("the client has gone")
            if box.waiting is None:
                box.waiting = output
                self._boxes.append(box)
                self._changed.notify()
            else:
                if not box.joined:
                    box.waiting, box.joined = own_copy(box.waiting), True
                absorb(box.waiting, output)
                self.joins += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def flush(self, timeout: float) -> bool:
        """Wait until everything was sent; False when ``timeout`` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._boxes and not self._sending, timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits and end the thread."""
        self.flush(timeout)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
                while not self._boxes:
                    if self._closed:
                        return
                    self._changed.wait()
                box = self._boxes.popleft()
                output, box.waiting, box.joined = box.waiting, None, False
                self._sending = True
            assert output is not None
            try:
                box.send(output)
            except Exception:
                log.warning("the client of %s is gone", output.request_id, exc_info=True)
                with self._changed:
                    box.broken = True
                box.gone()

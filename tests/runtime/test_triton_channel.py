"""The response channel: one final response, and no question about the client from then on."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.triton_channel import Channel

FINAL = 1
BACKEND = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
    InferenceResponse=lambda error: ("error", error),
    TritonError=str,
)


class Sender:
    """Behaves as Triton's: what it stands for is freed by the final response."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.sent: list[Any] = []
        self.freed = False
        self.asking = False
        self.crashes: list[str] = []
        self.refuses = refuses

    def send(self, response: Any = None, flags: int = 0) -> None:
        if flags == FINAL:
            if self.asking:
                self.crashes.append("freed while it was asked")
            self.freed = True
        elif self.refuses:
            raise RuntimeError("nobody is there")
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        if self.freed:
            self.crashes.append("asked after it was freed")
        self.asking = True
        time.sleep(0.0005)
        self.asking = False
        return True


def test_one_final_response() -> None:
    sender = Sender()
    channel = Channel(sender, BACKEND)
    channel.send("a")
    assert channel.gone()
    channel.end("b")
    channel.end("c")
    channel.fail({"code": "X", "message": "late"})
    assert sender.sent == [("a", 0), ("b", FINAL)]
    assert channel.ended
    assert not channel.gone(), "nobody is asked about any more"
    assert sender.crashes == []


def test_an_error_is_a_final_response_with_a_way_out() -> None:
    sender = Sender()
    Channel(sender, BACKEND).fail(
        {"code": "TF-RUN-050", "message": "too long", "why": "w", "remedies": ["a", "b", "c"]}
    )
    assert sender.sent == [(("error", "TF-RUN-050: too long; w; a; b"), FINAL)]


def test_a_refused_response_ends_the_request() -> None:
    sender = Sender(refuses=True)
    channel = Channel(sender, BACKEND)
    with pytest.raises(RuntimeError):
        channel.send("a")
    assert channel.ended
    assert sender.sent == [(None, FINAL)]


def test_questions_and_the_final_response_exclude_each_other() -> None:
    senders = [Sender() for _ in range(200)]
    channels = [Channel(sender, BACKEND) for sender in senders]
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for channel in channels:
                channel.gone()

    watcher = threading.Thread(target=watch)
    watcher.start()
    for channel in channels:
        time.sleep(0.0003)
        channel.end("answer")
    done.set()
    watcher.join()
    assert [crash for sender in senders for crash in sender.crashes] == []
    assert all(sender.freed for sender in senders)

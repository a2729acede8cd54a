"""Answers on their way: in order, whole, one at a time, and never more than one waiting a request."""

from __future__ import annotations

import threading

import pytest

from runtime.frontend.outbox import Box, Outbox
from runtime.request import RequestOutput, SampleOutput

WAIT = 20


def _output(*tokens: int, finished: bool = False, name: str = "r") -> RequestOutput:
    sample = SampleOutput(0, text="".join(map(str, tokens)), token_ids=list(tokens), num_tokens=sum(tokens))
    return RequestOutput(name, [sample], finished, 3)


class Held:
    """A way back that takes nothing until it may."""

    def __init__(self) -> None:
        self.may, self.entered = threading.Event(), threading.Event()
        self.taken: list[RequestOutput] = []

    def __call__(self, output: RequestOutput) -> None:
        self.entered.set()
        assert self.may.wait(WAIT)
        self.taken.append(output)


def test_what_comes_while_a_response_is_sent_goes_as_one_after_it() -> None:
    outbox, way = Outbox(), Held()
    box = Box(way, lambda: None)
    outputs = [_output(1), *(_output(n) for n in range(2, 8)), _output(8, finished=True)]
    outbox.put(box, outputs[0])
    assert way.entered.wait(WAIT)
    for output in outputs[1:]:
        outbox.put(box, output)
    way.may.set()
    assert outbox.flush(WAIT)
    assert [output.token_ids for output in way.taken] == [[1], [2, 3, 4, 5, 6, 7, 8]]
    assert (way.taken[1].finished, way.taken[1].text) == (True, "2345678")
    assert outbox.joins == 6
    assert [output.token_ids for output in outputs] == [[n] for n in range(1, 9)], "the engine's own stay as they are"
    outbox.close()


def test_boxes_are_served_in_turn() -> None:
    outbox, order = Outbox(), list[str]()
    held = Held()
    boxes = {name: Box(lambda output: order.append(output.request_id), lambda: None) for name in "abc"}
    outbox.put(Box(held, lambda: None), _output(0))
    assert held.entered.wait(WAIT)
    for name in "abcabcab":
        outbox.put(boxes[name], _output(1, name=name))
    held.may.set()
    assert outbox.flush(WAIT)
    assert order == ["a", "b", "c"], "each once, with all that it had to say"
    outbox.close()


def test_a_client_that_has_gone_is_told_of_once_and_nothing_more_is_taken() -> None:
    outbox, gone = Outbox(), list[int]()
    kept: list[RequestOutput] = []
    left = threading.Event()

    def nobody(output: RequestOutput) -> None:
        raise ConnectionResetError

    def leave() -> None:
        gone.append(1)
        left.set()

    broken = Box(nobody, leave)
    outbox.put(broken, _output(1))
    assert left.wait(WAIT)
    with pytest.raises(RuntimeError, match="gone"):
        outbox.put(broken, _output(2))
    outbox.put(Box(kept.append, lambda: None), _output(3))
    assert outbox.flush(WAIT)
    assert gone == [1]
    assert kept[0].token_ids == [3], "others are served on"
    outbox.close()


def test_closing_sends_what_waits() -> None:
    outbox, taken = Outbox(), list[RequestOutput]()
    outbox.put(Box(taken.append, lambda: None), _output(1))
    outbox.close()
    assert [output.token_ids for output in taken] == [[1]]
    Outbox().close()  # one that never had anything to send

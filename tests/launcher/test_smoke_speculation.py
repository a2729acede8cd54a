"""The smoke test's check of drafts, against a stand-in of a server that is right, and against every way to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from launcher import smoke
from launcher.client import Answer
from launcher.smoke import Parting, SmokeTarget, _speculation

EXPECTED = {"question": "an answer", "copy copy copy": "copy copy copy copy"}
Change = Callable[[dict[str, Any], Answer], None]


class StandIn:
    """Answers as expected with 8 draft tokens, 3 of them accepted, and counts them; ``change`` spoils an answer."""

    def __init__(self, change: Change = lambda values, answer: None, counted: int = 8) -> None:
        self._change, self._counted = change, counted
        self.figures = {"num_requests_running": 0.0, "kv_blocks_used": 0.0, "generation_tokens_total": 0.0}

    def __call__(self, url: str, model: str) -> StandIn:
        return self

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, values: dict[str, Any], timeout: float) -> Answer:
        drafts = 8 * values["speculate"]
        answer = Answer(
            [EXPECTED[values["text_input"]]], "length", 12, draft_tokens=drafts, accepted_tokens=drafts // 2
        )
        if drafts:
            for name, count in ((smoke._DRAFTED, self._counted), (smoke._ACCEPTED, 4)):
                self.figures[name] = self.figures.get(name, 0.0) + count
        self._change(values, answer)
        return answer


def checked(monkeypatch: pytest.MonkeyPatch, server: StandIn, **more: Any) -> str:
    monkeypatch.setattr(smoke, "StreamClient", server)
    monkeypatch.setattr(smoke, "read_figures", lambda url: dict(server.figures))
    target = SmokeTarget("g", "h", "m", "model", EXPECTED, max_tokens=12, max_input_len=64, speculates=True, **more)
    return _speculation(target)


def test_a_server_that_counts_right_passes_with_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(monkeypatch, StandIn()) == "2 prompts; 16 draft tokens, 8 of them accepted"


def on(**fields: Any) -> Change:
    """Spoil the answers with drafts."""

    def change(values: dict[str, Any], answer: Answer) -> None:
        if values["speculate"]:
            for name, value in fields.items():
                setattr(answer, name, value)

    return change


def off(**fields: Any) -> Change:
    """Spoil the answers without drafts."""

    def change(values: dict[str, Any], answer: Answer) -> None:
        if not values["speculate"]:
            for name, value in fields.items():
                setattr(answer, name, value)

    return change


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (StandIn(off(draft_tokens=3)), "that a request forbade"),
        (StandIn(off(draft_tokens=None)), "that a request forbade"),
        (StandIn(off(pieces=["another"])), "without drafts"),
        (StandIn(on(pieces=["another"])), "with drafts"),
        (StandIn(on(draft_tokens=None)), "no total_draft_tokens"),
        (StandIn(on(accepted_tokens=9)), "accepted more than was drafted"),
        (StandIn(on(draft_tokens=20, accepted_tokens=12)), "more drafts accepted than tokens"),
        (StandIn(on(error="refused")), "refused"),
        (StandIn(counted=7), "grew by 14, and the answers count 16"),
        (StandIn(on(accepted_tokens=3)), "grew by 8, and the answers count 6"),
    ],
)
def test_every_way_to_be_wrong_is_found(monkeypatch: pytest.MonkeyPatch, server: StandIn, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        checked(monkeypatch, server)


def test_a_near_tie_behind_drafts_is_excused_where_rows_depend_on_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    tie: dict[str, Any] = {"parting": lambda prompt, text: Parting(True, "a tie"), "ties": True}
    assert checked(monkeypatch, StandIn(on(pieces=["another"])), **tie).startswith("2 prompts")
    for far in (
        {**tie, "parting": lambda prompt, text: Parting(False, "far")},
        {**tie, "ties": False},
    ):
        with pytest.raises(AssertionError):
            checked(monkeypatch, StandIn(on(pieces=["another"])), **far)

"""The HTTP check of the smoke test against a small server: several events, one event, wrong answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from launcher.smoke import Parting, SmokeTarget, _agrees, _http_agrees
from tests.support.http_server import Quiet, listening

#: prompt -> pieces of its answer
ANSWERS = {"short": ["Yes."], "long": ["Rain ", "falls ", "down."]}


@contextmanager
def served(pieces: dict[str, list[str]], asked: list[str]) -> Iterator[str]:
    """A stand-in of Triton's generate endpoints; ``asked`` collects the prompts."""

    class Handler(Quiet):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(request["text_input"])
            parts = pieces[request["text_input"]]
            if self.path.endswith("generate_stream"):
                body = "".join(f"data:{json.dumps({'text_output': part})}\n\n" for part in parts)
            else:
                body = json.dumps({"text_output": "".join(parts)})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    with listening(Handler) as port:
        yield f"127.0.0.1:{port}"


def target(url: str, expected: dict[str, str]) -> SmokeTarget:
    return SmokeTarget(
        http_url=url, grpc_url=url, metrics_url=url, model="m", expected=expected, max_tokens=8, max_input_len=8
    )


def joined(pieces: dict[str, list[str]]) -> dict[str, str]:
    return {prompt: "".join(parts) for prompt, parts in pieces.items()}


def test_the_stream_that_is_checked_has_several_pieces() -> None:
    asked: list[str] = []
    with served(ANSWERS, asked) as url:
        assert _http_agrees(target(url, joined(ANSWERS))) == "3 server-sent events"
    assert set(asked) == {"long"}


def test_without_a_longer_answer_that_is_said() -> None:
    pieces = {"a": ["Yes."], "b": ["No."]}
    asked: list[str] = []
    with served(pieces, asked) as url:
        assert _http_agrees(target(url, joined(pieces))).startswith("2 answers, each one piece long")
    assert set(asked) == {"a", "b"}


def test_another_answer_fails_the_check() -> None:
    with (
        served(ANSWERS, []) as url,
        pytest.raises(AssertionError, match="generate, prompt 'long': got 'Rain falls down"),
    ):
        _http_agrees(target(url, {**joined(ANSWERS), "long": "Something longer than that."}))


@pytest.mark.parametrize(
    ("ties", "near_tie", "batched", "passes"),
    [(True, True, True, True), (True, False, True, False), (False, True, True, False), (True, True, False, False)],
)
def test_only_a_near_tie_in_a_batch_of_an_engine_that_has_them_excuses(
    ties: bool, near_tie: bool, batched: bool, passes: bool
) -> None:
    """And what is not excused says where the answers part and by what margin."""
    asked: list[tuple[str, str]] = []

    def parting(prompt: str, text: str) -> Parting:
        asked.append((prompt, text))
        return Parting(near_tie, "they part at token 3: ' sun' against ' sky', 0.6 below the best logit")

    smoke = SmokeTarget("", "", "", "m", {"why": "the sun"}, 8, 8, parting=parting, ties=ties)
    assert _agrees(smoke, "client 5", "why", "the sun", batched=batched) and not asked
    if passes:
        assert _agrees(smoke, "client 5", "why", "the sky", batched=batched) is False
    else:
        with pytest.raises(
            AssertionError, match=r"client 5, prompt 'why': got 'the sky'.*they part at token 3.*0\.6 below"
        ):
            _agrees(smoke, "client 5", "why", "the sky", batched=batched)
    assert asked == [("why", "the sky")]

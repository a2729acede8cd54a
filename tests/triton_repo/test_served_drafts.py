"""A draft and a target behind BLS in a real Triton server: the answer is the target's own, whatever was drafted.

Stand-ins in both engines' place speak a language in which each token follows from all before it; the draft's errs.
"""

import json
import time

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from launcher.client import StreamClient
from launcher.local import TritonServer
from runtime.tokenizer import EngineTokenizer
from tests.support.tiny import write_tiny_llama
from tests.triton_repo.served import ENGINE, ask, installation_with_stand_in, tensors, text
from tests.triton_repo.stand_in_language import answer
from triton_repo.layouts import inflight_batcher_llm as layout
from triton_repo.lint.run import lint_repository
from trtforge.recipe.schema import Recipe

pytestmark = pytest.mark.slow

BLS, MOST, END = "tensorrt_llm_bls", 4, 2
PROMPTS = ("plain words, and more of them", "Grüße, 日本語 und 🙂🙃 dazwischen", "a", "  spaces\n\nand lines ")


def recipe(decoupled=True):
    return Recipe.model_validate(
        {
            "name": "x",
            "model": {"source": "/m"},
            "build": {
                "target": "trtllm-engine",
                "trtllm": {"kv_reuse": True},
                "kv_cache": {"memory": "1MiB"},
            },
            "speculation": {"method": "draft_target", "draft": "/d", "max_draft_len": MOST},
            "triton": {
                "layout": layout.LAYOUT,
                "decoupled": decoupled,
                "preprocessing_instances": 1,
                "postprocessing_instances": 1,
            },
        }
    )


def emit(folder, decoupled=True):
    target = {**ENGINE, "speculation": "draft_tokens_external", "max_draft_len": MOST, "max_beam_width": 1}
    return layout.emit(
        recipe(decoupled),
        target,
        folder,
        engine_reference="languages",
        draft={**ENGINE, "max_beam_width": 1, "kv_bytes_per_token": 256},
        draft_reference="drafts",
    )


def serve(folder, decoupled, monkeypatch):
    write_tiny_llama(folder / "engine")
    emit(folder / "repository", decoupled)
    (folder / "backends").mkdir()
    monkeypatch.setenv("STAND_IN_LOG", str(folder / "requests"))
    installation = installation_with_stand_in(folder / "backends")
    return TritonServer(folder / "repository", log_path=folder / "server.log", installation=installation)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drafts")


@pytest.fixture(scope="module")
def server(folder):
    with pytest.MonkeyPatch.context() as patch, serve(folder, True, patch) as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return EngineTokenizer.load(tiny_checkpoint)


def own(tokenizer, prompt, count):
    """The target's own greedy answer."""
    return tokenizer.decode(answer(tokenizer.encode(prompt), count, END))


def number(result, name):
    return result.as_numpy(name).reshape(-1)[0]


def requests(folder):
    path = folder / "requests"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_the_answer_is_the_target_s_own(server, tokenizer, prompt, count):
    values = {"text_input": prompt, "max_tokens": count}
    expected = own(tokenizer, prompt, count)
    drafted = ask(server.grpc_url, BLS, values)
    alone = ask(server.grpc_url, BLS, {**values, "num_draft_tokens": 0})
    streamed = ask(server.grpc_url, BLS, {**values, "stream": True})
    few = ask(server.grpc_url, BLS, {**values, "num_draft_tokens": 1, "stream": True})
    assert [text(results) for results in (drafted, alone, streamed, few)] == [expected] * 4
    counted = {**values, "stream": True, "return_num_input_tokens": True, "return_num_output_tokens": True}
    own_counts = ask(server.grpc_url, BLS, counted)
    assert sum(number(result, "num_output_tokens") for result in own_counts) == number(drafted[0], "num_output_tokens")
    assert number(own_counts[0], "num_input_tokens") == len(tokenizer.encode(prompt))
    assert len(drafted) == 1
    tokens = len(answer(tokenizer.encode(prompt), count, END))
    for results in (drafted, alone, streamed):
        assert number(results[-1], "num_output_tokens") == tokens
        assert number(results[-1], "finish_reason") == (b"length" if tokens == count else b"stop")


def test_drafts_are_verified_and_most_are_kept(server, folder, tokenizer):
    values = {"text_input": PROMPTS[0], "max_tokens": 40, "stream": True}
    before = len(requests(folder))
    pieces = ask(server.grpc_url, BLS, values)
    made = requests(folder)[before:]
    drafting = [row for row in made if row["model"] == "drafts"]
    verifying = [row for row in made if row["model"] == "languages"]
    tokens = len(answer(tokenizer.encode(PROMPTS[0]), 40, END))
    assert len(verifying) < tokens
    assert all(row["drafts"] <= MOST and row["most"] == row["drafts"] + 1 for row in verifying)
    assert all(row["most"] <= MOST for row in drafting)
    # a piece a round, with the counts of all rounds so far, and one that says why it ended
    assert len(pieces) in (len(verifying), len(verifying) + 1)
    last = pieces[-2]
    drafted, accepted = number(last, "total_draft_tokens"), number(last, "total_accepted_draft_tokens")
    assert drafted == sum(row["drafts"] for row in verifying[: len(pieces) - 1])
    assert 0 < accepted < drafted
    assert number(last, "acceptance_rate") == pytest.approx(accepted / drafted)


def test_rounds_draw_other_random_numbers(server, folder):
    before = len(requests(folder))
    ask(server.grpc_url, BLS, {"text_input": PROMPTS[0], "max_tokens": 12, "seed": 70, "temperature": 0.5})
    made = requests(folder)[before:]
    seeds = [row["seed"] for row in made if row["model"] == "languages"]
    assert seeds[0] == 70 and seeds == sorted(set(seeds))
    assert all(row["temperature"] == 0.5 for row in made)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_word_ends_the_answer_before_it(server, tokenizer, stream):
    whole = own(tokenizer, PROMPTS[0], 40)
    middle = len(whole) // 2
    stop = whole[middle : middle + 2]
    values = {"text_input": PROMPTS[0], "max_tokens": 40, "stop_words": [stop], "stream": stream}
    stopped = ask(server.grpc_url, BLS, values)
    assert text(stopped) == whole[: whole.index(stop)]
    assert number(stopped[-1], "finish_reason") == b"stop"


def test_no_end_before_min_tokens(server, tokenizer):
    prompt = next(f"{n}" for n in range(1000) if len(answer(tokenizer.encode(f"{n}"), 30, END)) < 6)
    values = {"text_input": prompt, "max_tokens": 30, "min_tokens": 12}
    drafted = ask(server.grpc_url, BLS, values)
    assert text(drafted) == text(ask(server.grpc_url, BLS, {**values, "num_draft_tokens": 0}))
    assert number(drafted[0], "num_output_tokens") >= 12


def test_another_end_token_and_draft_logits(server, tokenizer):
    made = answer(tokenizer.encode(PROMPTS[0]), 20, END)
    values = {"text_input": PROMPTS[0], "max_tokens": 20, "use_draft_logits": True}
    assert text(ask(server.grpc_url, BLS, values)) == tokenizer.decode(made)
    ended = ask(server.grpc_url, BLS, {**values, "end_id": made[5]})
    assert text(ended) == tokenizer.decode(made[: made.index(made[5])])
    assert number(ended[0], "finish_reason") == b"stop"


def test_the_prompt_is_given_back_when_asked_for_and_not_in_streams(server, tokenizer):
    values = {"text_input": "abc", "max_tokens": 6, "exclude_input_in_output": False}
    assert text(ask(server.grpc_url, BLS, values)) == "abc" + own(tokenizer, "abc", 6)
    assert text(ask(server.grpc_url, BLS, {**values, "stream": True})) == own(tokenizer, "abc", 6)


def test_a_client_that_has_gone_ends_the_rounds(server, folder, tokenizer):
    prompt = next(f"go {n}" for n in range(1000) if len(answer(tokenizer.encode(f"go {n}"), 200, END)) == 200)
    values = {"text_input": prompt, "max_tokens": 200, "stream": True, "temperature": 9.0}
    before = len(requests(folder))
    with StreamClient(server.grpc_url, BLS) as client:
        client.send(values)
        next(iter(client.receive(30)))
        client.close(cancel=True)
    assert text(ask(server.grpc_url, BLS, {"text_input": "abc", "max_tokens": 3})) == own(tokenizer, "abc", 3)
    time.sleep(1.0)  # the round that ran when the client went has come to its end

    def of_that_client():
        return [row for row in requests(folder)[before:] if row["temperature"] == 9.0]

    settled = len(of_that_client())
    time.sleep(1.0)
    assert 0 < len(of_that_client()) == settled < 40


def test_what_rounds_cannot_serve_runs_alone_or_is_refused(server, folder, tokenizer):
    rows = {
        "text_input": np.array([["abc"], ["de"]], dtype=np.object_),
        "max_tokens": np.array([[4], [4]], dtype=np.int32),
    }
    before = len(requests(folder))
    found = {int(number(r, "batch_index")): text([r]) for r in ask(server.grpc_url, BLS, rows)}
    assert found == {0: own(tokenizer, "abc", 4), 1: own(tokenizer, "de", 4)}
    logged = ask(server.grpc_url, BLS, {"text_input": "abc", "max_tokens": 4, "return_log_probs": True})
    assert logged[0].as_numpy("output_log_probs") is not None
    assert not [row for row in requests(folder)[before:] if row["model"] == "drafts"]
    alone = {"num_draft_tokens": 0, "use_draft_logits": True}
    with pytest.raises(InferenceServerException, match="TF-TRI-089: use_draft_logits"):
        ask(server.grpc_url, BLS, {"text_input": "abc", "max_tokens": 4, **alone})
    for more in ({"return_log_probs": True}, {"num_draft_tokens": MOST + 1}):
        with pytest.raises(InferenceServerException, match="TF-TRI-089"):
            ask(server.grpc_url, BLS, {"text_input": "abc", "max_tokens": 4, "num_draft_tokens": 2, **more})


def test_a_repository_that_does_not_stream_drafts_too(tmp_path, tokenizer):
    with (
        pytest.MonkeyPatch.context() as patch,
        serve(tmp_path, False, patch) as running,
        grpc.InferenceServerClient(running.grpc_url) as client,
    ):
        result = client.infer(BLS, tensors({"text_input": PROMPTS[1], "max_tokens": 25}))
        assert text([result]) == own(tokenizer, PROMPTS[1], 25)
        assert client.is_model_ready(layout.DRAFT_MODEL)
    assert [row for row in requests(tmp_path) if row["model"] == "drafts"]


def test_lint_takes_the_repository(tmp_path):
    summary = emit(tmp_path / "repository")
    assert layout.DRAFT_MODEL in summary["models"]
    # one pool of 1 MiB: as many tokens for the draft as for the target
    assert summary["parameters"]["max_tokens_in_paged_kv_cache"] == str(2**20 // (1280 * 32) * 32)
    faults = [
        finding
        for finding in lint_repository(tmp_path / "repository").findings
        if finding.severity in ("error", "warning")
    ]
    assert faults == []

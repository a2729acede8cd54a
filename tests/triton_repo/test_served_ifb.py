"""The emitted inflight_batcher_llm repository in a real Triton server, a stand-in in the engine's place."""

import queue
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from launcher.client import StreamClient
from launcher.local import TritonServer
from runtime.tokenizer import EngineTokenizer
from tests.support.foreign_clients import EndToEndClient, generate
from tests.support.tiny import write_tiny_llama
from tests.triton_repo.served import ENGINE, ask, installation_with_stand_in, tensors, text
from triton_repo.layouts import inflight_batcher_llm as layout
from trtforge.recipe.schema import Recipe

pytestmark = pytest.mark.slow

BLS, ENSEMBLE = "tensorrt_llm_bls", "ensemble"
PROMPTS = ("plain words, and more of them", "Grüße, 日本語 und 🙂🙃 dazwischen", "  spaces\n\nand lines ")


def serve(folder, decoupled):
    write_tiny_llama(folder / "engine")
    recipe = Recipe.model_validate(
        {
            "name": "x",
            "model": {"source": "/m"},
            "build": {"target": "trtllm-engine"},
            "triton": {
                "layout": layout.LAYOUT,
                "decoupled": decoupled,
                "preprocessing_instances": 1,
                "postprocessing_instances": 1,
            },
        }
    )
    layout.emit(recipe, ENGINE, folder / "repository")
    (folder / "backends").mkdir()
    installation = installation_with_stand_in(folder / "backends")
    return TritonServer(folder / "repository", log_path=folder / "server.log", installation=installation)


@pytest.fixture(scope="module")
def streaming(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("decoupled"), decoupled=True) as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("plain"), decoupled=False) as server:
        yield server


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return EngineTokenizer.load(tiny_checkpoint)


def echoed(tokenizer, prompt, count):
    """What the stand-in answers: the prompt's own tokens, again and again."""
    ids = tokenizer.encode(prompt)
    return tokenizer.decode([ids[i % len(ids)] for i in range(count)])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("count", [1, 7, 40])
def test_bls_streams_what_the_whole_answer_says(streaming, tokenizer, prompt, count):
    values = {"text_input": prompt, "max_tokens": count}
    whole = ask(streaming.grpc_url, BLS, values)
    pieces = ask(streaming.grpc_url, BLS, {**values, "stream": True})
    assert text(whole) == text(pieces) == echoed(tokenizer, prompt, count)
    assert len(whole) == 1
    assert len(pieces) == count + 1
    assert text(ask(streaming.grpc_url, ENSEMBLE, values)) == text(whole)
    reasons = [piece.as_numpy("finish_reason").reshape(-1)[0] for piece in pieces]
    assert reasons == [b""] * count + [b"length"]
    assert int(pieces[-1].as_numpy("num_output_tokens").reshape(-1)[0]) == count


def test_the_ensemble_streams_text_of_one_token_at_a_time(streaming, tokenizer):
    pieces = ask(streaming.grpc_url, ENSEMBLE, {"text_input": PROMPTS[0], "max_tokens": 12, "stream": True})
    assert len(pieces) == 12
    assert text(pieces) == echoed(tokenizer, PROMPTS[0], 12)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_words_end_the_answer_before_them(streaming, stream):
    values = {"text_input": "one two three four", "max_tokens": 50, "stream": stream}
    stopped = ask(streaming.grpc_url, BLS, {**values, "stop_words": ["nothing", "hree"]})
    assert text(stopped) == "one two t"
    assert stopped[-1].as_numpy("finish_reason").reshape(-1)[0] == b"stop"
    assert text(ask(streaming.grpc_url, BLS, {**values, "stop_words": [""], "max_tokens": 3})) != ""


def test_stop_words_reach_the_engine_through_the_ensemble(streaming):
    values = {"text_input": "one two three four", "max_tokens": 50, "stop_words": [" three"]}
    assert text(ask(streaming.grpc_url, ENSEMBLE, values)) == "one two three"


def test_bad_words_and_a_bias_reach_the_engine(streaming, tokenizer):
    word = next(w for w in (" the", " a", "e") if len(tokenizer.encode(w)) == 1)
    prompt = f"x{word} y"
    banned = text(ask(streaming.grpc_url, BLS, {"text_input": prompt, "max_tokens": 6, "bad_words": [word]}))
    assert word not in banned
    biased = {"text_input": prompt, "max_tokens": 3, "embedding_bias_words": [word], "embedding_bias_weights": [5.0]}
    assert text(ask(streaming.grpc_url, BLS, biased)) == word * 3
    assert text(ask(streaming.grpc_url, ENSEMBLE, biased)) == word * 3


@pytest.mark.parametrize("model", [BLS, ENSEMBLE])
def test_sampling_tensors_reach_the_engine(streaming, model):
    values = {"text_input": "abc", "max_tokens": 2, "seed": 42, "temperature": 0.5, "return_log_probs": True}
    result = ask(streaming.grpc_url, model, values)[0]
    assert result.as_numpy("cum_log_probs").reshape(-1).tolist() == [42.0]
    assert result.as_numpy("output_log_probs").reshape(-1).tolist() == [0.5, 0.5]


def test_the_older_name_of_the_seed_is_taken(streaming):
    result = ask(streaming.grpc_url, BLS, {"text_input": "abc", "max_tokens": 2, "random_seed": 7})[0]
    assert result.as_numpy("cum_log_probs").reshape(-1).tolist() == [7.0]


def test_beams_come_whole_and_are_refused_when_streaming(streaming):
    values = {"text_input": "abc def", "max_tokens": 3, "beam_width": 2}
    whole = ask(streaming.grpc_url, BLS, values)[0].as_numpy("text_output")
    assert whole.shape == (2,)
    with pytest.raises(InferenceServerException, match="TF-TRI-077"):
        ask(streaming.grpc_url, BLS, {**values, "stream": True})
    with pytest.raises(InferenceServerException, match="TF-TRI-078"):
        ask(streaming.grpc_url, BLS, {**values, "beam_width": 3})


def test_the_prompt_is_given_back_when_asked_for_and_not_in_streams(streaming, tokenizer):
    values = {"text_input": "abc def", "max_tokens": 3, "exclude_input_in_output": False}
    answer = echoed(tokenizer, "abc def", 3)
    assert text(ask(streaming.grpc_url, BLS, values)) == "abc def" + answer
    assert text(ask(streaming.grpc_url, BLS, {**values, "stream": True})) == answer


@pytest.mark.parametrize("model", [BLS, ENSEMBLE])
def test_a_client_of_tensorrt_llm_reads_the_answers(streaming, tokenizer, model):
    client = EndToEndClient(streaming.grpc_url, model)
    prompts = ["abc def ghi", "plain words"]
    texts = [[echoed(tokenizer, prompt, 4)] for prompt in prompts]
    common = {"output_len": 4, "exclude_input_in_output": True}
    assert client.ask(prompts, **common).texts == texts
    assert client.ask(prompts, **common, batch_inputs=True).texts == texts
    assert client.ask(prompts, **common, streaming=True).texts == texts
    assert client.ask(prompts, **common, return_flags=["return_log_probs"]).errors == []


@pytest.mark.parametrize("model", [BLS, ENSEMBLE])
def test_missing_inputs_and_keys_that_nothing_reads_are_refused_by_name(streaming, model):
    more = {"temperature": 0.5, "top_k": 1}
    for missing, rest in (("max_tokens", {"text_input": "abc"}), ("text_input", {"max_tokens": 3})):
        status, body = generate(streaming.http_url, model, {**rest, **more})
        assert status == 400
        assert f"TF-RUN-117: {missing} is missing" in body["error"]
    status, body = generate(streaming.http_url, model, {"text_input": "abc", "max_tokens": 3, "temprature": 0.5})
    assert status == 400
    assert "TF-RUN-106" in body["error"]
    assert "did you mean 'temperature'" in body["error"]
    status, body = generate(streaming.http_url, model, {"text_input": "abc", "max_tokens": 3, "id": "7"})
    assert status == 200


def test_counts_of_a_stream_add_up_where_a_client_asks_for_its_responses_own(streaming):
    values = {"text_input": PROMPTS[1], "max_tokens": 40, "stream": True}
    own = ask(streaming.grpc_url, BLS, {**values, "return_num_output_tokens": True})
    assert sum(int(result.as_numpy("num_output_tokens").reshape(-1)[0]) for result in own) == 40
    so_far = [int(r.as_numpy("num_output_tokens").reshape(-1)[0]) for r in ask(streaming.grpc_url, BLS, values)]
    assert so_far == sorted(so_far)
    assert so_far[-1] == 40


@pytest.mark.parametrize("model", [BLS, ENSEMBLE])
def test_a_timeout_of_tritons_protocol_is_refused_by_name(streaming, model):
    """No model here can end the engine's request in time."""
    answers: queue.Queue = queue.Queue()
    with grpc.InferenceServerClient(streaming.grpc_url) as client:
        client.start_stream(callback=lambda result, error: answers.put(error))
        client.async_stream_infer(model, tensors({"text_input": "abc", "max_tokens": 3}), timeout=5_000_000)
        assert "TF-RUN-135" in str(answers.get(timeout=30))


def test_what_would_be_dropped_is_refused(streaming):
    values = {"text_input": "abc", "max_tokens": 3}
    for more, code in (
        ({"seed": 3, "random_seed": 4}, "TF-RUN-108: seed and random_seed"),
        ({"chat": True, "exclude_input_in_output": False}, "TF-RUN-108: exclude_input_in_output"),
        ({"use_draft_logits": True}, "TF-TRI-089"),
    ):
        with pytest.raises(InferenceServerException, match=code):
            ask(streaming.grpc_url, BLS, {**values, **more})
    rows = {
        "text_input": np.array([["abc"], ["de"]], dtype=np.object_),
        "max_tokens": np.array([[4], [4]], dtype=np.int32),
    }
    with pytest.raises(InferenceServerException, match="TF-TRI-092: stream"):
        ask(streaming.grpc_url, BLS, {**rows, "stream": np.array([[True], [False]])})
    echo = np.array([[False], [True]])
    found = ask(streaming.grpc_url, BLS, {**rows, "exclude_input_in_output": echo})
    pieces = [piece.decode() for result in found for piece in result.as_numpy("text_output").reshape(-1)]
    assert [piece.startswith("abc") for piece in pieces].count(True) >= 1
    assert sum(len(piece) for piece in pieces) > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_length_that_the_engine_cuts_is_said(streaming, tokenizer, stream):
    results = ask(streaming.grpc_url, BLS, {"text_input": "abc def", "max_tokens": 99999, "stream": stream})
    room = ENGINE["max_seq_len"] - len(tokenizer.encode("abc def"))
    assert results[-1].as_numpy("max_tokens_granted").tolist() == [[room]]
    assert results[-1].as_numpy("num_output_tokens").tolist() == [[room]]
    assert results[-1].as_numpy("finish_reason").reshape(-1).tolist() == [b"length"]


def test_a_chat_goes_through_the_template(streaming, tokenizer):
    values = {"text_input": "hello", "max_tokens": 60, "chat": True}
    ids = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    for model in (BLS, ENSEMBLE):
        # the template's special tokens are not part of a text; its end token ends the stand-in
        expected = tokenizer.decode(ids[: ids.index(2)])
        assert text(ask(streaming.grpc_url, model, values)) == expected


def test_rows_of_one_request_are_answered_each(streaming, tokenizer):
    prompts = ["abc def ghi", "🙂 x"]
    values = {
        "text_input": np.array([[p] for p in prompts], dtype=np.object_),
        "max_tokens": np.array([[4], [9]], dtype=np.int32),
    }
    found = {}
    for result in ask(streaming.grpc_url, BLS, values):
        row = int(result.as_numpy("batch_index").reshape(-1)[0])
        found[row] = result.as_numpy("text_output").reshape(-1)[0].decode()
    assert found == {0: echoed(tokenizer, prompts[0], 4), 1: echoed(tokenizer, prompts[1], 9)}
    streams: dict[int, str] = {}
    for result in ask(streaming.grpc_url, BLS, {**values, "stream": np.array([[True], [True]])}):
        row = int(result.as_numpy("batch_index").reshape(-1)[0])
        streams[row] = streams.get(row, "") + result.as_numpy("text_output").reshape(-1)[0].decode()
    assert streams == found


def test_requests_run_side_by_side(streaming):
    """Each of two streams has its first piece before the other has its last."""
    events: list[tuple[int, str]] = []
    together = threading.Barrier(2)

    def one(number):
        together.wait()
        values = {"text_input": "abc", "max_tokens": 25, "stream": True, "temperature": 9.0}
        with StreamClient(streaming.grpc_url, BLS) as client:
            client.send(values)
            for _ in client.receive(60):
                events.append((number, "piece"))
        events.append((number, "end"))

    threads = [threading.Thread(target=one, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=90)
    ends = [events.index((number, "end")) for number in (0, 1)]
    assert events.index((0, "piece")) < ends[1]
    assert events.index((1, "piece")) < ends[0]


def test_a_stop_text_and_a_client_that_has_gone_leave_the_instance_usable(streaming):
    values = {"text_input": "abc def", "max_tokens": 60, "stream": True, "temperature": 9.0}
    for _ in range(3):
        pieces = ask(streaming.grpc_url, BLS, {**values, "stop_words": ["c d"]})
        assert text(pieces) == "ab"
        assert pieces[-1].as_numpy("finish_reason").reshape(-1)[0] == b"stop"
        with StreamClient(streaming.grpc_url, BLS) as client:
            client.send(values)
            next(iter(client.receive(30)))
            client.close(cancel=True)
    assert text(ask(streaming.grpc_url, BLS, {"text_input": "abc", "max_tokens": 1})) != ""


def test_bad_requests_are_answered_with_their_fault(streaming):
    with pytest.raises(InferenceServerException, match="nothing to continue"):
        ask(streaming.grpc_url, BLS, {"text_input": "", "max_tokens": 2})
    with pytest.raises(InferenceServerException, match="come together"):
        ask(streaming.grpc_url, BLS, {"text_input": "a", "max_tokens": 2, "embedding_bias_words": ["a"]})
    not_utf8 = np.array([[b"\xff\xfe"]], dtype=np.object_)
    with pytest.raises(InferenceServerException, match="TF-TRI-075"):
        ask(streaming.grpc_url, ENSEMBLE, {"text_input": not_utf8, "max_tokens": 2})
    with pytest.raises(InferenceServerException, match="max_tokens"):
        ask(streaming.grpc_url, BLS, {"text_input": "a"})


def test_the_client_of_the_native_layout_speaks_to_bls(streaming):
    with StreamClient(streaming.grpc_url, BLS) as client:
        answer = client.ask({"text_input": "abc def", "max_tokens": 5, "stream": True})
    assert answer.error is None
    assert (answer.output_tokens, answer.finish_reason) == (5, "length")


def test_a_repository_that_does_not_stream_answers_plain_requests_and_refuses_streams(plain, tokenizer):
    values = {"text_input": PROMPTS[1], "max_tokens": 20}
    with grpc.InferenceServerClient(plain.grpc_url) as client:
        for model in (BLS, ENSEMBLE):
            assert text([client.infer(model, tensors(values))]) == echoed(tokenizer, PROMPTS[1], 20)
        with pytest.raises(InferenceServerException, match="TF-TRI-076"):
            client.infer(BLS, tensors({**values, "stream": True}))
        beams = client.infer(BLS, tensors({**values, "beam_width": 2}))
    assert beams.as_numpy("text_output").shape == (2,)


def test_every_model_of_both_repositories_was_ready(streaming, plain):
    for server in (streaming, plain):
        with grpc.InferenceServerClient(server.grpc_url) as client:
            assert all(client.is_model_ready(name) for name in layout.MODELS)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.frontend.asking import GUIDE_TYPES, Defaults, read
from runtime.frontend.offered import NOT_OFFERED
from trtforge.ground.errors import ForgeError


def _text(*values):
    return np.array([[v.encode() if isinstance(v, str) else v for v in values]], dtype=object)


def _tensors(**more):
    return {"text_input": _text("Hi"), "max_tokens": np.array([[7]], dtype=np.int32), **more}


def _value(value, dtype):
    return np.array([[value]], dtype=dtype)


def _request(tensors, **options):
    [asked] = read(tensors, **options)
    return asked.request


def _params(**more):
    return read(_tensors(**more))[0].request.params


def _code(tensors, **options):
    with pytest.raises(ForgeError) as caught:
        read(tensors, **options)
    return caught.value


def test_defaults_are_greedy_and_not_streamed():
    request = _request(_tensors())
    assert (request.prompt, request.messages, request.stream) == ("Hi", None, False)
    assert request.params.max_tokens == 7
    assert request.params.greedy
    assert request.params.logprobs is None


def test_a_seed_alone_stays_greedy_and_a_temperature_samples():
    assert _request(_tensors(random_seed=_value(3, np.uint64))).params.greedy
    both = _tensors(random_seed=_value(3, np.uint64), seed=_value(3, np.uint64))
    assert _request(both).params.seed == 3
    sampled = _request(_tensors(random_seed=_value(3, np.uint64), temperature=_value(0.5, np.float32)))
    assert not sampled.params.greedy
    assert sampled.params.seed == 3


def test_chat_becomes_a_user_message():
    request = _request(_tensors(chat=_value(True, bool)))
    assert request.prompt is None
    assert request.messages == [{"role": "user", "content": "Hi"}]


def test_messages_are_a_chat():
    written = '[{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]'
    tensors = {"messages": _text(written), "max_tokens": _value(3, np.int32)}
    request = _request(tensors)
    assert (request.prompt, request.prompt_token_ids) == (None, None)
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert _code({**tensors, "chat": _value(True, bool)}).code == "TF-RUN-108"
    for bad in ("", "Hi", "[]", "{}", '["Hi"]', "[" * 100_000, '[{"role": "user"'):
        assert _code({**tensors, "messages": _text(bad)}).code == "TF-RUN-130"
    two = {"messages": np.array([[written.encode()]] * 2, dtype=object), "max_tokens": np.array([[1], [2]], np.int32)}
    assert [asked.request.params.max_tokens for asked in read(two)] == [1, 2]


def test_what_the_server_says_holds_for_clients_that_do_not():
    defaults = Defaults(max_tokens=9, timeout=5.0)
    silent = {"text_input": _text("Hi")}
    request = read(silent, defaults=defaults)[0].request
    assert (request.params.max_tokens, request.timeout) == (9, 5.0)
    spoken = {**silent, "max_tokens": _value(3, np.int32), "timeout_ms": _value(70_000, np.int32)}
    request = read(spoken, defaults=defaults)[0].request
    assert (request.params.max_tokens, request.timeout) == (3, 70.0)
    assert _code(silent, defaults=Defaults()).code == "TF-RUN-117"


def test_the_earlier_of_both_deadlines_holds():
    """``timeout_ms`` and the ``timeout`` of Triton's own protocol."""
    spoken = _tensors(timeout_ms=_value(2000, np.int32))
    assert read(spoken, triton_timeout=1.5)[0].request.timeout == 1.5
    assert read(spoken, triton_timeout=9.0)[0].request.timeout == 2.0
    assert read(_tensors(), triton_timeout=9.0)[0].request.timeout == 9.0
    assert read(_tensors())[0].request.timeout is None


def test_salt_interval_and_own_counts_go_with_the_request():
    asked = read(_tensors(cache_salt=_text("ä"), stream_interval=_value(4, np.int32)))[0]
    assert (asked.request.cache_salt, asked.request.stream_interval, asked.own_counts) == ("ä", 4, False)
    silent = _request(_tensors())
    assert (silent.cache_salt, silent.stream_interval) == ("", None)
    assert read(_tensors(return_num_output_tokens=_value(True, bool)))[0].own_counts


def test_words_drop_the_empty_strings_that_clients_send_for_none():
    request = _request(_tensors(stop_words=_text("", "END"), bad_words=_text("")))
    assert request.params.stop == ("END",)
    assert request.params.bad_words == ()


def test_an_end_id_replaces_the_models_own():
    kept = _request(_tensors(end_id=_value(2, np.int32)), eos_token_ids=(2,)).params
    assert (kept.ignore_eos, kept.stop_token_ids) == (False, ())
    other = _request(_tensors(end_id=_value(9, np.int32)), eos_token_ids=(2,)).params
    assert (other.ignore_eos, other.stop_token_ids) == (True, (9,))


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("TF-RUN-101", {"text_input": _text("a", "b")}),
        ("TF-RUN-101", {"max_tokens": np.zeros((1, 0), dtype=np.int32)}),
        ("TF-RUN-101", {"temperature": np.zeros((2, 1), dtype=np.float32)}),
        ("TF-RUN-101", {"bad_words_list": np.array([[[5, 6], [3, -1]]], dtype=np.int32)}),
        ("TF-RUN-101", {"bad_words_list": np.array([[5, 6]], dtype=np.int32)}),
        ("TF-RUN-102", {"text_input": _text(b"\xff\xfe")}),
        ("TF-RUN-102", {"stop_words": _text(b"\xff")}),
        ("TF-RUN-105", {"text_input": _text("")}),
        ("TF-RUN-103", {"beam_width": _value(2, np.int32)}),
        ("TF-RUN-104", {"timeout_ms": _value(0, np.int32)}),
        ("TF-RUN-108", {"input_ids": _value(5, np.int32)}),
        ("TF-RUN-108", {"embedding_bias_words": _text("a")}),
        ("TF-RUN-108", {"embedding_bias_words": _text("a", "b"), "embedding_bias_weights": _value(1, np.float32)}),
        ("TF-RUN-108", {"guided_decoding_guide": _text("a")}),
        ("TF-RUN-109", {"guided_decoding_guide_type": _text("yaml"), "guided_decoding_guide": _text("a")}),
        ("TF-RUN-108", {"random_seed": _value(3, np.uint64), "seed": _value(4, np.uint64)}),
        ("TF-RUN-108", {"messages": _text('[{"role": "user", "content": "Hi"}]')}),
        ("TF-RUN-108", {"input_lengths": _value(1, np.int32)}),
        ("TF-RUN-108", {"chat": _value(True, bool), "exclude_input_in_output": _value(False, bool)}),
        ("TF-RUN-108", {"guided_decoding_guide_type": _text("json"), "guided_decoding_guide": _text("{}")}),
        ("TF-RUN-063", {"embedding_bias_words": _text("a"), "embedding_bias_weights": _value(1, np.float32)}),
        ("TF-RUN-131", {"stream_interval": _value(0, np.int32)}),
        ("TF-RUN-102", {"cache_salt": _text(b"\xff")}),
        ("TF-RUN-118", {"embedding_bias": np.array([[np.nan]], dtype=np.float32)}),
        ("TF-RUN-080", {"end_id": _value(-2, np.int32)}),
        ("TF-RUN-084", {"num_return_sequences": _value(0, np.int32)}),
        ("TF-RUN-073", {"top_p": _value(-0.5, np.float32)}),
    ],
)
def test_faults_have_codes(code, more):
    with pytest.raises(ForgeError) as caught:
        _request(_tensors(**more))
    assert caught.value.code == code


@given(
    st.sampled_from(["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]),
    st.floats(width=32),
)
def test_any_float_gives_a_request_or_a_coded_error(name, value):
    try:
        request = _request(_tensors(**{name: _value(value, np.float32)}))
    except ForgeError as error:
        assert error.code.startswith("TF-RUN-")
    else:
        neutral = {("temperature", 1.0): 0.0, ("top_p", 0.0): 1.0}  # what asks for nothing
        assert getattr(request.params, name) == pytest.approx(neutral.get((name, value), value))


def test_a_choice_is_made_where_it_is_asked_for():
    """A temperature of 1, which clients always send, is no wish; top_p 0 is off."""
    one, off = _value(1.0, np.float32), _value(0.0, np.float32)
    assert _params(temperature=one).greedy
    assert _params(temperature=one, top_p=off, top_k=_value(1, np.int32)).greedy
    assert _params(temperature=one, top_k=_value(0, np.int32)).greedy
    assert not _params(temperature=one, top_k=_value(40, np.int32)).greedy
    assert not _params(top_p=_value(0.9, np.float32)).greedy
    assert not _params(top_p=one).greedy
    assert not _params(temperature=_value(0.7, np.float32)).greedy
    assert _params(temperature=off, top_p=_value(0.9, np.float32)).greedy


def test_every_row_is_a_prompt_with_its_own_settings():
    tensors = {
        "text_input": np.array([[b"a"], [b"b"]], dtype=object),
        "max_tokens": np.array([[1], [2]], dtype=np.int32),
        "stop_words": np.array([[b"x"], [b""]], dtype=object),
    }
    first, second = (asked.request for asked in read(tensors))
    assert (first.prompt, first.params.max_tokens, first.params.stop) == ("a", 1, ("x",))
    assert (second.prompt, second.params.max_tokens, second.params.stop) == ("b", 2, ())


def test_the_prompt_is_repeated_in_whole_answers_only():
    no = _value(False, bool)
    assert read(_tensors(exclude_input_in_output=no))[0].echo == "Hi"
    assert read(_tensors())[0].echo == ""
    assert read(_tensors(), defaults=Defaults(exclude_input=False))[0].echo == "Hi"
    assert read(_tensors(exclude_input_in_output=no, stream=_value(True, bool)))[0].echo == ""
    assert read(_tensors(chat=_value(True, bool)), defaults=Defaults(exclude_input=False))[0].echo == ""


def _token_request(**more):
    ids = np.array([[5, 6, 7, 0]], dtype=np.int32)
    base = {"input_ids": ids, "input_lengths": _value(3, np.int32), "max_tokens": _value(4, np.int32)}
    return base | more


def test_tokens_are_taken_as_they_are_up_to_their_length():
    [asked] = read(_token_request())
    assert list(asked.request.prompt_token_ids) == [5, 6, 7]
    assert asked.echo_tokens == (5, 6, 7), "TensorRT-LLM's default"
    assert asked.tokens
    assert read(_token_request(exclude_input_in_output=_value(True, bool)))[0].echo_tokens == ()
    assert read(_token_request(stream=_value(True, bool)))[0].echo_tokens == ()
    assert _code(_token_request(input_lengths=_value(5, np.int32))).code == "TF-RUN-101"
    nothing = _code({"input_ids": np.empty((1, 0), dtype=np.int32), "max_tokens": _value(4, np.int32)})
    assert (nothing.code, nothing.message) == ("TF-RUN-105", "input_ids is empty")
    assert _code(_token_request(chat=_value(True, bool))).code == "TF-RUN-108"


def test_words_as_tokens():
    words = np.array([[[5, 6, 7, 0], [2, 3, -1, -1]]], dtype=np.int32)
    params = read(_token_request(stop_words_list=words, bad_words_list=words))[0].request.params
    assert params.stop_token_sequences == params.bad_token_sequences == ((5, 6), (7,))
    none = np.array([[[0], [-1]]], dtype=np.int32)
    assert read(_token_request(stop_words_list=none))[0].request.params.stop_token_sequences == ()


def test_no_end_at_all():
    params = _params(end_id=_value(-1, np.int32))
    assert params.ignore_eos
    assert params.stop_token_ids == ()


def test_bias_by_words_and_by_vocabulary():
    words = _tensors(
        embedding_bias_words=_text("ab", "b", ""), embedding_bias_weights=np.array([[1.5, -2.0, 9.0]], dtype=np.float32)
    )
    assert read(words, encode=lambda text: [ord(c) for c in text])[0].request.params.logit_bias == (
        (97, 1.5),
        (98, -0.5),
    )
    vector = np.zeros((1, 8), dtype=np.float32)
    vector[0, 3] = -4.0
    assert _params(embedding_bias=vector).logit_bias == ((3, -4.0),)
    assert _params(embedding_bias=np.empty((1, 0), dtype=np.float32)).logit_bias == ()


@pytest.mark.parametrize("kind", GUIDE_TYPES)
def test_guides(kind):
    guide = {} if kind == "json" else {"guided_decoding_guide": _text('"x"')}
    guided = _params(guided_decoding_guide_type=_text(kind), **guide).guided
    field = {"regex": "regex", "ebnf_grammar": "grammar"}.get(kind, "json_schema")
    assert getattr(guided, field) is not None


def test_no_guide_where_the_texts_are_empty():
    assert _params(guided_decoding_guide_type=_text(""), guided_decoding_guide=_text("")).guided is None


@pytest.mark.parametrize("name", sorted(NOT_OFFERED))
def test_what_cannot_be_is_refused_by_name(name):
    error = _code(_tensors(**{name: np.array([[2]], dtype=np.int32)}))
    assert error.code == "TF-RUN-107"
    assert name in error.message
    assert f"leave {name} out" in error.remedies


@pytest.mark.parametrize("name", ["return_context_logits", "num_draft_tokens", "prompt_vocab_size", "use_draft_logits"])
def test_what_asks_for_nothing_is_no_fault(name):
    assert _params(**{name: _value(0, np.int32)}).max_tokens == 7


@pytest.mark.parametrize("missing", ["text_input", "max_tokens"])
def test_missing_inputs_are_named(missing):
    tensors = _tensors(temperature=_value(0.5, np.float32), top_k=_value(3, np.int32))
    del tensors[missing]
    error = _code(tensors)
    assert error.code == "TF-RUN-117"
    assert missing in error.message


def test_a_request_may_forbid_drafts():
    assert _request(_tensors()).speculate
    assert _request(_tensors(speculate=_value(True, bool))).speculate
    assert not _request(_tensors(speculate=_value(False, bool))).speculate
    assert not _request(_tensors(num_draft_tokens=_value(0, np.int32))).speculate, "TensorRT-LLM's way to say it"
    both = _tensors(num_draft_tokens=_value(0, np.int32), speculate=_value(False, bool))
    assert not _request(both).speculate
    assert not _request(_token_request(speculate=_value(False, bool))).speculate


def test_each_prompt_has_its_own_switch():
    tensors = {
        "text_input": np.array([[b"a"], [b"b"]], dtype=object),
        "max_tokens": np.array([[1], [2]], dtype=np.int32),
        "speculate": np.array([[True], [False]]),
    }
    assert [asked.request.speculate for asked in read(tensors)] == [True, False]


def test_how_many_drafts_is_not_the_clients_to_say():
    error = _code(_tensors(num_draft_tokens=_value(4, np.int32)))
    assert error.code == "TF-RUN-107"
    assert "num_draft_tokens" in error.message
    assert "leave num_draft_tokens out" in error.remedies
    assert _code(_tensors(num_draft_tokens=_value(-1, np.int32))).code == "TF-RUN-107"
    at_odds = _tensors(num_draft_tokens=_value(0, np.int32), speculate=_value(True, bool))
    assert _code(at_odds).code == "TF-RUN-108"

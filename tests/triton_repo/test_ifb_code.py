"""The logic of our preprocessing and BLS models as plain functions."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.tokenizer import EngineTokenizer
from tests.triton_repo.stand_in_engine_words import words_of
from triton_repo.layouts.ifb_code.ends import end_ids
from triton_repo.layouts.ifb_code.generation import Answer, end_early, refusal
from triton_repo.layouts.ifb_code.words import embedding_bias, extra_ids, padded, variants, word_list

rows_of_words = st.lists(st.lists(st.lists(st.integers(0, 500), max_size=4), max_size=5), min_size=1, max_size=4)


@given(rows_of_words)
def test_words_survive_the_flattened_format(rows):
    table = word_list(rows)
    assert table.dtype == np.int32
    assert table.shape[:2] == (len(rows), 2)
    assert table.shape[2] >= 1
    assert [words_of(table, row) for row in range(len(rows))] == [[word for word in words if word] for words in rows]


def test_the_flattened_format_of_the_documentation():
    table = word_list([[[5], [6, 7]], [[8]]])
    assert table.tolist() == [[[5, 6, 7], [1, 3, -1]], [[8, 0, 0], [1, -1, -1]]]


def sentencepiece_like() -> EngineTokenizer:
    """A tokenizer with ▁ for spaces and bytes for what it does not know: its texts depend on the token before."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁hello", "▁world", "lo", ".", "a"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return EngineTokenizer(tokenizer)


@pytest.fixture(scope="module")
def tokenizers(tiny_checkpoint):
    return {"byte level": EngineTokenizer.load(tiny_checkpoint), "sentencepiece": sentencepiece_like()}


def answer(tokenizer, stops=(), **options):
    return Answer(tokenizer.detokenizer(), stops, **options)


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
@given(data=st.data())
def test_pieces_joined_are_the_whole_answer(tokenizers, kind, data):
    tokenizer = tokenizers[kind]
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=5).map(sorted))
    whole = answer(tokenizer)
    expected = whole.push(tokens) + whole.finish()
    streamed = answer(tokenizer)
    borders = [0, *cuts, len(tokens)]
    pieces = [streamed.push(tokens[a:b]) for a, b in pairwise(borders)]
    assert "".join(pieces) + streamed.finish() == expected
    assert streamed.finish() == ""
    # the detokenizer of a SentencePiece tokenizer sees a window, so bytes that are no character may be marked otherwise
    if "\ufffd" not in expected:
        assert expected == tokenizer.decode(tokens)


@given(data=st.data())
def test_a_stop_text_ends_the_answer_wherever_token_borders_fall(tokenizers, data):
    tokenizer = tokenizers["byte level"]
    before = data.draw(st.text(alphabet="abc é🙂", max_size=12))
    stop = data.draw(st.text(alphabet="xyz!", min_size=1, max_size=6))
    tokens = tokenizer.encode(before + stop + "after", add_special_tokens=False)
    made = answer(tokenizer, [stop, ""])
    shown = "".join(made.push([token]) for token in tokens) + made.finish()
    assert made.stopped
    assert shown == before
    assert made.reason(max_tokens=10**6) == "stop"
    early = answer(tokenizer, [stop], min_tokens=10**6)
    assert early.push(tokens) + early.finish() == before + stop + "after"


def test_without_accumulation_characters_and_spaces_are_lost_and_that_is_why_it_is_off(tokenizers):
    sentencepiece = tokenizers["sentencepiece"]
    tokens = [sentencepiece.backend.token_to_id(piece) for piece in ("▁hello", "▁world")]
    apart = answer(sentencepiece, apart=sentencepiece.decode)
    assert [apart.push([token]) for token in tokens] == ["hello", "world"]
    kept = answer(sentencepiece)
    assert [kept.push([token]) for token in tokens] == ["hello", " world"]
    stopped = answer(sentencepiece, ["world"], apart=sentencepiece.decode)
    assert [stopped.push([token]) for token in tokens] == ["hello", ""]
    assert stopped.finish() == ""
    assert stopped.push(tokens) == ""


def test_reasons_and_refusals(tokenizers):
    made = answer(tokenizers["byte level"])
    made.push([5, 6])
    assert (made.reason(2), made.reason(3)) == ("length", "stop")
    fine = {"stream": True, "decoupled": True, "beam_width": 1, "max_beam_width": 2}
    assert refusal(**fine) is None
    assert "TF-TRI-076" in (refusal(**{**fine, "decoupled": False}) or "")
    assert "TF-TRI-077" in (refusal(**{**fine, "beam_width": 2}) or "")
    assert "TF-TRI-078" in (refusal(**{**fine, "stream": False, "beam_width": 3}) or "")
    assert "TF-TRI-078" in (refusal(**{**fine, "beam_width": 0}) or "")


def test_a_word_has_the_tokens_of_its_start_and_of_its_middle(tokenizers):
    encode = lambda text: tokenizers["byte level"].encode(text, add_special_tokens=False)  # noqa: E731
    found = variants("the", encode)
    assert encode("the") in found
    assert encode(" the") in found
    assert variants("", lambda text: []) == []
    assert variants("a", lambda text: [1]) == [[1]]


def test_a_bias_falls_on_every_token_of_its_word():
    bias = embedding_bias([["ab", "b"], []], [[1.0, 2.0], []], lambda text: [ord(c) - 97 for c in text], 4)
    assert bias.tolist() == [[1.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="2 embedding_bias_words and 1"):
        embedding_bias([["a", "b"]], [[1.0]], lambda text: [0], 4)
    with pytest.raises(ValueError, match="beyond the engine's 4"):
        embedding_bias([["z"]], [[1.0]], lambda text: [25], 4)


@given(st.lists(st.lists(st.integers(0, 99), max_size=6), min_size=1, max_size=4))
def test_rows_are_padded_and_their_lengths_kept(rows):
    table, lengths = padded(rows, [7] * len(rows))
    assert lengths.reshape(-1).tolist() == [len(row) for row in rows]
    assert [table[i, : len(row)].tolist() for i, row in enumerate(rows)] == rows
    assert all((table[i, len(row) :] == 7).all() for i, row in enumerate(rows))


def test_only_virtual_tokens_carry_the_extra_id():
    found = extra_ids(np.array([[1, 100, 101]]), np.array([[9]], dtype=np.uint64), 100)
    assert found.tolist() == [[0, 9, 9]]
    assert found.dtype == np.uint64


def test_the_model_s_own_files_say_where_it_ends(tiny_checkpoint, tmp_path):
    tokenizer = EngineTokenizer.load(tiny_checkpoint)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert end_ids(tmp_path, tokenizer) == [7, 9]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert end_ids(tmp_path, tokenizer) == [5]
    (tmp_path / "generation_config.json").unlink()
    end = tokenizer.backend.token_to_id(tokenizer.special_tokens["eos_token"])
    assert end_ids(tmp_path, tokenizer) == [end]


def test_a_request_is_cancelled_where_the_iterator_can():
    class Responses:
        cancelled = 0

        def cancel(self):
            self.cancelled += 1

    responses = Responses()
    assert end_early(responses)
    assert responses.cancelled == 1
    assert not end_early(iter([]))

"""Prompts that cannot fit are refused before they cost anything, and none that fits is refused."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.offline import Engine
from runtime.prompts import refuse_hopeless
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.token_bound import _BECOME_PUNCTUATION, TokenBound
from runtime.tokenizer import EngineTokenizer
from tests.support.simulation import SimulatedExecutor
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError

LIMITS = ExecutorLimits(8, 64, 256, 200)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", layers=1) / "tokenizer.json"


def byte_level(source: Path, composes: bool) -> EngineTokenizer:
    raw = Tokenizer.from_file(str(source))
    if composes:
        raw.normalizer = normalizers.NFC()
        raw.add_tokens(["tool call", "=" * 40])
    return EngineTokenizer(raw)


def byte_fallback() -> EngineTokenizer:
    pieces = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "ab", "▁▁", "▁▁▁▁"]
    merges = [("▁", "a"), ("a", "b"), ("▁", "▁"), ("▁▁", "▁▁")]
    model = models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    raw = Tokenizer(model)
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return EngineTokenizer(raw)


@pytest.fixture(scope="module")
def tokenizers(source: Path) -> list[EngineTokenizer]:
    return [byte_level(source, False), byte_level(source, True), byte_fallback()]


WORDS = ["one two", " ", "    ", "\n", "a", "ab", "B c", "=" * 40, "tool call", "=", "the", "12", "'s", "return"]
COMPOSED = ["é", "e\u0301", "한", "\u1112\u1161\u11ab", "\u1fef", "\u212a", "α\u0313\u0300\u0345", "\u00a0"]
PIECES = st.sampled_from([*WORDS, *COMPOSED, "▁", "🙂", "<|im_start|>"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60), limit=st.integers(1, 30))
def test_no_prompt_that_fits_is_refused(tokenizers: list[EngineTokenizer], text: str, limit: int) -> None:
    for tokenizer in tokenizers:
        tokens = len(tokenizer.encode(text, add_special_tokens=False))
        assert tokenizer.bound is not None
        assert tokenizer.bound.least_tokens(text) <= tokens
        try:
            refuse_hopeless(text, tokenizer, ExecutorLimits(8, 64, 256, limit))
        except ForgeError as error:
            assert error.code == "TF-RUN-051"
            assert limit < error.numbers["prompt_tokens_at_least"] <= tokens


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=30), near=st.integers(0, 60))
def test_tokens_part_at_a_cut(tokenizers: list[EngineTokenizer], pieces: list[str], near: int) -> None:
    text = "".join(pieces)
    for tokenizer in tokenizers:
        assert tokenizer.bound is not None
        cut = tokenizer.bound.cut(text, near)
        parts = [tokenizer.encode(part, add_special_tokens=False) for part in (text[:cut], text[cut:])]
        if cut:
            assert parts[0] + parts[1] == tokenizer.encode(text, add_special_tokens=False)


def test_only_the_known_characters_compose_to_punctuation() -> None:
    for character in map(chr, [*range(128, 0xD800), *range(0xE000, 0x110000)]):
        composed = unicodedata.normalize("NFC", character)
        assert len(character.encode()) <= 3 * len(composed.encode())
        if composed.isascii() and not composed.isalnum():
            assert character in _BECOME_PUNCTUATION


@pytest.mark.parametrize("kind", ["strip", "lowercase", "removed", "swallow", "wordlevel", "no bytes"])
def test_a_tokenizer_that_may_drop_text_has_no_bound(source: Path, kind: str) -> None:
    raw = Tokenizer.from_file(str(source))
    if kind == "strip":
        raw.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    elif kind == "lowercase":
        raw.normalizer = normalizers.Lowercase()
    elif kind == "removed":
        raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])
    elif kind == "swallow":
        raw.add_tokens([AddedToken("<mask>", lstrip=True)])
    elif kind == "wordlevel":
        raw = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    else:
        raw = Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True))
    assert TokenBound.of(raw) is None


@pytest.fixture
def core(tokenizers: list[EngineTokenizer]) -> EngineCore:
    executor = SimulatedExecutor(num_blocks=256, block_size=4, vocab_size=512, limits=LIMITS, eos_token_ids=(2,))
    return EngineCore(executor, tokenizers[0])


class CountingTokenizer(EngineTokenizer):
    characters = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.characters += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("text", ["a" * 10**6, "a b " * 250_000, "漢字" * 10**5, " " * 10**7, "x = 1\n" * 10**5])
def test_an_oversized_prompt_is_refused_untokenized(source: Path, core: EngineCore, text: str) -> None:
    core.tokenizer = counting = CountingTokenizer(Tokenizer.from_file(str(source)))
    for request in (Request(prompt=text), Request(messages=[{"role": "user", "content": text}])):
        counting.chat_template = "{{ messages[0].content }}"
        with pytest.raises(ForgeError, match="TF-RUN-051") as caught:
            core.prepare(request)
        assert "at least" in caught.value.message
        assert counting.characters == 0


def test_many_short_tokens_are_refused_at_the_limit(source: Path, core: EngineCore) -> None:
    core.tokenizer = counting = CountingTokenizer(Tokenizer.from_file(str(source)))
    text = "z q " * 640  # legal by its bytes
    assert counting.bound is not None and counting.bound.least_tokens(text) <= LIMITS.max_input_len
    with pytest.raises(ForgeError, match="TF-RUN-051"):
        core.prepare(Request(prompt=text))
    assert counting.characters <= len(text) // 2


@pytest.mark.parametrize(
    "prompts",
    [
        None,
        5,
        True,
        ["a", None],
        ["a", 5],
        np.zeros(3),
        np.array(5),
        "\ud800",
        b"abc",
        [b"abc"],
        {"a": 1},
        [[1.5]],
        [[]],
    ],
)
def test_prompts_of_a_wrong_type_have_a_code(core: EngineCore, prompts: object) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-050"):
        Engine(core).generate(prompts)
    assert not core.has_unfinished()


@pytest.mark.parametrize("params", [5, "greedy", [5], [None, "x"][1:], object()])
def test_params_of_a_wrong_type_have_a_code(core: EngineCore, params: object) -> None:
    with pytest.raises(ForgeError, match=r"TF-RUN-06[56]"):
        Engine(core).generate(["a"], params)


def test_params_may_be_a_mapping(core: EngineCore) -> None:
    result = Engine(core).generate([[5, 6]], {"max_tokens": 3, "ignore_eos": True})[0]
    assert len(result.token_ids) == 3
    with pytest.raises(ForgeError, match="TF-RUN-085"):
        Engine(core).generate([[5, 6]], {"max_token": 3})


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"params": 5}, "TF-RUN-066"),
        ({"params": None}, "TF-RUN-066"),
        ({"cache_salt": 5}, "TF-RUN-067"),
        ({"cache_salt": "\ud800"}, "TF-RUN-067"),
        ({"request_id": ["a"]}, "TF-RUN-067"),
        ({"stream": 1}, "TF-RUN-067"),
        ({"priority": 10**5000}, "TF-RUN-064"),
        ({"timeout": 10**400}, "TF-RUN-064"),
        ({"timeout": True}, "TF-RUN-064"),
        ({"prompt_token_ids": 5}, "TF-RUN-050"),
        ({"prompt_token_ids": [10**400]}, "TF-RUN-050"),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)
def test_request_fields_of_a_wrong_type_have_a_code(core: EngineCore, fields: dict[str, object], code: str) -> None:
    with pytest.raises(ForgeError, match=code):
        core.add_request(Request(**{"prompt_token_ids": [1], **fields}))
    assert not core.has_unfinished()


def test_what_is_no_request_has_a_code(core: EngineCore) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-050"):
        core.add_request("hello")
    assert core.add_request(Request(prompt_token_ids=[1], params=SamplingParams(max_tokens=2)))


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "4", 10**6])
def test_threads_that_are_no_number_have_a_code(tmp_path: Path, threads: object) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-068"):
        Engine.load(tmp_path, threads=threads)


@pytest.mark.parametrize("num_blocks", [0, -1, "4", 2**40])
def test_blocks_that_are_no_number_have_a_code(tmp_path: Path, num_blocks: object) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-068"):
        Engine.load(tmp_path, num_blocks=num_blocks)


@pytest.mark.parametrize("messages", [np.arange(3), "", b"", 0, {}, []])
def test_a_chat_of_another_kind_is_refused(source: Path, messages: object) -> None:
    core = EngineCore(SimulatedExecutor(), byte_level(source, False))
    assert core.tokenizer is not None
    core.tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(ForgeError, match="TF-RUN-092"):
        core.prepare(Request(messages=messages))

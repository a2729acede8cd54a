"""Tokens, chats and streamed text against tokenizers and transformers themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from runtime.detokenizer import ByteLevelDetokenizer, DetokenizerFactory, WindowDetokenizer
from runtime.tokenizer import EngineTokenizer
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError

TEXTS = [
    "Hello, world!",
    "  leading and  double spaces\n\nand lines\t",
    "Grüße, 世界! 🙂 e\u0301 \u200d",
    "<|im_start|>user\nraw special tokens<|im_end|>",
    "",
    "0123456789 def f(x):\n    return x  # comment",
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🙂\n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c <&> \"'"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nb"}],
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", layers=1)


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> EngineTokenizer:
    return EngineTokenizer.load(tiny)


def variant(tiny: Path, out: Path, **config: object) -> Path:
    """A copy of the tokenizer files with another tokenizer_config."""
    out.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(tiny / name, out / name)
    path = out / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return out


def with_bos(directory: Path) -> Path:
    """Let the post-processor add the beginning-of-sequence token, as Llama 3's does."""
    path = directory / "tokenizer.json"
    raw = Tokenizer.from_file(str(path))
    bos = raw.id_to_token(1)
    raw.post_processor = processors.TemplateProcessing(single=f"{bos}:0 $A:0", special_tokens=[(bos, 1)])
    raw.save(str(path))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
def test_encodes_as_transformers_does(tiny: Path, tmp_path: Path, config: dict[str, bool], bos: bool) -> None:
    from transformers import AutoTokenizer

    directory = variant(tiny, tmp_path / "v", **config)
    if bos:
        with_bos(directory)
    theirs, ours = AutoTokenizer.from_pretrained(directory), EngineTokenizer.load(directory)
    assert (ours.encode("a")[0] == 1) == bos
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    for chat in CHATS:
        for prompt in (True, False):
            text = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
            assert ours.render_chat(chat, add_generation_prompt=prompt) == text
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(chat) == list(expected)


TEMPLATES = {
    "loops": "{% for m in messages %}{% if loop.first %}[{% endif %}{{ m.content | trim }}{% if m.role == 'x' %}"
    "{% continue %}{% endif %},{% if loop.last %}]{% endif %}{% endfor %}",
    "blocks": "{%- for m in messages %}\n    {% if m.role == 'user' %}\n  U: {{ m.content }}\n    {% endif %}\n"
    "{% endfor %}",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} {{ bos_token }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "thinking": "{% set ns = namespace(last=messages|length - 1, open=true) %}{% for m in messages[::-1] %}"
    "{% set i = (messages|length - 1) - loop.index0 %}{% if ns.open and m.role == 'user' and m.content is string "
    "and not m.content.startswith('<t>') %}{% set ns.open = false %}{% set ns.last = i %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1]"
    ".lstrip('\\n') %}{% endif %}{{ loop.index0 }}/{{ ns.last }} {{ c.rstrip('\\n') }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{% if tools is not none %}tools{% endif %}{{ strftime_now('%Y') }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_renders_as_transformers_does(tiny: Path, tmp_path: Path, name: str) -> None:
    from transformers import AutoTokenizer

    directory = variant(tiny, tmp_path / name, chat_template=TEMPLATES[name])
    theirs, ours = AutoTokenizer.from_pretrained(directory), EngineTokenizer.load(directory)
    for chat in CHATS:
        assert ours.render_chat(chat) == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


def test_template_file_goes_before_the_config(tiny: Path, tmp_path: Path) -> None:
    directory = variant(tiny, tmp_path / "v", chat_template="from config")
    (directory / "chat_template.jinja").write_text("from file")
    assert EngineTokenizer.load(directory).render_chat(CHATS[0]) == "from file"


def test_named_templates(tiny: Path, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert EngineTokenizer.load(variant(tiny, tmp_path / "v", chat_template=named)).render_chat(CHATS[0]) == "d"


@pytest.mark.parametrize("messages", [[], "hi", [{"content": "no role"}], ["hi"], [{"role": 1, "content": "x"}], {}])
def test_malformed_chats_are_refused(tokenizer: EngineTokenizer, messages: object) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-092"):
        tokenizer.encode_chat(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[7].content }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% broken",
    ],
)
def test_template_that_refuses_or_attacks(tiny: Path, tmp_path: Path, template: str) -> None:
    tokenizer = EngineTokenizer.load(variant(tiny, tmp_path / "v", chat_template=template))
    with pytest.raises(ForgeError, match="TF-RUN-093"):
        tokenizer.render_chat(CHATS[0])


def test_missing_files_and_templates(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-090"):
        EngineTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ForgeError, match="TF-RUN-090"):
        EngineTokenizer.load(tmp_path)
    with pytest.raises(ForgeError, match="TF-RUN-091"):
        EngineTokenizer(Tokenizer.from_file(str(tiny / "tokenizer.json"))).encode_chat(CHATS[0])


def test_saved_truncation_and_padding_do_not_cut_prompts(tiny: Path) -> None:
    raw = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    raw.enable_truncation(4)
    raw.enable_padding(length=16)
    assert len(EngineTokenizer(raw).encode("one two three four five six seven")) > 4
    assert len(EngineTokenizer(raw).encode("a")) == 1


# -- detokenizers ------------------------------------------------------------------------------------


@given(ids=st.lists(st.integers(0, 511), max_size=40), skip=st.booleans())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_joined_stream_is_the_full_decode(tokenizer: EngineTokenizer, ids: list[int], skip: bool) -> None:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, ByteLevelDetokenizer)
    shown = ""
    for token in ids:
        expected = detokenizer.peek(token)
        assert detokenizer.peek(token) == expected, "peeking changes nothing"
        piece = detokenizer.push(token)
        assert piece == expected
        shown += piece
    shown += detokenizer.finish()
    assert shown == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=30))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_text_never_changes_after_it_was_shown(tokenizer: EngineTokenizer, text: str) -> None:
    detokenizer = tokenizer.detokenizer()
    shown = ""
    for token in tokenizer.encode(text, add_special_tokens=False):
        shown += detokenizer.push(token)
        assert text.startswith(shown), "an incomplete character was shown"
    assert shown + detokenizer.finish() == text


def sentencepiece_like() -> Tokenizer:
    """Metaspace and byte fallback, as Llama 2 and Mistral decode."""
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        "▁Hello",
        "▁world",
        "lo",
        "!",
        "a",
        "▁a",
    ]
    tokenizer = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(w, special=True) for w in ("<s>", "</s>")])
    return tokenizer


def test_windowed_decoder_keeps_spaces_and_characters() -> None:
    tokenizer = sentencepiece_like()
    factory = DetokenizerFactory(tokenizer)
    assert not factory.byte_level
    ids = [
        tokenizer.token_to_id(w) for w in ("▁Hello", "▁world", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "!", "▁a", "a")
    ]
    detokenizer = factory.make()
    assert isinstance(detokenizer, WindowDetokenizer)
    pieces = [detokenizer.push(i) for i in ids] + [detokenizer.finish()]
    assert "".join(pieces) == tokenizer.decode(ids) == "Hello world🙂! aa"
    assert pieces[2:5] == ["", "", ""]


def test_windowed_decoder_keeps_the_space_after_a_prompt() -> None:
    tokenizer = sentencepiece_like()
    hello, world = tokenizer.token_to_id("▁Hello"), tokenizer.token_to_id("▁world")
    detokenizer = DetokenizerFactory(tokenizer).make(context=[hello])
    assert detokenizer.peek(world) == " world"
    assert detokenizer.push(world) == " world"


@given(ids=st.lists(st.integers(3, 265).filter(lambda i: not 131 <= i <= 258), max_size=20))
@settings(max_examples=100, deadline=None)
def test_windowed_stream_is_the_full_decode_of_ascii(ids: list[int]) -> None:
    tokenizer = sentencepiece_like()
    detokenizer = DetokenizerFactory(tokenizer).make()
    assert "".join([*(detokenizer.push(i) for i in ids), detokenizer.finish()]) == tokenizer.decode(ids)


def test_unknown_ids_decode_to_nothing(tokenizer: EngineTokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(10**6) == "" and detokenizer.finish() == ""


def test_rules_that_backtrack_without_end_are_one_texts_fault(tiny: Path, tmp_path: Path) -> None:
    """The library panics, and its exception is none that ``except Exception`` keeps."""
    directory = variant(tiny, tmp_path / "v")
    path = directory / "tokenizer.json"
    document = json.loads(path.read_text())
    rule = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**document, "pre_tokenizer": rule}))
    tokenizer = EngineTokenizer.load(directory)
    with pytest.raises(ForgeError, match="TF-RUN-096"):
        tokenizer.encode("a" * 40 + "b")
    assert tokenizer.encode("ordinary")

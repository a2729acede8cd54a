"""GGUF: the header against damage, the conversion against the checkpoint that the file was made from."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantize.intake import CheckpointInfo, fetch_checkpoint, inspect_source
from quantize.intake.gguf_header import TENSOR_TYPES, GgufHeader, read_gguf, read_gguf_stream
from quantize.intake.gguf_model import gguf_config, gguf_shape, shortest
from quantize.intake.gguf_tokenizer import SPLIT_RULES, tokenizer_files
from quantize.intake.gguf_weights import llama3_rope
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_gguf import read_float32, write_tiny_gguf
from trtforge.ground.errors import ForgeError

TEXT = "Hello, world! It's 2024 and we paid 13.50 for three cafés.\n\n\tdef f(x):  return x"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source") / "model", ffn=256, width=256, heads=4)


def fetch(path: Path, tmp_path: Path, **options: Any) -> CheckpointInfo:
    return fetch_checkpoint(str(path), tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache", **options)


def test_type_table_is_that_of_the_package() -> None:
    import gguf

    for number, (name, block, size) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, block, size)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_types_come_back_exactly(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    """Through llama.cpp's names and rotary order and back: the same numbers (F32 and BF16 hold BF16 exactly)."""
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, matrix_type=kind)
    info = fetch(path, tmp_path, dtype="float32")
    before, after = read_float32(checkpoint), read_float32(tmp_path / "out")
    assert before.keys() == after.keys()
    for name in before:
        wanted = before[name]
        if kind == "F16" and wanted.ndim == 2:
            wanted = wanted.astype(np.float16).astype(np.float32)
        assert np.array_equal(after[name], wanted), name
    assert info.model.tied and info.model.parameters == sum(values.size for values in before.values())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0"])
def test_quantized_types_equal_the_package(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    import gguf

    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, matrix_type=kind)
    fetch(path, tmp_path, dtype="float32")
    number = gguf.GGMLQuantizationType[kind]
    after = read_float32(tmp_path / "out")
    for name, values in read_float32(checkpoint).items():
        wanted = values
        if values.ndim == 2:  # a row is quantized by itself, so its place does not matter
            wanted = gguf.quants.dequantize(gguf.quants.quantize(values, number), number)
        assert np.array_equal(after[name], wanted), name


def test_configuration_and_files(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint)
    info = fetch("m.gguf", tmp_path)
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    source = json.loads((checkpoint / "config.json").read_text())
    for key in ("hidden_size", "head_dim", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "vocab_size"):
        assert made[key] == source[key], key
    assert (made["eos_token_id"], made["bos_token_id"], made["tie_word_embeddings"]) == (2, 1, True)
    template = json.loads((checkpoint / "tokenizer_config.json").read_text())["chat_template"]
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
    settings_ = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (settings_["eos_token"], settings_["bos_token"]) == ("<|im_end|>", "<|im_start|>")
    assert info.source_dtype == "gguf:F32" and info.sha256 and info.notes
    first = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    fetch("m.gguf", tmp_path)
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == first
    assert path.exists()


def test_end_of_turn_ends_the_answer(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, extra={"tokenizer.ggml.eot_token_id": 0})
    assert fetch(path, tmp_path).model.eos_token_ids == (0, 2)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == [0, 2]


def test_inspection_reads_the_header_only(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, matrix_type="Q8_0")
    info = inspect_source(str(path), tmp_path)
    assert info is not None and info.model.dtype == "gguf:Q8_0" and info.model.layers == 2 and not info.files


def test_tokenizer_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    header = read_gguf(write_tiny_gguf(tmp_path / "m.gguf", checkpoint))
    text, _, _ = tokenizer_files(header, 1024)
    made, source = Tokenizer.from_str(text), Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    for sample in (TEXT, "<|im_start|>user\nhi<|im_end|>", "naïve 🎉 123456"):
        assert made.encode(sample).ids == source.encode(sample).ids
        assert made.decode(made.encode(sample, add_special_tokens=False).ids, skip_special_tokens=False) == sample


def test_split_rules(checkpoint: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    def pieces(rule: str, text: str) -> list[str]:
        header = read_gguf(write_tiny_gguf(tmp_path / f"{rule}.gguf", checkpoint, pre=rule))
        tokenizer = Tokenizer.from_str(tokenizer_files(header, 1024)[0])
        return [piece.replace("Ġ", "_") for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    assert pieces("gpt-2", "I'm 1234 ok") == ["I", "'m", "_1234", "_ok"]
    assert pieces("smollm", "at 123 ok") == ["at", "_", "1", "2", "3", "_ok"]
    assert pieces("llama-bpe", "HE'S 12345 ok") == ["HE", "'S", "_", "123", "45", "_ok"]
    assert pieces("qwen2", "a 123") == ["a", "_", "1", "2", "3"]
    assert pieces("tekken", "aB 12") == ["a", "B", "_", "1", "2"]
    for rule in SPLIT_RULES:
        assert "".join(pieces(rule, "x, y")) == "x,_y"


def test_begin_token_where_the_file_asks_for_it(checkpoint: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, extra={"tokenizer.ggml.add_bos_token": True})
    tokenizer = Tokenizer.from_str(tokenizer_files(read_gguf(path), 1024)[0])
    assert tokenizer.encode("hi").ids[0] == 1
    assert tokenizer.encode("hi", add_special_tokens=False).ids[0] != 1


def sentencepiece_header(**changes: Any) -> GgufHeader:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *([6] * 256)]
    words = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, *words],
        "tokenizer.ggml.token_type": [*kinds, *([1] * len(words))],
        "tokenizer.ggml.scores": [0.0] * len(pieces) + [-float(10 - index) for index in range(len(words))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }
    return GgufHeader(3, metadata, {}, 0)


def test_sentencepiece() -> None:
    from tokenizers import Tokenizer

    text, config, template = tokenizer_files(sentencepiece_header(), 64)
    tokenizer = Tokenizer.from_str(text)
    assert tokenizer.encode("hello").tokens == ["<s>", "▁hello"]
    assert tokenizer.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hello é", add_special_tokens=False).ids) == "hello é"
    assert (config["eos_token"], template) == ("</s>", None)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tokenizer.ggml.tokens": None}, "TF-SRC-008"),
        ({"tokenizer.ggml.model": "t5"}, "TF-SRC-015"),
        ({"tokenizer.ggml.scores": []}, "TF-SRC-015"),
        ({"tokenizer.ggml.token_type": [1] * 269}, "TF-SRC-015"),
        ({"tokenizer.ggml.tokens": ["a"] * 269}, "TF-SRC-015"),
        ({"tokenizer.ggml.eos_token_id": 5000}, "TF-SRC-015"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"}, "TF-SRC-015"),
        (
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["q z"]},
            "TF-SRC-015",
        ),
    ],
)
def test_tokenizers_that_cannot_be_carried_over(changes: dict[str, Any], code: str) -> None:
    assert refusal(tokenizer_files, sentencepiece_header(**changes), 64).code == code


def test_unknown_split_rule_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, pre="brand-new")
    error = refusal(fetch, path, tmp_path)
    assert error.code == "TF-SRC-015" and "smollm" in error.numbers["known"]


def test_no_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, tokenizer=False)
    assert refusal(fetch, path, tmp_path).code == "TF-SRC-008"


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"llama.expert_count": 8}, "TF-SRC-015"),
        ({"split.count": 3}, "TF-SRC-050"),
        ({"llama.rope.scaling.type": "longrope"}, "TF-SRC-015"),
        ({"llama.attention.value_length": 32}, "TF-SRC-015"),
        ({"llama.attention.key_length": 32}, "TF-SRC-015"),
    ],
)
def test_what_would_be_lost_is_refused(checkpoint: Path, tmp_path: Path, extra: dict[str, Any], code: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, extra=extra)
    assert refusal(inspect_source, str(path), tmp_path).code == code
    assert refusal(fetch, path, tmp_path).code == code


def test_architecture_is_named() -> None:
    error = refusal(gguf_config, GgufHeader(3, {"general.architecture": "gemma2"}, {}, 0))
    assert error.code == "TF-SRC-009" and "llama" in error.numbers["supported"]


def test_tensors_must_be_complete(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, without=("blk.1.ffn_up.weight",))
    error = refusal(fetch, path, tmp_path)
    assert error.code == "TF-SRC-022" and error.numbers["missing"] == 1


def test_rope_scaling_survives(checkpoint: Path, tmp_path: Path) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    info = inspect_source(str(write_tiny_gguf(tmp_path / "a.gguf", checkpoint, extra=extra)), tmp_path)
    assert info is not None and info.model.rope == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    extra = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 512,
    }
    info = inspect_source(str(write_tiny_gguf(tmp_path / "b.gguf", checkpoint, extra=extra)), tmp_path)
    assert info is not None and info.model.rope["original_max_position_embeddings"] == 512


def llama3_factors(factor: float) -> np.ndarray:
    """Divisors as llama.cpp's converter computes them (its own branches, not our formula)."""
    factors = []
    for frequency in 1.0 / 10000.0 ** (np.arange(0, 64, 2) / 64):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_read_back(checkpoint: Path, tmp_path: Path, factor: float) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint, rope_factors=llama3_factors(factor))
    info = fetch(path, tmp_path)
    rope = info.model.rope
    assert (rope["rope_type"], rope["factor"], rope["low_freq_factor"]) == (
        "llama3",
        factor,
        1.0,
    )


def test_other_rope_factors_are_refused() -> None:
    assert refusal(llama3_rope, np.linspace(1, 8, 32, dtype=np.float32), 10000.0, 64).code == "TF-SRC-015"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_shortest_is_the_same_float32(value: float) -> None:
    assert np.float32(shortest(value)) == np.float32(value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends"),
        (b"GGU", "ends"),
        (b"PK\x03\x04" + b"\0" * 40, "begins with"),
        (b"GGUF" + struct.pack(">I", 3) + b"\0" * 16, "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "counts"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "counts"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40) + b"\0" * 20, "absurdly"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**50), "longer than"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 0, 2**50), "longer than"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 77) + b"\0" * 8, "unknown type"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    error = refusal(inspect_source, str(path), tmp_path)
    assert error.code == "TF-SRC-014" and reason in error.message


def test_truncated_file(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint)
    path.write_bytes(path.read_bytes()[:-1000])
    error = refusal(fetch, path, tmp_path)
    assert error.code == "TF-SRC-014" and error.numbers["needed"] > error.numbers["bytes"]


def test_pointer_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n")
    assert refusal(inspect_source, str(path), tmp_path).code == "TF-SRC-004"


def test_wrong_hash(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint)
    assert refusal(fetch, path, tmp_path, sha256="f" * 64).code == "TF-SRC-013"


def test_stream_reads_a_beginning_only(checkpoint: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", checkpoint)
    taken = 0

    def read(count: int) -> bytes:
        nonlocal taken
        piece = raw[taken : taken + min(count, 1000)]  # short reads, as sockets and archives give them
        taken += len(piece)
        return piece

    raw = path.read_bytes() + b"\0" * (8 << 20)
    header = read_gguf_stream(read, len(raw), "m.gguf")
    assert header.tensors == read_gguf(path).tensors
    assert taken < len(raw)
    assert refusal(read_gguf_stream, io.BytesIO(raw[:100]).read, len(raw), "m").code == "TF-SRC-014"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("small")
    model = write_tiny_llama(folder / "model", layers=1, vocab=259)
    return write_tiny_gguf(folder / "m.gguf", model).read_bytes()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_mutations_never_crash(small: bytes, data: st.DataObject) -> None:
    raw = bytearray(small)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.one_of(st.integers(0, 2000), st.integers(0, len(raw))))
        kind = data.draw(st.sampled_from(["set", "insert", "delete", "cut"]))
        if kind == "set":
            raw[position : position + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif kind == "insert":
            raw[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "delete":
            del raw[position : position + data.draw(st.integers(1, 8))]
        else:
            del raw[position:]
    try:
        header = read_gguf_stream(io.BytesIO(bytes(raw)).read, len(raw), "m.gguf")
        assert all(tensor.offset + tensor.nbytes <= len(raw) for tensor in header.tensors.values())
        gguf_config(header)
        tokenizer_files(header, 64)
    except ForgeError as error:
        assert error.code in {"TF-SRC-008", "TF-SRC-009", "TF-SRC-014", "TF-SRC-015"}


@pytest.mark.slow
def test_equal_to_transformers(checkpoint: Path, tmp_path: Path) -> None:
    """The general converter agrees on every weight, bit by bit."""
    import torch
    from transformers import AutoModelForCausalLM

    write_tiny_gguf(tmp_path / "m.gguf", checkpoint, matrix_type="Q4_1")
    fetch(tmp_path / "m.gguf", tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.bfloat16).state_dict()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16).state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


odd_values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(0, 300), st.text(max_size=2), st.floats()), max_size=3),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_odd_metadata_is_judged(small: bytes, data: st.DataObject) -> None:
    """Any value of any type under any key: a configuration and a tokenizer, or a coded refusal."""
    header = read_gguf_stream(io.BytesIO(small).read, len(small), "m.gguf")
    keys = [*header.metadata, "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.attention.key_length"]
    changes = data.draw(st.dictionaries(st.sampled_from(keys), odd_values, min_size=1, max_size=2))
    header = GgufHeader(header.version, {**header.metadata, **changes}, header.tensors, header.size)
    for call in (lambda: gguf_shape(header, None), lambda: tokenizer_files(header, 64)):
        try:
            call()
        except ForgeError as error:
            assert error.code.startswith("TF-SRC-") and error.remedies


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack("<4sIQQQ1sIQ", b"GGUF", 3, 0, 1, 1, b"k", 8, 2**36), "does not end"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 0, 2**34), "absurdly long"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 9, 2**30), "absurdly long"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**31), "counts exceed"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**31, 0), "counts exceed"),
    ],
)
def test_a_giants_header_is_not_read_without_end(tmp_path: Path, head: bytes, reason: str) -> None:
    """A sparse file of a terabyte holds whatever a header claims."""
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with path.open("r+b") as file:
        file.truncate(2**40)
    error = refusal(read_gguf, path)
    assert error.code == "TF-SRC-014" and reason in error.message

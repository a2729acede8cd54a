"""What cannot be read gives a coded finding or a refusal; links that leave the repository are not followed."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.triton_repo import corpus_llm, corpus_triton
from tests.triton_repo.corpus import add, step, steps, tensors
from triton_repo.lint.files import MAX_BYTES, Unreadable, inside, read_text
from triton_repo.lint.pbtext import Text
from triton_repo.lint.run import Report, lint_repository
from triton_repo.lint.schema import parse_config
from trtforge.ground.errors import ForgeError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    corpus_triton.simple_add_sub(folder)
    return folder


def found(report: Report, code: str) -> list[str]:
    return [finding.message for finding in report.findings if finding.code == code]


def config(root: Path) -> Path:
    path = root / "simple/config.pbtxt"
    path.unlink()
    return path


def test_binary_files_are_findings(root):
    config(root).write_bytes(b"name: \0\1\2")
    assert "binary" in found(lint_repository(root), "TF-TRI-106")[0]


def test_text_in_another_encoding_is_a_note_for_triton_loads_it(root):
    path = root / "simple/config.pbtxt"
    path.write_bytes("# caf\u00e9\n".encode("latin-1") + path.read_bytes())
    report = lint_repository(root)
    assert [(f.code, f.severity) for f in report.findings] == [("TF-TRI-106", "note")]
    assert "UTF-8" in report.findings[0].message


def test_a_byte_order_mark_is_a_fault_of_a_configuration_and_of_nothing_else(tmp_path):
    root = tmp_path / "repository"
    corpus_triton.python_add_sub(root)
    model = next(root.iterdir())
    source, path = model / "1/model.py", model / "config.pbtxt"
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    assert lint_repository(root).findings == ()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [(f.code, f.line) for f in lint_repository(root).findings] == [("TF-TRI-001", 1)]


def test_python_in_the_encoding_that_it_states_is_read(tmp_path):
    root = tmp_path / "repository"
    corpus_triton.python_add_sub(root)
    source = next(root.iterdir()) / "1/model.py"
    text = "# caf\u00e9\n".encode("latin-1") + source.read_bytes()
    source.write_bytes(b"# -*- coding: latin-1 -*-\n" + text)
    assert lint_repository(root).findings == ()
    # a comment may hold any bytes, a string may not
    source.write_bytes(text)
    assert lint_repository(root).findings == ()
    for fault in (b"# coding: no-such-thing\n" + text, text + "    name = 'caf\u00e9'\n".encode("latin-1")):
        source.write_bytes(fault)
        assert found(lint_repository(root), "TF-TRI-128")


@pytest.mark.parametrize("number", ["089", "9" * 6000, "-" + "9" * 6000, "0x" + "f" * 6000, "0o17", "1_000"])
def test_numbers_that_no_field_holds_are_findings(root, number):
    path = root / "simple/config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 8", f"max_batch_size: {number}"))
    assert found(lint_repository(root), "TF-TRI-103")


@pytest.mark.parametrize(
    ("number", "value"), [("010", 8), ("0x10", 16), ("0", 0), ("00", 0), ("-0", 0), ("- 0", 0), ("-  5", -5)]
)
def test_numbers_are_read_as_the_parser_reads_them(root, number, value):
    path = root / "simple/config.pbtxt"
    text = path.read_text().replace("max_batch_size: 8", f"max_batch_size: {number}")
    assert parse_config(path, text).message.max_batch_size == value
    assert not parse_config(path, text).faults


def test_huge_files_are_findings_and_not_read(root):
    with config(root).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert str(MAX_BYTES) in found(lint_repository(root), "TF-TRI-106")[0]


@pytest.mark.parametrize("where", ["simple/config.pbtxt", "simple/1/model.py"])
def test_a_fifo_is_a_finding_and_does_not_hang(root, where):
    path = root / where
    if path.exists():
        path.unlink()
    else:
        (root / "simple/config.pbtxt").write_text('backend: "python"\n')
    os.mkfifo(path)
    started = time.monotonic()
    assert "FIFO" in found(lint_repository(root), "TF-TRI-106")[0]
    assert time.monotonic() - started < 5


def test_a_socket_and_a_folder_in_place_of_a_file_are_findings(root, monkeypatch):
    path = config(root)
    path.mkdir()
    assert "folder" in found(lint_repository(root), "TF-TRI-106")[0]
    path.rmdir()
    monkeypatch.chdir(path.parent)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("config.pbtxt")
        assert found(lint_repository(root), "TF-TRI-106")


def test_a_file_without_permission_is_a_finding(root, monkeypatch):
    opened = os.open

    def refuse(path, *rest, **more):
        if str(path).endswith("config.pbtxt"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert "permission denied" in found(lint_repository(root), "TF-TRI-106")[0]


def test_loops_of_links_are_findings(root):
    (root / "loop").symlink_to("loop")
    (root / "simple/2").symlink_to("3")
    (root / "simple/3").symlink_to("2")
    messages = found(lint_repository(root), "TF-TRI-106")
    assert len(messages) == 3 and all("link" in message for message in messages)


def test_links_that_leave_the_repository_are_named_and_not_followed(root, tmp_path):
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "config.pbtxt").write_text("max_batchsize: 1\n")
    (root / "escaped").symlink_to(secret)
    config(root).symlink_to(secret / "config.pbtxt")
    (root / "simple/2").symlink_to(secret)
    report = lint_repository(root)
    assert len(found(report, "TF-TRI-107")) == 3
    assert found(report, "TF-TRI-102") == [] and "escaped" not in {f.model for f in report.findings}
    assert report.passed


def test_links_inside_the_repository_are_followed(root):
    path = config(root)
    (root / "simple/real.pbtxt").write_text('backend: "python"\nmax_batchsize: 1\n')
    path.symlink_to("real.pbtxt")
    assert found(lint_repository(root), "TF-TRI-102")


def test_a_model_file_behind_a_link_that_leaves_counts_as_there(root, tmp_path):
    model = root / "simple/1/model.onnx"
    model.unlink()
    model.symlink_to(tmp_path / "elsewhere.onnx")
    assert lint_repository(root).passed


@pytest.mark.parametrize("what", ["missing", "file", "fifo"])
def test_what_is_no_folder_is_refused(tmp_path, what):
    path = tmp_path / "repository"
    if what == "file":
        path.write_text("x")
    elif what == "fifo":
        os.mkfifo(path)
    with pytest.raises(ForgeError) as caught:
        lint_repository(path)
    assert caught.value.code == "TF-TRI-100" and caught.value.why and caught.value.remedies


def test_a_model_folder_in_place_of_a_repository_is_told_apart(root):
    (root / "simple/1/model.onnx").unlink()
    (root / "simple/1").rmdir()
    assert "one model" in found(lint_repository(root / "simple"), "TF-TRI-020")[0]


def test_nesting_without_end_is_a_finding(root):
    config(root).write_text("a { " * 5000)
    assert found(lint_repository(root), "TF-TRI-001")


def _chain_of(count: int) -> str:
    """An ensemble whose steps stand in the reverse of the order in which they can run."""
    made = [step("m", {"x": f"t{i}"}, {"y": f"t{i + 1}"}) for i in reversed(range(count))]
    io = tensors("input", [("t0", "FP32", (1,))]) + tensors("output", [(f"t{count}", "FP32", (1,))])
    return 'platform: "ensemble"\n' + io + steps(*made)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 500_000,
        '\\"' * 250_000,
        'name: "' + "{{" * 250_000 + '"',
        "${" * 250_000,
        "a: <a " * 100_000,
        "[" * 500_000,
        'backend: "python"\n' + "input { }\n" * 10_000,
        'backend: "python"\n' + 'input { name: "x" data_type: TYPE_FP32 dims: 1 }\n' * 5_000,
        _chain_of(4_000),
    ],
    ids=["braces", "quotes", "jinja", "holes", "angles", "brackets", "empty-inputs", "many-inputs", "many-steps"],
)
def test_hostile_text_takes_no_time(root, text):
    config(root).write_text(text)
    started = time.process_time()
    lint_repository(root)
    assert time.process_time() - started < 5


def test_an_engine_behind_a_fifo_does_not_hang(tmp_path):
    root = tmp_path / "repository"
    corpus_llm.native(root)
    (tmp_path / "engine/engine.json").unlink()
    os.mkfifo(tmp_path / "engine/engine.json")
    assert "FIFO" in found(lint_repository(root), "TF-TRI-027")[0]


@pytest.mark.parametrize("text", ["a" * 5000, "a\\000b", "../" * 2000, "~", "{" * 3000])
def test_no_name_of_a_file_breaks_lint(tmp_path, text):
    """Every text of a configuration that may be taken for a file or a folder."""
    builds = (corpus_triton.classifier_with_labels, corpus_triton.instance_groups_and_warmup, corpus_llm.native)
    for number, build in enumerate(builds):
        root = tmp_path / f"repository{number}"
        build(root)
        for path in sorted(root.rglob("config.pbtxt")):
            whole = path.read_text()
            for match in re.finditer(r'"[^"\n]*"', whole):
                path.write_text(f'{whole[: match.start()]}"{text}"{whole[match.end() :]}')
                lint_repository(root)
            path.write_text(whole)


def test_hostile_yaml_and_json_are_findings(tmp_path):
    root = tmp_path / "repository"
    corpus_llm.llmapi(root)
    yaml = root / "tensorrt_llm/1/model.yaml"
    bomb = "k0: &k0 [x, x]\n" + "".join(f"k{i}: &k{i} [*k{i - 1}, *k{i - 1}]\n" for i in range(1, 20))
    for text in (
        bomb,
        "model: &m [*m]\n",
        "a: &a {b: *a}\n",
        "model: !!python/object/apply:os.system [ls]\n",
        "[" * 5000,
        "model: [\n",
    ):
        yaml.write_text(text)
        assert found(lint_repository(root), "TF-TRI-220")
    corpus_llm.vllm(root)
    (root / "vllm_model/1/model.json").write_text("[" * 100_000)
    assert found(lint_repository(root), "TF-TRI-230")


def test_aliases_of_a_yaml_text_are_followed(tmp_path):
    root = tmp_path / "repository"
    corpus_llm.llmapi(root)
    yaml = root / "tensorrt_llm/1/model.yaml"
    named = "model: &m /models/llama\ntokenizer: *m\nkv_cache_config: {<<: &kv {free_gpu_memory_fraction: 0.5}}\n"
    yaml.write_text(named)
    assert lint_repository(root).findings == ()
    yaml.write_text(named.replace("0.5", "1.5"))
    assert found(lint_repository(root), "TF-TRI-225")


@pytest.mark.parametrize("data", [b"model: caf\xe9\n", b"model: a\0\n"])
@pytest.mark.parametrize(
    ("build", "file"), [(corpus_llm.llmapi, "tensorrt_llm/1/model.yaml"), (corpus_llm.vllm, "vllm_model/1/model.json")]
)
def test_settings_that_cannot_be_read_are_findings(tmp_path, build, file, data):
    build(tmp_path / "repository")
    (tmp_path / "repository" / file).write_bytes(data)
    assert found(lint_repository(tmp_path / "repository"), "TF-TRI-106")


def test_an_engine_that_is_not_one_is_a_finding(tmp_path):
    root = tmp_path / "repository"
    engine = tmp_path / "engine"
    engine.mkdir()
    corpus_llm.chain(root, values={"gpt_model_path": str(engine)})
    for text in ("", "[]", "{}", '{"build_config": 3}', "[" * 100_000):
        (engine / "config.json").write_text(text)
        assert found(lint_repository(root), "TF-TRI-188")
    (engine / "config.json").unlink()
    os.mkfifo(engine / "config.json")
    assert found(lint_repository(root), "TF-TRI-188")


def test_notes_are_given_where_nothing_is_wrong(tmp_path):
    root = tmp_path / "repository"
    corpus_triton.versions_and_auto_complete(root)
    assert len(found(lint_repository(root), "TF-TRI-104")) == 1
    (root / "all_versions/config.pbtxt.bak").write_text("")
    (root / "all_versions/config.pbtxt").write_text('backend: "onnxruntime"\nmodel_metrics { }\n')
    report = lint_repository(root)
    assert found(report, "TF-TRI-110") and found(report, "TF-TRI-105") and report.passed
    llm = tmp_path / "llm"
    corpus_llm.trtllm_quick_start(llm)
    messages = found(lint_repository(llm), "TF-TRI-181")
    assert any("2 optional parameters" in message and "decoding_mode" in message for message in messages)
    vllm = tmp_path / "vllm"
    for name in ("one", "two"):
        add(vllm, name, corpus_llm.VLLM, {"1/model.json": json.dumps({"model": "m"})})
    assert "1.8 of one GPU" in found(lint_repository(vllm), "TF-TRI-231")[0]
    four = tmp_path / "four"  # https://github.com/triton-inference-server/server/issues/6855
    add(four, "one", corpus_llm.VLLM.replace("count: 1", "count: 4"), {"1/model.json": json.dumps({"model": "m"})})
    assert "0.9 × 4 are 3.6 of one GPU" in found(lint_repository(four), "TF-TRI-231")[0]


def test_a_placeholder_of_a_type_is_told_the_types_that_it_can_be(tmp_path):
    root = tmp_path / "repository"
    corpus_llm.chain(root)
    path = root / "tensorrt_llm/config.pbtxt"
    for old, new, remedy in (
        ("TYPE_FP32", "${logits_datatype}", "data_type: TYPE_FP32, or data_type: one of TYPE_FP16, TYPE_BF16"),
        ("TYPE_INT32", "${type}", "data_type: one of TYPE_BOOL"),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new, 1))
        findings = [f for f in lint_repository(root).findings if f.code == "TF-TRI-101"]
        path.write_text(text)
        assert len(findings) == 1 and findings[0].remedy.startswith(remedy)


def test_a_python_model_may_get_its_class_from_elsewhere(tmp_path):
    root = tmp_path / "repository"
    corpus_triton.python_add_sub(root)
    path = next(root.iterdir()) / "1/model.py"
    for source in (
        "from base import TritonPythonModel\n",
        "from base import *  # TritonPythonModel\n",
        "import base\nTritonPythonModel = base.Model\n",
        "from base import Base\nclass TritonPythonModel(Base):\n    pass\n",
        "class TritonPythonModel:\n    async def execute(self, requests):\n        return []\n",
        "class TritonPythonModel:\n    execute = staticmethod(print)\n",
        "try:\n    from base import TritonPythonModel\nexcept ImportError:\n    raise\n",
        "def made():\n    pass\n@made\nclass TritonPythonModel:\n    pass\n",
    ):
        path.write_text(source)
        assert lint_repository(root).findings == (), source


def test_one_fault_does_not_hide_the_others(root):
    path = root / "simple/config.pbtxt"
    text = path.read_text().replace("max_batch_size: 8", "max_batch_size: ${size}\nmax_batchsize: 1")
    path.write_text(text.replace("TYPE_INT32 dims: [ 16 ]", "TYPE_INT dims: [ 0 ]", 1))
    codes = {finding.code for finding in lint_repository(root).findings}
    assert {"TF-TRI-101", "TF-TRI-102", "TF-TRI-103", "TF-TRI-024"} <= codes


def test_reading_stays_below_the_repository(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("x")
    (tmp_path / "a/out").symlink_to("../b")
    with pytest.raises(Unreadable) as caught:
        inside(tmp_path / "a/out", (tmp_path / "a").resolve())
    assert caught.value.outside
    with pytest.raises(Unreadable):
        read_text(tmp_path / "a/out", (tmp_path / "a").resolve())
    assert read_text(tmp_path / "b", tmp_path.resolve()) == "x"


# the tree -------------------------------------------------------------------------------------------
def test_positions_are_those_of_the_text():
    text = Text('# first\nname: "m"\ninput [\n  { name: "a" dims: [ 1,\n    2 ] },\n  { name: "b" }\n]\n')
    name = text.find("input", "name=b", "name")
    assert name is not None and text.position(name.value_start) == (6, 11)
    dims = text.find("input", 0, "dims", 1)
    assert dims is not None and dims.text == "2" and text.position(dims.value_start) == (5, 5)
    assert text.find("input", 2) is None and text.deepest("input", 2).name == "input"


def test_strings_in_pieces_are_one_value():
    node = Text("a: 'one' \"two\"").find("a")
    assert node is not None and node.string() == "onetwo"


_WORDS = st.sampled_from(
    ["name", ":", "{", "}", "[", "]", "<", ">", ",", '"x"', "8", "-1", "${a}", "\n", "# c\n", "input", "true", "'"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_WORDS, max_size=40).map(" ".join) | st.text(max_size=60))
def test_no_text_breaks_the_tree_or_the_parser(text):
    tree = Text(text)
    for _, _, node in tree.root.walk():
        assert 0 <= node.start <= node.value_start <= node.end <= len(text)
        line, column = tree.position(node.value_start)
        assert line >= 1 and column >= 1
    nodes = [node for _, _, node in tree.root.walk()]
    assert len(tree.without(nodes)) == len(text)
    assert tree.without(nodes).count("\n") == text.count("\n")
    parse_config(Path("config.pbtxt"), text)


_PIECES = ["{", "}", "[", "]", '"', "${x}", "0", "-1", "9" * 20, "input", "dims", "\n", 'key: "a"', "nan", "é", ": ["]


@pytest.mark.parametrize("build", [corpus_llm.trtllm_with_engine, corpus_triton.image_ensemble, corpus_llm.llmapi])
def test_no_mutant_of_a_repository_breaks_lint(tmp_path, build):
    root = tmp_path / "repository"
    build(root)
    files = sorted(path for path in root.rglob("*") if path.suffix in (".pbtxt", ".yaml", ".py"))
    generator = random.Random(20)
    for _ in range(25):
        path = generator.choice(files)
        text = path.read_text(encoding="utf-8")
        start = generator.randrange(len(text))
        length = generator.choice([0, 1, 30])
        path.write_text(text[:start] + generator.choice(_PIECES) + text[start + length :], encoding="utf-8")
        for finding in lint_repository(root).findings:
            assert finding.code and finding.message and (finding.line is None or finding.line >= 1)
        path.write_text(text, encoding="utf-8")


def test_torch_and_grpc_servers_are_not_needed(root):
    code = (
        "import sys; from pathlib import Path; from triton_repo.lint.run import lint_repository; "
        f"lint_repository(Path({str(root)!r})); assert not {{'torch', 'transformers', 'onnx'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

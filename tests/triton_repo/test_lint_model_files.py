"""The file of a model against its configuration: tensors of ONNX graphs, Git LFS pointers."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.edits import carry_out
from tests.triton_repo.corpus import add, tensors
from triton_repo.lint.hits import Finding
from triton_repo.lint.onnx_graph import read_graph
from triton_repo.lint.run import lint_repository

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
IDS = [("input_ids", INT64, ["batch", 128])]
OUT = [("last_hidden_state", FLOAT, ["batch", 128, 768])]


def model_of(
    inputs: list[tuple[Any, ...]], outputs: list[tuple[Any, ...]], weights: dict[str, Any] | None = None
) -> bytes:
    """An ONNX file with those tensors and a node that nobody runs."""
    graph = helper.make_graph(
        [helper.make_node("Custom", [row[0] for row in inputs], [row[0] for row in outputs], domain="tests")],
        "graph",
        [helper.make_tensor_value_info(*row) for row in inputs],
        [helper.make_tensor_value_info(*row) for row in outputs],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph).SerializeToString()


def lint(root: Path, config: str, data: bytes, name: str = "model.onnx") -> list[Finding]:
    folder = add(root, "bert", f'platform: "onnxruntime_onnx"\n{config}')
    (folder / "1" / name).write_bytes(data)
    return [finding for finding in lint_repository(root).findings if finding.severity == "error"]


def declared(batch: int, ids: tuple[Any, ...], out: tuple[Any, ...] = ("last_hidden_state", "FP32", (128, 768))) -> str:
    return f"max_batch_size: {batch}\n" + tensors("input", [ids]) + tensors("output", [out])


#: what is declared, what the message and the remedy say
FAULTS = [
    # https://github.com/triton-inference-server/server/issues/1338
    (declared(1024, ("input_ids", "INT64", (-1, 128))), "[-1, -1, 128], the batch included", "dims: [128]"),
    (declared(1024, ("input_ids", "INT64", (1, 128))), "[-1, 1, 128]", "dims: [128]"),
    (
        declared(0, ("input_ids", "INT64", (128,)), ("last_hidden_state", "FP32", (-1, 128, 768))),
        "[128]",
        "dims: [-1, 128]",
    ),
    # https://github.com/triton-inference-server/server/issues/223
    (declared(8, ("input_tensor", "INT64", (128,))), "no input 'input_tensor'", 'name: "input_ids"'),
    # https://github.com/triton-inference-server/tutorials/pull/137
    (
        declared(8, ("input_ids", "INT64", (128,)), ("308", "FP32", (128, 768))),
        "no output '308'",
        '"last_hidden_state"',
    ),
    (declared(8, ("input_ids", "INT32", (128,))), "TYPE_INT32 here and TYPE_INT64", "data_type: TYPE_INT64"),
    (declared(8, ("input_ids", "INT64", (64,))), "[-1, 64]", "dims: [128]"),
    (
        declared(8, ("input_ids", "INT64", (128,)), ("last_hidden_state", "FP32", (128, 512))),
        "[-1, 128, 512]",
        "[128, 768]",
    ),
]


@pytest.mark.parametrize(("config", "message", "remedy"), FAULTS)
def test_tensors_that_are_not_the_models_are_found(tmp_path, config, message, remedy):
    found = lint(tmp_path / "repository", config, model_of(IDS, OUT))
    assert [finding.code for finding in found] == ["TF-TRI-156"]
    assert message in found[0].message and remedy in found[0].remedy
    assert found[0].line is not None and found[0].line > 2


def test_a_batch_of_fixed_size_is_found(tmp_path):  # https://github.com/triton-inference-server/server/issues/1889
    config = declared(
        1, ("input.1", "FP32", (3, 512, 512), "reshape { shape: [ 1, 3, 512, 512 ] }"), ("508", "FP32", (1, 128))
    )
    found = lint(
        tmp_path / "repository",
        config,
        model_of([("input.1", FLOAT, [1, 3, 512, 512])], [("508", FLOAT, ["n", 1, 128])]),
    )
    assert [finding.code for finding in found] == ["TF-TRI-156"]
    assert "max_batch_size: 0" in found[0].remedy


def test_a_batch_of_a_model_that_has_none_is_found_where_its_tensors_are_completed(tmp_path):
    # https://github.com/triton-inference-server/server/tree/main/qa/L0_model_config (bad_max_batch_size)
    fixed = model_of([("x", FLOAT, [1, 16])], [("y", FLOAT, [1, 16])])
    found = lint(tmp_path / "fixed", "max_batch_size: 4\n", fixed)
    assert [(finding.code, finding.line) for finding in found] == [("TF-TRI-156", 2)]
    assert lint(tmp_path / "none", "max_batch_size: 0\n", fixed) == []
    assert lint(tmp_path / "open", "max_batch_size: 4\n", model_of(IDS, OUT)) == []


def test_inputs_that_nothing_gives_are_found(tmp_path):
    inputs = [*IDS, ("attention_mask", INT64, ["batch", 128])]
    found = lint(tmp_path / "repository", declared(8, ("input_ids", "INT64", (128,))), model_of(inputs, OUT))
    assert "missing: attention_mask" in found[0].message and "dims: [128]" in found[0].remedy


VALID = [
    (declared(8, ("input_ids", "INT64", (128,))), IDS, OUT, {}),
    (declared(0, ("input_ids", "INT64", (-1, 128)), ("last_hidden_state", "FP32", (-1, 128, 768))), IDS, OUT, {}),
    # an open size that the configuration fixes, a size of an output that the runtime may infer
    (
        declared(8, ("input_ids", "INT64", (128,))),
        [("input_ids", INT64, ["n", "s"])],
        [(OUT[0][0], FLOAT, ["n", "s", 768])],
        {},
    ),
    # no shape in the file, a weight that may be given too, an output that nobody asks for
    (declared(8, ("input_ids", "INT64", (128,))), [("input_ids", INT64, None)], OUT, {}),
    (
        declared(8, ("input_ids", "INT64", (128,))),
        [*IDS, ("w", FLOAT, [2])],
        [*OUT, ("pooled", FLOAT, ["n", 768])],
        {"w": 2},
    ),
    # a scalar, and a reshape (https://github.com/triton-inference-server/server/tree/main/docs/examples/model_repository)
    (declared(0, ("x", "FP32", (1,)), ("y", "FP32", (1,))), [("x", FLOAT, [])], [("y", FLOAT, [])], {}),
    (
        declared(0, ("x", "FP32", (3, 224, 224), "reshape { shape: [ 1, 3, 224, 224 ] }"), ("y", "FP32", (1,))),
        [("x", FLOAT, [1, 3, 224, 224])],
        [("y", FLOAT, [])],
        {},
    ),
]


@pytest.mark.parametrize(("config", "inputs", "outputs", "weights"), VALID)
def test_tensors_of_the_model_raise_no_alarm(tmp_path, config, inputs, outputs, weights):
    import numpy as np

    filled = {name: np.zeros(size, np.float32) for name, size in weights.items()}
    assert lint(tmp_path / "repository", config, model_of(inputs, outputs, filled)) == []


def test_controls_and_states_of_sequences_are_inputs(tmp_path):
    config = (
        "max_batch_size: 8\nsequence_batching {\n  direct {}\n"
        '  control_input [ { name: "START"\n'
        "    control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]\n"
        '  state [ { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]\n}\n'
        + tensors("input", [("X", "FP32", (4,))])
        + tensors("output", [("Y", "FP32", (4,))])
    )
    inputs = [("X", FLOAT, ["n", 4]), ("START", TensorProto.INT32, ["n", 1]), ("IN", FLOAT, ["n", 4])]
    assert (
        lint(tmp_path / "repository", config, model_of(inputs, [("Y", FLOAT, ["n", 4]), ("OUT", FLOAT, ["n", 4])]))
        == []
    )


def test_files_that_are_no_graph_are_not_judged(tmp_path):
    whole = model_of(IDS, OUT)
    rng = random.Random(0)
    path = tmp_path / "model.onnx"
    assert read_graph(tmp_path / "none.onnx", tmp_path) is None
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        read_graph(path, tmp_path)
    for _ in range(300):
        path.write_bytes(bytes(byte ^ (rng.random() < 0.05) * rng.randrange(256) for byte in whole))
        read_graph(path, tmp_path)
    for data in (b"", b"\x80" * 40, b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x00" * 10, os.urandom(5000)):
        path.write_bytes(data)
        assert read_graph(path, tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_graph(path, tmp_path) is None


def test_weights_are_not_read(tmp_path):
    graph = onnx.load_from_string(model_of(IDS, OUT))
    graph.graph.initializer.append(TensorProto(name="w", data_type=FLOAT, dims=[1], raw_data=b"\x01" * (64 << 20)))
    (tmp_path / "model.onnx").write_bytes(graph.SerializeToString())
    found = read_graph(tmp_path / "model.onnx", tmp_path)
    assert found is not None and found.inputs["input_ids"].dims == (-1, 128)
    assert found.outputs["last_hidden_state"].dtype == "TYPE_FP32"


def test_a_pointer_to_weights_that_were_not_fetched_is_found(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 97453127\n"
    found = lint(tmp_path / "repository", declared(8, ("input_ids", "INT64", (128,))), pointer)
    assert [finding.code for finding in found] == ["TF-TRI-155"] and found[0].path.endswith("1/model.onnx")
    assert "git lfs pull" in found[0].remedy


def sequence_output(name: str) -> Any:
    element = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    return helper.make_value_info(name, helper.make_sequence_type_proto(element))


def test_an_output_that_is_no_tensor_is_an_error_whatever_the_configuration_says(tmp_path):
    """Probabilities of a classifier as skl2onnx writes them unless told otherwise."""
    graph = helper.make_graph(
        [helper.make_node("Custom", ["x"], ["label", "probability"], domain="tests")],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, [None, 4])],
        [helper.make_tensor_value_info("label", INT64, [None]), sequence_output("probability")],
    )
    data = helper.make_model(graph).SerializeToString()
    for index, config in enumerate(
        ("max_batch_size: 0\n", "max_batch_size: 0\n" + tensors("output", [("label", "INT64", (-1,))]))
    ):
        (error,) = lint(tmp_path / str(index), config, data)
        assert error.code == "TF-TRI-257" and "'probability' of the model is a sequence" in error.message
        assert "zipmap" in error.remedy


@pytest.mark.parametrize(
    ("shape", "dims", "message"),
    [
        (["batch", None, 768], (128, 768), "the model leaves it open: [-1, -1, 768]"),
        (["batch", "length", "width"], (128, 768), "leaves it open: [-1, -1, -1]"),
        (None, (128, 768), "does not say how many axes"),
        (["batch", 128, 768], (128, 768), ""),
        (["batch", None, 768], (-1, 768), ""),
        (None, (-1, -1), ""),
    ],
)
def test_a_size_that_the_model_leaves_open_and_the_configuration_fixes_is_noted(tmp_path, shape, dims, message):
    data = model_of(IDS, [("last_hidden_state", FLOAT, shape)])
    folder = add(
        tmp_path / "r",
        "bert",
        'platform: "onnxruntime_onnx"\n'
        + declared(8, ("input_ids", "INT64", (128,)), ("last_hidden_state", "FP32", dims)),
    )
    (folder / "1/model.onnx").write_bytes(data)
    findings = lint_repository(tmp_path / "r").findings
    assert [(f.code, f.severity) for f in findings] == ([("TF-TRI-258", "note")] if message else [])
    if message:
        assert message in findings[0].message
        for remedy in findings[0].remedies:
            if remedy.edits:
                carry_out(remedy)
                assert lint_repository(tmp_path / "r").findings == ()


@pytest.mark.parametrize(("config", "message", "remedy"), FAULTS)
def test_every_remedy_of_a_tensor_clears_it(tmp_path, config, message, remedy):
    data = model_of(IDS, OUT)
    for index in range(2):
        root = tmp_path / str(index)
        findings = lint(root, config, data)
        ways = [way for way in findings[0].remedies if way.edits]
        assert ways, remedy
        if index < len(ways):
            carry_out(ways[index])
            after = [f for f in lint_repository(root).findings if f.severity == "error"]
            assert len(after) == len(findings) - 1, [f.message for f in after]

"""``auto_complete_config``: what the Python backend refuses of it, read from the source.

The faults are those of Triton's own tests of it, rebuilt
(https://github.com/triton-inference-server/server/tree/main/qa/L0_model_config/autofill_noplatform/python).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.triton_repo.corpus import add, tensors
from triton_repo.lint.hits import Finding
from triton_repo.lint.run import lint_repository

CONFIG = 'backend: "python"\n'
STATED = CONFIG + tensors("input", [("X", "FP32", (4,))]) + tensors("output", [("Y", "FP32", (4,))])
ADD = "config.add_input(x)"


def lint(root: Path, body: str, config: str = CONFIG, returned: str = "return config") -> list[Finding]:
    lines = [*body.split("\n"), returned]
    source = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
    source += "".join(f"        {line}\n" for line in lines if line)
    source += "\n    def execute(self, requests):\n        return []\n"
    add(root, "model", config, {"1/model.py": source})
    return [finding for finding in lint_repository(root).findings if finding.severity != "note"]


FAULTS = [
    ('x = {"data_type": "TYPE_FP32", "dims": [4]}\n' + ADD, CONFIG, "lacks name"),
    ('x = {"name": "X", "dims": [4]}\n' + ADD, CONFIG, "of 'X' lacks data_type"),
    ('config.add_output({"name": "Y", "data_type": "TYPE_FP32"})', CONFIG, "lacks dims"),
    ('x = dict(name="X", data_type="TYPE_FP32", dims=[4], shape=1)\n' + ADD, CONFIG, "has shape; it takes name"),
    (
        'config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [4], "optional": True})',
        CONFIG,
        "has optional",
    ),
    ('config.set_model_transaction_policy({"invalid": "argument"})', CONFIG, "it takes decoupled"),
    (
        "config.set_model_transaction_policy(dict(decoupled=True))",
        CONFIG + "model_transaction_policy { decoupled: false }\n",
        "decoupled is True here and False",
    ),
    ("config.set_max_batch_size(4)", "max_batch_size: 6\n" + CONFIG, "is 4 here and 6 in"),
    ("config.set_dynamic_batching()", CONFIG + "sequence_batching { }\n", "sequence_batching in config.pbtxt"),
    ('x = {"name": "X", "data_type": "TYPE_INT32", "dims": [4]}\n' + ADD, STATED, "is TYPE_INT32 here and TYPE_FP32"),
    ('x = {"name": "X", "data_type": "TYPE_FP32", "dims": [16]}\n' + ADD, STATED, "has dims [16] here and [4]"),
]


@pytest.mark.parametrize(("body", "config", "message"), FAULTS)
def test_what_the_backend_refuses_is_found_at_its_line(tmp_path, body, config, message):
    found = lint(tmp_path / "repository", body, config)
    assert [finding.code for finding in found] == ["TF-TRI-158"]
    assert message in found[0].message and found[0].path.endswith("1/model.py")
    assert found[0].line == 3 + len(body.split("\n"))


def test_a_function_that_returns_nothing_is_found(tmp_path):
    found = lint(tmp_path / "repository", "config.set_max_batch_size(0)", returned="")
    assert [(finding.code, finding.line) for finding in found] == [("TF-TRI-158", 3)]


@pytest.mark.parametrize(
    "body",
    [
        'x = {"name": "X", "data_type": "TYPE_FP32", "dims": [4], "optional": True}\n' + ADD,
        # tensors that are put together while it runs, and calls that are not always made
        'x = {"name": "X"}\nx["data_type"] = "TYPE_FP32"\nx.update(dims=[4])\n' + ADD,
        'x = {"name": "X"}\nx = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}\n' + ADD,
        'x = {"name": "X", **config.rest}\n' + ADD,
        "for x in config.tensors:\n    config.add_input(x)",
        'if config.small:\n    config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})',
        "if config.small:\n    config.set_max_batch_size(1)",
        "config.set_max_batch_size(config.largest)",
        "config.set_model_transaction_policy(config.policy)",
    ],
)
def test_what_cannot_be_told_from_the_source_is_not_judged(tmp_path, body):
    assert lint(tmp_path / "repository", body, "max_batch_size: 6\n" + STATED) == []


def test_a_function_that_always_raises_needs_no_result(tmp_path):
    assert lint(tmp_path / "repository", 'raise ValueError("write config.pbtxt")', STATED, returned="") == []

"""What lint calls an error a real Triton refuses, and what lint passes it loads."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.local import TritonServer
from tests.triton_repo.corpus_llm import chain
from triton_repo.lint.run import lint_repository

pytestmark = pytest.mark.e2e

ENGINE, PRE, POST = "tensorrt_llm", "preprocessing", "postprocessing"
#: model, text, replacement, and the code of the error; None for a change that is no fault
CASES = [
    (POST, "dynamic_batching {}", "", None),
    (POST, "max_batch_size: 4", "# four\nmax_batch_size : 4,", None),
    (POST, "    count: 1\n        kind: KIND_CPU", "    kind: KIND_CPU", None),
    (
        "ensemble",
        "optional: true }\n]\noutput",
        "optional: true }\n]\nmodel_transaction_policy { decoupled: false }\noutput",
        None,
    ),
    (ENGINE, "max_batch_size: 4", "max_batch_size: ${triton_max_batch_size}", "TF-TRI-101"),
    (POST, "max_batch_size", "max_batchsize", "TF-TRI-102"),
    (POST, "TYPE_INT32", "TYPE_INTEGER", "TF-TRI-103"),
    (POST, "max_batch_size: 4", "max_batch_size: 4\nmax_batch_size: 8", "TF-TRI-109"),
    (POST, "dynamic_batching {}", "dynamic_batching {}\nsequence_batching {}", "TF-TRI-133"),
    (POST, 'name: "postprocessing"', 'name: "post"', "TF-TRI-023"),
    (POST, "dims: [ -1, -1 ]", "dims: [ 0 ]", "TF-TRI-024"),
    (ENGINE, "reshape: { shape: [ ] }", "reshape: { shape: [ 2 ] }", "TF-TRI-024"),
    (POST, "max_batch_size: 4", "max_batch_size: -4", "TF-TRI-130"),
    (ENGINE, "[ 4 ]", "[ 4, 8 ]", "TF-TRI-131"),
    (POST, "kind: KIND_CPU", "kind: KIND_CPU gpus: [ 0 ]", "TF-TRI-138"),
    (ENGINE, "decoupled: false", "decoupled: true\n}\nresponse_cache {\n  enable: true", "TF-TRI-136"),
    ("ensemble", "max_batch_size: 4", "max_batch_size: 64", "TF-TRI-173"),
    (POST, 'name: "postprocessing"', '\ufeffname: "postprocessing"', "TF-TRI-001"),
    (POST, "max_batch_size: 4", "max_batch_size: 04", None),
    (POST, "dims: [ -1, -1 ]", "dims: [ - 1, -\t1 ]", None),
    ("ensemble", "model_version: -1", "", "TF-TRI-176"),
    ("ensemble", 'model_name: "postprocessing"', 'model_name: "postproc"', "TF-TRI-162"),
    ("ensemble", 'key: "QUERY"', 'key: "QUERRY"', "TF-TRI-164"),
    ("ensemble", 'value: "_TOKENS"', 'value: "_TOKEN"', "TF-TRI-167"),
    ("ensemble", '"max_tokens" data_type: TYPE_INT32', '"max_tokens" data_type: TYPE_INT64', "TF-TRI-171"),
    (
        "ensemble",
        '"max_tokens" data_type: TYPE_INT32 dims: [ 1 ]',
        '"max_tokens" data_type: TYPE_INT32 dims: [ 2 ]',
        "TF-TRI-172",
    ),
    ("ensemble", 'value: "_PAD_ID"', 'value: "_END_ID"', "TF-TRI-168"),
    ("ensemble", "ensemble_scheduling", "instance_group [ { count: 1 } ]\nensemble_scheduling", "TF-TRI-161"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Path, TritonServer]]:
    root = tmp_path_factory.mktemp("served") / "repository"
    # no tokenizer and no engine: the models load and answer nothing
    chain(root, backend="python", tokenizer="/tokenizer")
    shutil.rmtree(root / "tensorrt_llm_bls")
    server = TritonServer(root, log_path=root.parent / "server.log", extra_arguments=("--model-control-mode=explicit",))
    with server:
        server.wait_ready(120)
        for model in (PRE, ENGINE, POST):
            assert load(server, model) == (200, "")
        yield root, server


def load(server: TritonServer, model: str) -> tuple[int, str]:
    url = f"http://{server.http_url}/v2/repository/models/{model}/load"
    request = urllib.request.Request(url, data=b"{}", headers=server.admin_headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read().decode()).get("error", "")


@pytest.mark.parametrize(
    ("model", "old", "new", "code"), CASES, ids=[f"{c[3] or 'valid'}-{i}" for i, c in enumerate(CASES)]
)
def test_lint_and_server_agree(served, model, old, new, code):
    root, server = served
    path = root / model / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    try:
        status, reason = load(server, model)
        errors = {finding.code for finding in lint_repository(root).findings if finding.severity == "error"}
    finally:
        path.write_text(text)
        if model != "ensemble":
            assert load(server, model)[0] == 200
    assert (status != 200) == bool(errors), f"server: {status} {reason}; lint: {sorted(errors)}"
    assert code is None or code in errors

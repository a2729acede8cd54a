"""Records that one stage reads of another: whatever stands in them, it is used or refused by code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.damage import ODD, changed, places
from tests.support.refusals import refusal
from trtforge.ground.errors import ForgeError
from trtforge.pipeline.stages.common import read_json
from trtforge.pipeline.stages.scoring import GENERATION_FILE, NLL_FILE, PERPLEXITY_FILE, load_answers, load_scores

FIGURES = {"tokens_sha256": "a" * 64, "window": 128, "stride": 64}
ANSWERS = [{"prompt": "p", "token_ids": [1, 2], "text": "t", "distinct_share": 0.5, "problems": []}]


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    (tmp_path / PERPLEXITY_FILE).write_text(json.dumps(FIGURES))
    (tmp_path / GENERATION_FILE).write_text(json.dumps(ANSWERS))
    np.save(tmp_path / NLL_FILE, np.zeros(4, dtype=np.float32))
    return tmp_path


def test_good_records_are_read(evaluated: Path) -> None:
    assert load_scores(evaluated).window == 128
    assert load_answers(evaluated)[0].token_ids == (1, 2)


@pytest.mark.parametrize(
    ("name", "record", "load"), [(PERPLEXITY_FILE, FIGURES, load_scores), (GENERATION_FILE, ANSWERS, load_answers)]
)
def test_every_field_may_be_anything(evaluated: Path, name: str, record: Any, load: Any) -> None:
    refused = 0
    for at in [(), *places(record)]:
        for value in ODD:
            (evaluated / name).write_text(json.dumps(changed(record, at, value)))
            try:
                load(evaluated)
            except ForgeError as error:
                assert error.code == "TF-STO-015"
                refused += 1
    assert refused > 20


@pytest.mark.parametrize("data", [b"", b"x", b"\x93NUMPY\x01\x00", b"\x80\x04N."])
def test_scores_are_no_pickle_and_no_torn_array(evaluated: Path, data: bytes) -> None:
    (evaluated / NLL_FILE).write_bytes(data)
    assert refusal(load_scores, evaluated).code == "TF-STO-015"


def test_a_pipe_is_no_record(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "smoke.json")
    assert refusal(read_json, tmp_path / "smoke.json").code == "TF-STO-015"

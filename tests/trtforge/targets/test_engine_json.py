"""engine.json as the union of the targets' records: what is required is named when it is missing or of another kind."""

from __future__ import annotations

import pytest

from tests.support.damage import changed, places
from tests.trtforge.cli.test_damaged_records import RECORDS
from trtforge.targets import TARGETS
from trtforge.targets.engine_json import record_of
from trtforge.targets.record import ServedRecord
from trtforge.targets.tensorrt import TensorrtRecord


def test_every_target_has_a_record() -> None:
    assert set(RECORDS) == set(TARGETS)
    for name, engine in RECORDS.items():
        record = record_of(engine)
        assert type(record) is TARGETS[name].record and record.target == name
        assert isinstance(record, ServedRecord) is TARGETS[name].runs_here


@pytest.mark.parametrize("name", RECORDS)
def test_a_part_that_is_missing_is_named(name: str) -> None:
    required = {field for field, info in TARGETS[name].record.model_fields.items() if info.is_required()}
    for part in required - {"target"}:
        engine = {key: value for key, value in RECORDS[name].items() if key != part}
        with pytest.raises(ValueError, match=rf"\b{part}: field required"):
            record_of(engine)
    with pytest.raises(ValueError, match="target is 'None', none of torch, "):
        record_of({key: value for key, value in RECORDS[name].items() if key != "target"})


@pytest.mark.parametrize("name", RECORDS)
def test_a_truth_value_is_no_number_and_no_text(name: str) -> None:
    refused = 0
    for at in places(RECORDS[name]):
        try:
            record_of(changed(RECORDS[name], at, True))
        except ValueError:
            refused += 1
    assert refused > 10


def test_keys_of_another_release_are_kept() -> None:
    record = record_of({**RECORDS["tensorrt"], "of_later": {"a": 1}})
    assert isinstance(record, TensorrtRecord) and record.model_extra == {"of_later": {"a": 1}}
    assert record.tensorrt.sizes.rows == 4


def test_inputs_of_a_plan_are_named_once_and_have_dimensions() -> None:
    stamp = RECORDS["tensorrt"]["tensorrt"]
    for inputs in (stamp["inputs"] * 2, [{"name": "x", "type": "INT64", "shape": []}]):
        with pytest.raises(ValueError, match=r"tensorrt\.inputs"):
            record_of({**RECORDS["tensorrt"], "tensorrt": {**stamp, "inputs": inputs}})


def test_a_message_names_so_many_faults_and_counts_the_rest() -> None:
    with pytest.raises(ValueError, match=r"limits: field required.* and \d+ more$"):
        record_of({"version": 1, "target": "trtllm-engine"})

"""Engine directories that anybody may have written: each is judged or refused, and nothing else ever comes out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.targets.trtllm.readback import compare_engine, is_trtllm_engine, read_trtllm_engine
from tests.builder.targets.trtllm.fake_trtllm import write_engine
from tests.builder.targets.trtllm.test_readback import expected
from tests.trtforge.cli.test_commands import cli  # noqa: F401 (a fixture)
from triton_repo.trtllm_engine import REQUIRED, describe_engine
from trtforge.ground.errors import ForgeError

VALUES = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, float("inf"), float("nan"), "", "x", "FP8", [], [None, 1], {}, {"a": {}}]
)


def paths(value: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of a nested mapping, as a path."""
    found = [prefix] if prefix else []
    for name, item in value.items() if isinstance(value, dict) else ():
        found += paths(item, (*prefix, name))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = write_engine(tmp_path_factory.mktemp("engine"))
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["build_config"]["lora_config"] = {"max_lora_rank": 8}
    config["build_config"]["plugin_config"]["lora_plugin"] = "auto"
    config["pretrained_config"] |= {"num_attention_heads": 4, "hidden_size": 64, "num_key_value_heads": 2}
    return config


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_field_is_judged_or_refused(
    whole: dict[str, Any], tmp_path: Path, data: st.DataObject
) -> None:
    config = copy.deepcopy(whole)
    *parents, last = data.draw(st.sampled_from(paths(whole)))
    section = config
    for name in parents:
        section = section[name]
    section[last] = data.draw(VALUES)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "rank0.engine").write_bytes(b"plan")
    is_trtllm_engine(tmp_path)
    for read in (lambda: judged(tmp_path), lambda: described(tmp_path)):
        try:
            read()
        except ForgeError as error:
            assert error.code in ("TF-BLD-060", "TF-TRI-063") and error.remedies


def judged(folder: Path) -> None:
    engine = read_trtllm_engine(folder)
    json.dumps([engine.to_json(), *(finding.to_json() for finding in compare_engine(engine, expected()))])
    compare_engine(engine, {})


def described(folder: Path) -> None:
    """What is not refused has counts that a repository can be written for."""
    facts = describe_engine(folder)
    counts = [name for name in REQUIRED if name not in ("dtype", "logits_dtype")]
    assert all(1 <= facts[name] < 2**31 for name in counts), facts


@pytest.mark.parametrize("engine", ['{"version": 1, "target": "%s"}', '{"version": 1, "target": "%s", "limits": 3}'])
@pytest.mark.parametrize("target", ["trtllm-engine", "trtllm-llmapi", "torch", "tensorrt", "tensorrt-rtx"])
def test_a_record_that_lacks_parts_is_refused(cli: Any, tmp_path: Path, engine: str, target: str) -> None:  # noqa: F811
    (tmp_path / "engine.json").write_text(engine % target)
    done = cli("engine", "info", str(tmp_path))
    assert done.code == 2 and "TF-BLD-02" in done.err, done.err

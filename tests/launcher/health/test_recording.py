"""What is recorded of an answer, and which recordings are refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.health.recording import RECORD_FILE, Probe, Recording, positions, read_recording
from runtime.determinism import near_tie_bound
from trtforge.ground.errors import ForgeError


def recording(**more: Any) -> Recording:
    answer = positions([1, 2], np.log(np.array([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])), dtype="float32", noise=0.0)
    values: dict[str, Any] = {
        "model": "tiny",
        "layout": "native",
        "noise": 0.01,
        "probes": [Probe(prompt=[3, 4], answer=answer, seconds=0.5)],
        "load_seconds": 2.0,
        "first_seconds": 0.8,
        "warm_up_seconds": 0.3,
    }
    return Recording(**{**values, **more})


def bundle_of(folder: Path, content: bytes | None, digest: str | None = None) -> Path:
    files = []
    if content is not None:
        (folder / RECORD_FILE).parent.mkdir(parents=True, exist_ok=True)
        (folder / RECORD_FILE).write_bytes(content)
        files = [{"path": RECORD_FILE, "sha256": digest or hashlib.sha256(content).hexdigest()}]
    (folder / "manifest.json").write_text(json.dumps({"files": files}))
    return folder


def test_log_probabilities_are_those_of_the_logits_whatever_is_added_to_them() -> None:
    rows = np.log(np.array([[0.25, 0.75], [0.5, 0.5]])) + np.array([[7.0], [-3.0]])
    found = positions([1, 0], rows.astype(np.float32), dtype="float32", noise=0.0)
    assert [round(one.log_prob, 4) for one in found] == [round(float(np.log(0.75)), 4), round(float(np.log(0.5)), 4)]


def test_tokens_within_the_near_tie_bound_are_recorded_and_no_others() -> None:
    noise = 0.1
    bound = near_tie_bound(5.0, "bfloat16", noise)
    rows = np.array([[5.0, 5.0 - 0.9 * bound, 5.0 - 1.1 * bound, 0.0]], dtype=np.float32)
    [found] = positions([0], rows, dtype="bfloat16", noise=noise)
    assert list(found.ties) == [1]
    assert found.log_prob_of(1) == pytest.approx(found.log_prob - 0.9 * bound, abs=1e-5)
    assert found.log_prob_of(2) is None and found.log_prob_of(0) == found.log_prob


def test_an_answer_of_more_tokens_is_recorded_as_far_as_it_is_asked_for() -> None:
    rows = np.zeros((9, 8), dtype=np.float32)
    assert len(positions(list(range(9))[:8], rows, dtype="float32", noise=0.0)) == 4


@pytest.mark.parametrize(("noise", "nats"), [(0.0, 0.1), (0.02, 0.1), (0.5, 2.0)])
def test_the_tolerance_grows_with_paritys_noise(noise: float, nats: float) -> None:
    assert recording(noise=noise).tolerance == pytest.approx(nats)


def test_a_recording_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = recording()
    assert read_recording(bundle_of(tmp_path, made.model_dump_json().encode())) == made


@pytest.mark.parametrize(
    ("content", "digest", "code"),
    [
        (None, None, "TF-HLT-021"),
        (b"{}", None, "TF-HLT-022"),
        (b"no json", None, "TF-HLT-022"),
        (recording().model_dump_json().encode(), "0" * 64, "TF-HLT-022"),
        (recording().model_dump_json().replace('"version":1', '"version":2').encode(), None, "TF-HLT-022"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes | None, digest: str | None, code: str) -> None:
    with pytest.raises(ForgeError) as caught:
        read_recording(bundle_of(tmp_path, content, digest))
    assert caught.value.code == code and int(caught.value.exit_code) == 2 and caught.value.remedies


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        read_recording(tmp_path)
    assert caught.value.code == "TF-HLT-020"

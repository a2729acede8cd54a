"""Reads ``engine.json`` and refuses an engine that this runtime cannot run.

Policy: versions are compared before anything else is believed; what an engine must state, and of which kind, is the
record of its target (:mod:`trtforge.targets`). Hashes are not recomputed here (``trtforge verify`` does), but every
byte range that will be read is checked against the files when the graph is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.executors.base import ExecutorLimits
from trtforge.drafting.record import SpeculationRecord, read_speculation
from trtforge.formats.pools import pools
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.versions import is_version
from trtforge.native.ops import OPS_VERSIONS, SAME_OPS
from trtforge.targets.base import Target
from trtforge.targets.engine_json import record_of
from trtforge.targets.record import ENGINE_VERSION, ServedRecord
from trtforge.targets.torch import TORCH

ENGINE_FILE = "engine.json"
GRAPH_FILE = "model.onnx"
DTYPES = ("float32", "float16", "bfloat16")
_REBUILD = ["build the engine again with this version of trtforge", "install the version that built it"]


@dataclass(frozen=True)
class EngineInfo:
    """An engine directory, and what it states about itself.

    Attributes:
        raw: engine.json as it stands there, with what only this engine's target says.
        record: what every engine that runs here says, checked.
        limits: of a step and of a request; the longest prompt is worked out where the engine does not say it.
        speculation: what drafts, where anything does.
    """

    directory: Path
    raw: dict[str, Any]
    record: ServedRecord
    limits: ExecutorLimits
    speculation: SpeculationRecord | None = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer; none where the model has none."""
        return tuple(self.record.eos_token_ids or ())


def read_engine(directory: Path, target: Target = TORCH) -> EngineInfo:
    """Read and check ``engine.json`` of an engine of ``target``.

    Raises:
        ForgeError: TF-RUN-001 no engine, TF-RUN-002 version or target, TF-RUN-003 op or ABI version.
    """
    path = directory / ENGINE_FILE
    try:
        raw = read_json_file(path)
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise ForgeError(
            "TF-RUN-001",
            f"{directory} is not an engine directory: {error}",
            asked=str(directory),
            why=f"an engine directory holds {ENGINE_FILE}, {GRAPH_FILE} or a plan, and the weights",
            remedies=["give the engine/ folder of a bundle", "build an engine with `trtforge build`"],
        ) from error
    _check_versions(raw, directory, target)
    try:
        return _parse(raw, directory)
    except (KeyError, TypeError, ValueError) as error:
        raise garbled(path, error) from error


def garbled(path: Path, error: Exception) -> ForgeError:
    """``TF-RUN-001``: an engine.json that does not say what its target's must."""
    return ForgeError(
        "TF-RUN-001",
        f"{path} lacks or garbles a field: {error}",
        asked=str(path),
        why="limits, KV cache and vocabulary of the engine are read from it",
        remedies=["build the engine again", "run `trtforge verify` on the bundle"],
    )


def _check_versions(raw: dict[str, Any], directory: Path, target: Target) -> None:
    if not is_version(raw.get("version"), ENGINE_VERSION) or raw.get("target") != target.name:
        raise ForgeError(
            "TF-RUN-002",
            f"engine version {raw.get('version')} for target {raw.get('target')} cannot be run here",
            asked=str(directory),
            numbers={"version": raw.get("version"), "supported": ENGINE_VERSION, "target": raw.get("target")},
            why=f"this executor runs engines of target {target.name}, version {ENGINE_VERSION}",
            remedies=_REBUILD,
        )
    wrong = {
        name: {"engine": raw.get(key), "runtime": list(runs)}
        for name, key, runs in (("ops", "ops_version", OPS_VERSIONS), ("host ABI", "host_abi", SAME_OPS))
        if not is_version(raw.get(key, runs[-1]), *runs)
    }
    if wrong:
        raise ForgeError(
            "TF-RUN-003",
            f"the engine was built for other op contracts: {', '.join(wrong)}",
            asked=str(directory),
            numbers=wrong,
            why="an op's contract changes its meaning or its arguments with its version",
            remedies=_REBUILD,
        )


def _parse(raw: dict[str, Any], directory: Path) -> EngineInfo:
    """The fields of an engine.json whose versions were checked; of any target that the engine core runs."""
    record = record_of(raw)
    if not isinstance(record, ServedRecord):
        raise ValueError(f"target {record.target} is not run here")
    limits, cache = record.limits, record.kv_cache
    if cache.format not in pools():
        raise ValueError(f"kv_cache.format {cache.format!r} is none of {', '.join(pools())}")
    if record.dtype not in DTYPES:
        raise ValueError(f"dtype {record.dtype!r} is none of {', '.join(DTYPES)}")
    speculation = read_speculation(raw)
    longest = min(limits.max_num_tokens, limits.max_seq_len) - 1
    if speculation is not None and speculation.max_draft_len > longest:
        raise ValueError(
            f"speculation.max_draft_len is {speculation.max_draft_len}, a step holds {longest} draft tokens"
        )
    longest_prompt = limits.max_input_len or max(limits.max_seq_len - 1, 1)
    held = ExecutorLimits(limits.max_batch_size, limits.max_num_tokens, limits.max_seq_len, longest_prompt)
    return EngineInfo(directory, raw, record, held, speculation)

"""An engine directory of TensorRT-LLM read back: ``config.json`` and ``rank<N>.engine``, against what was asked.

Policy: the rows of ``flags.yaml`` say where an engine records each setting, so whatever is asked is compared.
An engine is never opened: its plan loads only under its own version on its own GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from builder.targets.trtllm.flags import Settings, flag_table
from trtforge.errors import ForgeError

CONFIG_FILE = "config.json"
_RANK = re.compile(r"^rank(\d+)\.engine$")
_ABSENT = object()


@dataclass(frozen=True)
class Finding:
    """One difference between an engine and what was asked."""

    code: str
    message: str
    asked: Any = None
    found: Any = None

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "asked": self.asked, "found": self.found}


@dataclass(frozen=True)
class TrtllmEngine:
    """An engine directory.

    Attributes:
        version: of the TensorRT-LLM that built it.
        config: all of config.json.
        ranks: bytes of the plan by rank.
    """

    directory: Path
    version: str
    config: Mapping[str, Any]
    ranks: Mapping[int, int]

    @property
    def mapping(self) -> Mapping[str, Any]:
        mapping: Mapping[str, Any] = self.config["pretrained_config"].get("mapping") or {}
        return mapping

    @property
    def world_size(self) -> int:
        return int(self.mapping.get("world_size", 1))

    def value(self, path: str) -> Any:
        """What config.json holds at ``build_config.max_batch_size`` …; a sentinel that equals nothing when absent."""
        found: Any = self.config
        for name in path.split("."):
            if not isinstance(found, Mapping) or name not in found:
                return _ABSENT
            found = found[name]
        return found

    def to_json(self) -> dict[str, Any]:
        """Version, model, quantization, ranks and the settings that flags.yaml knows."""
        model = self.config["pretrained_config"]
        settings = {
            flag.setting: self.value(flag.config)
            for flag in flag_table().flags
            if flag.config is not None and self.value(flag.config) is not _ABSENT
        }
        return {
            "version": self.version,
            "architecture": model.get("architecture"),
            "dtype": model.get("dtype"),
            "quantization": model.get("quantization"),
            "mapping": dict(self.mapping),
            "ranks": {str(rank): size for rank, size in sorted(self.ranks.items())},
            "settings": settings,
        }


def is_trtllm_engine(directory: Path) -> bool:
    """Whether a directory looks like one: config.json with the parts that TensorRT-LLM writes."""
    try:
        config = json.loads((Path(directory) / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"version", "pretrained_config", "build_config"} <= set(config)


def read_trtllm_engine(directory: Path) -> TrtllmEngine:
    """Parse an engine directory.

    Raises:
        ForgeError: ``TF-BLD-060`` config.json is missing or is no engine's.
    """
    directory = Path(directory)
    path = directory / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        version = str(config["version"])
        if not isinstance(config["pretrained_config"], dict) or not isinstance(config["build_config"], dict):
            raise TypeError("pretrained_config and build_config must be objects")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-BLD-060",
            f"{path} describes no engine of TensorRT-LLM: {error!r}",
            asked=str(directory),
            why="trtllm-build writes a config.json with version, pretrained_config and build_config beside the plans.",
            remedies=["Name the folder that trtllm-build wrote (its --output_dir)", "Build the engine again"],
        ) from error
    found = ((match, entry) for entry in sorted(directory.iterdir()) if (match := _RANK.match(entry.name)))
    ranks = {int(match[1]): entry.stat().st_size for match, entry in found if entry.is_file()}
    return TrtllmEngine(directory, version, config, ranks)


def compare_engine(engine: TrtllmEngine, expected: Mapping[str, Any]) -> list[Finding]:
    """What differs between an engine and what was asked.

    Args:
        expected: ``version``, ``settings`` (see :func:`builder.targets.trtllm.flags.settings_of`) and
            ``checkpoint`` (config.json of the checkpoint that it was built from); a missing part is not compared.

    Returns:
        ``TF-BLD-061`` plans missing, empty or too many; ``TF-BLD-062`` another version; ``TF-BLD-063`` another
        setting; ``TF-BLD-064`` another model, quantization or split.
    """
    findings = list(_rank_findings(engine))
    wanted = expected.get("version")
    if wanted is not None and not _same_version(engine.version, str(wanted)):
        message = f"built by TensorRT-LLM {engine.version}, not by {wanted}: it loads under {engine.version} only"
        findings.append(Finding("TF-BLD-062", message, wanted, engine.version))
    findings += _setting_findings(engine, expected.get("settings") or {})
    findings += _model_findings(engine, expected.get("checkpoint") or {})
    return findings


def _rank_findings(engine: TrtllmEngine) -> list[Finding]:
    wanted, have = set(range(engine.world_size)), set(engine.ranks)
    findings = [
        Finding("TF-BLD-061", f"rank{rank}.engine is missing", engine.world_size, sorted(have))
        for rank in sorted(wanted - have)
    ]
    findings += [
        Finding("TF-BLD-061", f"rank{rank}.engine is of no rank: there are {engine.world_size}", sorted(wanted), rank)
        for rank in sorted(have - wanted)
    ]
    findings += [
        Finding("TF-BLD-061", f"rank{rank}.engine is empty", "a plan", 0)
        for rank, size in sorted(engine.ranks.items())
        if not size
    ]
    return findings


def _same_version(left: str, right: str) -> bool:
    try:
        return Version(left) == Version(right)
    except InvalidVersion:
        return left == right


def _setting_findings(engine: TrtllmEngine, settings: Settings) -> list[Finding]:
    findings = []
    numbers: dict[str | None, Any] = {row.mode: row.number for row in flag_table().speculation}
    for flag in flag_table().flags:
        if flag.config is None or settings.get(flag.setting) is None:
            continue
        asked, found = settings[flag.setting], engine.value(flag.config)
        if flag.setting == "speculative_decoding_mode":
            same = found in (numbers[asked], asked, str(asked).upper())
        elif flag.setting == "kv_cache_type":
            same = str(found).rpartition(".")[2].lower() == asked
        elif flag.kind == "list":
            same = isinstance(found, list) and sorted(found) == sorted(asked)
        else:
            same = found is not _ABSENT and found == asked
        if not same:
            shown = None if found is _ABSENT else found
            named = flag.key or flag.setting
            message = f"{named}: asked for {asked}, the engine has {'no record of it' if shown is None else shown}"
            findings.append(Finding("TF-BLD-063", message, asked, shown))
    return findings


def _model_findings(engine: TrtllmEngine, checkpoint: Mapping[str, Any]) -> list[Finding]:
    model, findings = engine.config["pretrained_config"], []
    names = [name for name in ("architecture", "dtype", "vocab_size", "num_hidden_layers") if name in checkpoint]
    pairs = [(name, checkpoint[name], model.get(name)) for name in names]
    for section, keys in (
        ("mapping", ("world_size", "tp_size", "pp_size")),
        ("quantization", ("quant_algo", "kv_cache_quant_algo", "group_size")),
    ):
        asked, found = checkpoint.get(section) or {}, model.get(section) or {}
        pairs += [(f"{section}.{key}", asked[key], found.get(key)) for key in keys if key in asked]
    for name, asked, found in pairs:
        if asked != found:
            message = f"{name}: the checkpoint has {asked}, the engine {found}"
            findings.append(Finding("TF-BLD-064", message, asked, found))
    return findings

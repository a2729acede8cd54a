"""An engine directory of TensorRT-LLM read back: ``config.json`` and ``rank<N>.engine``, against what was asked.

Policy: the rows of ``flags.yaml`` say where an engine records each setting, so whatever is asked is compared.
An engine is never opened: its plan loads only under its own version on its own GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from builder.targets.trtllm.changes import Settings, recorded
from builder.targets.trtllm.flags import flag_table
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import PlainRecord, read_json_file

CONFIG_FILE = "config.json"
_RANK = re.compile(r"rank(0|[1-9][0-9]*)\.engine")
#: of a mapping: the ranks, and what they are the product of
_SIZES = ("world_size", "tp_size", "pp_size", "cp_size")
#: of a checkpoint, what an engine repeats: the model, and how it drafts
_MODEL = (
    *("architecture", "dtype", "vocab_size", "num_hidden_layers"),
    *("num_medusa_heads", "num_medusa_layers", "num_eagle_layers", "max_non_leaves_per_layer"),
)
_ABSENT = object()
#: findings of one kind that are listed; the others are counted
_LISTED = 8


@dataclass(frozen=True)
class Finding(PlainRecord):
    """One difference between an engine and what was asked."""

    code: str
    message: str
    asked: Any = None
    found: Any = None


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
        """How the ranks divide the model; empty where config.json has nothing of that kind."""
        return self.section("mapping")

    @property
    def world_size(self) -> int | None:
        """Ranks of the engine; None where config.json names no number of them."""
        return _count(self.mapping.get("world_size", 1))

    def section(self, name: str) -> Mapping[str, Any]:
        """An object of ``pretrained_config``; empty when it is missing or no object."""
        found = self.config["pretrained_config"].get(name)
        return found if isinstance(found, dict) else {}

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
            "quantization": dict(self.section("quantization")),
            "mapping": dict(self.mapping),
            "ranks": {str(rank): size for rank, size in sorted(self.ranks.items())},
            "settings": settings,
        }


def has_engine(directory: Path) -> bool:
    """Whether a build put anything into its folder; a build that still runs keeps to a hidden one."""
    return directory.is_dir() and any(not entry.name.startswith(".") for entry in directory.iterdir())


def is_trtllm_engine(directory: Path) -> bool:
    """Whether a directory looks like one: plans of ranks, or config.json with the parts that TensorRT-LLM writes."""
    directory = Path(directory)
    if directory.is_dir() and any(_RANK.fullmatch(entry.name) for entry in directory.iterdir()):
        return True
    try:
        config = read_json_file(directory / CONFIG_FILE)
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
        config = read_json_file(path)
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
    found = ((match, entry) for entry in sorted(directory.iterdir()) if (match := _RANK.fullmatch(entry.name)))
    ranks = {int(match[1]): entry.stat().st_size for match, entry in found if entry.is_file()}
    return TrtllmEngine(directory, version, config, ranks)


def compare_engine(engine: TrtllmEngine, expected: Mapping[str, Any]) -> list[Finding]:
    """What differs between an engine and what was asked.

    Args:
        expected: ``version``, ``settings`` (see :func:`builder.targets.trtllm.flags.settings_of`), ``checkpoint``
            (config.json of the checkpoint that it was built from) and ``architectures`` (of the GPU that was to
            build it); a missing part is not compared.

    Returns:
        ``TF-BLD-061`` plans missing, empty or too many; ``TF-BLD-062`` another version; ``TF-BLD-063`` another
        setting; ``TF-BLD-064`` another model, quantization or split; ``TF-BLD-065`` a config.json that
        contradicts itself.
    """
    findings = [*_shape_findings(engine), *_rank_findings(engine)]
    wanted = expected.get("version")
    if wanted is not None and not _same_version(engine.version, str(wanted)):
        message = f"built by TensorRT-LLM {engine.version}, not by {wanted}: it loads under {engine.version} only"
        findings.append(Finding("TF-BLD-062", message, wanted, engine.version))
    checkpoint = expected.get("checkpoint") or {}
    settings = expected.get("settings") or {}
    written = recorded(settings, checkpoint, expected.get("architectures") or ())
    findings += _setting_findings(engine, settings, written)
    findings += _model_findings(engine, checkpoint)
    return findings


def _rank_findings(engine: TrtllmEngine) -> list[Finding]:
    world, have = engine.world_size, sorted(engine.ranks)
    if world is None:
        return []  # said with the mapping
    missing = islice((rank for rank in range(world) if rank not in engine.ranks), _LISTED)
    findings = [Finding("TF-BLD-061", f"rank{rank}.engine is missing", world, have) for rank in missing]
    more = world - sum(rank < world for rank in have) - len(findings)
    if more:
        findings.append(Finding("TF-BLD-061", f"and {more} plans of other ranks are missing", world, have))
    findings += [
        Finding("TF-BLD-061", f"rank{rank}.engine is of no rank: there are {world}", world, rank)
        for rank in have
        if rank >= world
    ]
    findings += [
        Finding("TF-BLD-061", f"rank{rank}.engine is empty", "a plan", 0)
        for rank, size in sorted(engine.ranks.items())
        if not size
    ]
    return findings


def _shape_findings(engine: TrtllmEngine) -> list[Finding]:
    """Parts of config.json that are of another kind than TensorRT-LLM writes, and ranks that do not multiply."""
    model, findings = engine.config["pretrained_config"], []
    for name in ("mapping", "quantization"):
        if model.get(name) is not None and not isinstance(model[name], dict):
            findings.append(
                Finding("TF-BLD-065", f"{name} is no object: {_shown(model[name])}", "an object", model[name])
            )
    wrong = [name for name in _SIZES if name in engine.mapping and _count(engine.mapping[name]) is None]
    for name in wrong:
        found = engine.mapping[name]
        findings.append(Finding("TF-BLD-065", f"mapping.{name} is no count: {_shown(found)}", "1 or more", found))
    if not wrong and engine.mapping:
        parts = [_count(engine.mapping.get(name, 1)) or 1 for name in _SIZES[1:]]
        if engine.world_size != prod(parts):
            shown = " x ".join(
                f"{name.removesuffix('_size')} {part}" for name, part in zip(_SIZES[1:], parts, strict=True)
            )
            message = f"mapping.world_size is {engine.world_size}, but {shown} makes {prod(parts)}"
            findings.append(Finding("TF-BLD-065", message, prod(parts), engine.world_size))
    return findings


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _count(value: Any) -> int | None:
    """A whole number from 1 on; None for anything else (``True`` too)."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _same_version(left: str, right: str) -> bool:
    try:
        return Version(left) == Version(right)
    except InvalidVersion:
        return left == right


def _setting_findings(engine: TrtllmEngine, settings: Settings, written: Settings) -> list[Finding]:
    findings = []
    numbers: dict[str | None, Any] = {row.mode: row.number for row in flag_table().speculation}
    for flag in flag_table().flags:
        if flag.config is None or settings.get(flag.setting) is None:
            continue
        asked, found = written[flag.setting], engine.value(flag.config)
        if flag.setting == "speculative_decoding_mode":
            same = found in (numbers[asked], asked, str(asked).upper())
        elif flag.setting == "kv_cache_type":
            same = str(found).rpartition(".")[2].lower() == asked
        elif flag.kind == "list":
            same = isinstance(found, list) and sorted(map(str, found)) == sorted(map(str, asked))
        else:
            same = found is not _ABSENT and found == asked
        if not same:
            shown = None if found is _ABSENT else found
            named = flag.key or flag.setting
            wished = settings[flag.setting]
            builder = "" if asked == wished else f" ({wished}, and what trtllm-build makes of it)"
            has = "no record of it" if shown is None else shown
            message = f"{named}: asked for {asked}{builder}, the engine has {has}"
            findings.append(Finding("TF-BLD-063", message, asked, shown))
    return findings


def _model_findings(engine: TrtllmEngine, checkpoint: Mapping[str, Any]) -> list[Finding]:
    model, findings = engine.config["pretrained_config"], []
    pairs = [(name, checkpoint[name], model.get(name)) for name in _MODEL if name in checkpoint]
    for section, keys in (
        ("mapping", ("world_size", "tp_size", "pp_size")),
        ("quantization", ("quant_algo", "kv_cache_quant_algo", "group_size")),
        ("eagle_net_config", ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")),
    ):
        asked, found = checkpoint.get(section) or {}, engine.section(section)
        pairs += [(f"{section}.{key}", asked[key], found.get(key)) for key in keys if key in asked]
    for name, asked, found in pairs:
        if asked != found:
            message = f"{name}: the checkpoint has {asked}, the engine {found}"
            findings.append(Finding("TF-BLD-064", message, asked, found))
    return findings

"""What trtllm-build is asked for: a recipe's settings, and the flags that a version has for them.

Policy: flags are rows of ``flags.yaml`` keyed by version; a version without rows is refused, never guessed. A
setting that changes the engine is always said, also where it is the default: defaults moved between versions.
What the builder changes of them by itself is in :mod:`builder.targets.trtllm.changes`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version
from pydantic import Field

from builder.targets.parts import longest_input
from builder.targets.trtllm.changes import Settings
from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import Row, read_table
from trtforge.recipe.schema import Build, Lookahead, Speculation
from trtforge.tables import Source


class Flag(Row):
    """One flag; see the head of flags.yaml."""

    flag: str = Field(pattern=r"^--[a-z0-9_]+$")
    setting: str
    kind: Literal["value", "list", "enable", "switch"]
    key: str | None
    config: str | None
    since: str | None = None
    removed: str | None = None
    note: str = ""

    def exists_in(self, version: str) -> bool:
        at = Version(version)
        return (self.since is None or at >= Version(self.since)) and (
            self.removed is None or at < Version(self.removed)
        )

    def arguments(self, value: Any) -> list[str]:
        """The command's words for ``value``; none for null and for a switch that is off."""
        if value is None or (self.kind == "switch" and not value):
            return []
        if self.kind == "switch":
            return [self.flag]
        if self.kind == "enable":
            return [self.flag, "enable" if value else "disable"]
        if self.kind == "list":
            return [self.flag, *map(str, value)]
        return [self.flag, str(value)]


class SpeculationMode(Row):
    """A method of the recipe as the command calls it."""

    method: str
    mode: str
    number: int


class FlagTable(Row):
    versions: tuple[str, ...] = Field(min_length=1)
    sources: tuple[Source, ...] = Field(min_length=1)
    flags: tuple[Flag, ...] = Field(min_length=1)
    speculation: tuple[SpeculationMode, ...]


@cache
def flag_table() -> FlagTable:
    return read_table(Path(__file__).with_name("flags.yaml"), FlagTable)


def flags_of(version: str) -> tuple[Flag, ...]:
    """The flags of a version.

    Raises:
        ForgeError: ``TF-BLD-040`` no rows are known for that version.
    """
    table = flag_table()
    if version not in table.versions:
        raise ForgeError(
            "TF-BLD-040",
            f"The flags of trtllm-build {version} are not known",
            asked=f"TensorRT-LLM {version}",
            numbers={"known": list(table.versions)},
            why="Flags and their defaults change between versions; a guess could build another engine than was asked.",
            remedies=["stack: trtllm-1.2.1", "build.target: trtllm-llmapi (later versions build no engines)"],
        )
    return tuple(flag for flag in table.flags if flag.exists_in(version))


def lookahead_draft_len(lookahead: Lookahead) -> int:
    """Draft tokens of a step of lookahead decoding with those sizes.

    Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/lookahead/README.md
    """
    window, ngram, verification = lookahead.window, lookahead.ngram, lookahead.verification
    return (0 if ngram == 1 else ngram - 2) + (window - 1 + verification) * (ngram - 1)


def settings_of(build: Build, speculation: Speculation, timing_cache: str | None = None) -> Settings:
    """Values by setting's name, defaults filled in; null where a feature is not used.

    Raises:
        ForgeError: ``TF-BLD-041`` the engine has no such speculation, ``TF-BLD-042`` its length is missing,
            ``TF-BLD-013`` a length that leaves no room for an answer.
    """
    limits, own = build.limits, build.trtllm
    longest = longest_input(limits)
    mode, draft_len = _speculation(speculation)
    return {
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": limits.max_seq_len,
        "max_input_len": longest,
        "max_beam_width": own.max_beam_width,
        "kv_cache_type": "paged",
        "tokens_per_block": build.kv_cache.block_size,
        "use_paged_context_fmha": own.paged_context_attention,
        "use_fp8_context_fmha": own.fp8_context_attention,
        "gather_context_logits": own.gather_context_logits,
        "gather_generation_logits": own.gather_generation_logits,
        "speculative_decoding_mode": mode,
        "max_draft_len": draft_len,
        "lora_plugin": None if own.lora is None else "auto",
        "lora_target_modules": None if own.lora is None else list(own.lora.target_modules),
        "max_lora_rank": None if own.lora is None else own.lora.max_rank,
        "workers": own.workers,
        "input_timing_cache": timing_cache,
    }


def _speculation(speculation: Speculation) -> tuple[str | None, int | None]:
    if speculation.method == "none":
        return None, None
    modes = {row.method: row.mode for row in flag_table().speculation}
    if speculation.method not in modes:
        raise ForgeError(
            "TF-BLD-041",
            f"An engine of TensorRT-LLM has no speculation {speculation.method}",
            asked=f"speculation.method: {speculation.method}",
            numbers={"methods": sorted(modes)},
            why="The engine is built for one of its own modes; n-gram drafts and EAGLE-3 exist on PyTorch only.",
            remedies=["build.target: trtllm-llmapi", "speculation.method: lookahead", "speculation.method: none"],
        )
    length = speculation.max_draft_len
    if length is None and speculation.choices is not None:
        length = len(speculation.choices)  # a node of the tree is a draft token
    if speculation.method == "lookahead":
        length = lookahead_draft_len(speculation.lookahead)
    if length is None:
        raise ForgeError(
            "TF-BLD-042",
            "speculation.max_draft_len is missing",
            asked=f"speculation.method: {speculation.method}",
            why="The engine is compiled for the number of draft tokens that a step verifies.",
            remedies=["speculation.max_draft_len: 4", "speculation.choices: the tree, one path a node"],
        )
    return modes[speculation.method], length


def build_arguments(version: str, settings: Settings) -> list[str]:
    """The words of trtllm-build after its directories."""
    return [word for flag in flags_of(version) for word in flag.arguments(settings.get(flag.setting))]

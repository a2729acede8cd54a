"""Preflight as tests drive it: a recipe as a mapping, facts as arguments."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

from tests.support.public_models import public
from triton_repo.parameters import load_parameters
from trtforge.cli.common import locate
from trtforge.formats.table import load_formats
from trtforge.machine.gpus import Gpu
from trtforge.models.record import Model
from trtforge.preflight import Surroundings
from trtforge.preflight.engine import Finding, Report, make_facts
from trtforge.preflight.run import run_rules
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.merge import deep_merge

FORMATS = {row.name: row for row in load_formats().formats}
KV_MODES = {row.name: row for row in load_formats().kv_modes}
#: 2 TiB of memory: nothing that a rule says about the host stands in the way
BIG = Surroundings(memory_total=2 << 40, memory_available=2 << 40, disk_free=20 << 40, cores=64)
#: a developer's machine
SMALL = Surroundings(memory_total=24 << 30, memory_available=20 << 30, disk_free=100 << 30, cores=2)
H100 = Gpu("NVIDIA H100 80GB HBM3", 81_559 * 2**20, "sm_90")
L4 = Gpu("NVIDIA L4", 23_034 * 2**20, "sm_89")
SMOL = public("HuggingFaceTB/SmolLM2-135M-Instruct")


def choices(model: type, key: str) -> tuple[str, ...]:
    """The values that a recipe's key takes."""
    return typing.get_args(model.model_fields[key].annotation)


def report(
    settings: dict[str, Any],
    *,
    model: Model | None = SMOL,
    machine: Surroundings | None = SMALL,
    directory: Path | str = ".",
) -> Report:
    """Preflight of ``settings`` over the least recipe."""
    base: dict[str, Any] = {"name": "x", "model": {"source": "pypi:x==1#x.gguf"}}
    loaded = recipe_from_mapping(deep_merge(base, settings), directory)
    rows = load_parameters(loaded.recipe.triton.layout).rows
    facts = make_facts(
        loaded,
        model=model,
        formats=FORMATS,
        kv_modes=KV_MODES,
        machine=machine,
        locate=locate,
        parameters={row.name: row for row in rows if "tensorrt_llm" in row.models},
    )
    return run_rules(facts)


def codes(settings: dict[str, Any], **facts: Any) -> set[str]:
    """The codes that preflight finds."""
    return {finding.code for finding in report(settings, **facts).findings}


def only(code: str, settings: dict[str, Any], **facts: Any) -> Finding:
    """The one finding of ``code``."""
    found = [finding for finding in report(settings, **facts).findings if finding.code == code]
    assert len(found) == 1, [finding.message for finding in found]
    return found[0]

"""Every rule's cases that settings, a model's record and a machine show: one that breaks it, one that does not."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.trtforge.preflight.settings import Case

#: of every ``cases_*.py`` that lies here
CASES: dict[str, tuple[Case, Case]] = {
    code: cases
    for file in sorted(Path(__file__).parent.glob("cases_*.py"))
    for code, cases in import_module(f"{__package__}.{file.stem}").CASES.items()
}

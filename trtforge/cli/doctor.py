"""``trtforge doctor``: what this machine has and lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtforge.cli import common
from trtforge.cli.common import StoreOption
from trtforge.ground.errors import ExitCode

if TYPE_CHECKING:
    from trtforge.ground.console import Console


@common.forge_command
def doctor(console: Console, store: StoreOption = None) -> None:
    """Look at this machine: what each target needs to build and to run, what is there, what to install."""
    from trtforge.examination.doctor import examine
    from trtforge.preflight import look
    from trtforge.store.store import default_root

    diagnosis = examine(look(default_root(store)), _server)
    console.result(diagnosis.to_json())
    if diagnosis.packages:
        console.print(f"apt-get install {' '.join(diagnosis.packages)}\n")
    console.table(
        "This machine",
        ["what", "state", "found", "remedy"],
        [[item.name, item.status, item.detail, item.remedy if item.status != "ok" else ""] for item in diagnosis.items],
    )
    console.table(
        "Targets",
        ["target", "verdict", "lacks to build", "lacks to run"],
        [
            [verdict.target, verdict.words, ", ".join(verdict.lacks_to_build), ", ".join(verdict.lacks_to_run)]
            for verdict in diagnosis.verdicts
        ],
    )
    for verdict in diagnosis.verdicts:
        if verdict.lacks:
            console.print(f"{verdict.target}: {'; '.join(verdict.install)}")
            if verdict.container:
                console.print(f"  all but the driver is in {verdict.container}")
    console.value("ready" if diagnosis.ready else "not ready")
    if not diagnosis.ready:
        raise common.Failed(ExitCode.ENVIRONMENT)


def _server() -> tuple[str | None, str]:
    from launcher.installation import find_installation

    found = find_installation()
    return found.version, "the nvidia-pytriton wheel" if found.kind == "wheel" else str(found.binary)

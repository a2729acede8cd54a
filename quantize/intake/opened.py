"""A checkpoint opened for the audit: a folder, or a Hub model by ranges where it is not downloaded."""

from __future__ import annotations

from pathlib import Path

from quantize.audit import checkpoint_folder
from quantize.forensics.files import Files
from quantize.intake.api import default_cache_dir
from quantize.intake.hub import cached_snapshot
from quantize.intake.hub_headers import open_hub
from quantize.intake.source import parse_source
from trtforge.ground.progress import Progress


def open_files(asked: str, progress: Progress, cache: Path | None = None) -> Files:
    """The files of a folder, of the folder of a config.json, or of ``hf:ORG/NAME[@REVISION]``.

    Raises:
        ForgeError: ``TF-AUD-001`` no such folder, and what :func:`~quantize.intake.hub_headers.open_hub` raises.
    """
    if asked.startswith("hf:"):
        source = parse_source(asked, Path.cwd())
        whole = cached_snapshot(source)
        if whole is not None:
            return Files(whole, asked)
        found = open_hub(source, cache or default_cache_dir(), progress)
        return Files(found.path, asked, found)
    return Files(checkpoint_folder(Path(asked).expanduser()))

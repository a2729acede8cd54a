"""TensorRT's headers for tests, and how tests download what is pinned by hash into the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from trtforge.native.cache import cache_folder

#: a wheel of another project that carries TensorRT 10.14.1's headers (Apache-2.0); used for nothing else
HEADERS = ("kernel-lens==2.0.1", "07cc714e8b5e7f34b672f7c7fad93febe7c747be5837ba276b1527370134ffe0")
HEADER_FOLDER = "kernel_lens/include/tensorrt/"
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def downloads() -> Path:
    folder = cache_folder() / "test-downloads"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pip(folder: Path, command: list[str], pins: dict[str, str]) -> None:
    """Run pip with requirements that are pinned by hash; skip the tests when nothing can be fetched."""
    requirements = folder / f"requirements-{os.getpid()}.txt"
    requirements.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in pins.items()))
    try:
        done = subprocess.run(
            [*_PIP, *command, "--no-deps", "--require-hashes", "-r", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        requirements.unlink()
    if "DO NOT MATCH" in done.stderr:
        pytest.fail(f"a download is not the pinned one: {done.stderr}")
    if done.returncode:
        pytest.skip(f"{', '.join(pins)} cannot be downloaded: {done.stderr.strip().splitlines()[-1:]}")


def tensorrt_headers() -> Path:
    """The folder with TensorRT's headers; skips the test where they cannot be downloaded."""
    folder = downloads()
    target = folder / "tensorrt-headers-10.14.1"
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            pip(folder, ["download", "-d", str(folder)], dict([HEADERS]))
            wheel = next(folder.glob("kernel_lens-2.0.1-*.whl"))
            assert hashlib.sha256(wheel.read_bytes()).hexdigest() == HEADERS[1]
            partial = folder / f".headers-{os.getpid()}"
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith(HEADER_FOLDER) and name.endswith(".h"):
                        partial.mkdir(exist_ok=True)
                        (partial / Path(name).name).write_bytes(archive.read(name))
            partial.rename(target)
            wheel.unlink()
    return target

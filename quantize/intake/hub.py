"""Checkpoints from the Hugging Face Hub: safetensors, tokenizer and configuration of one commit.

Policy: pickle weights are not even downloaded, Python files only where the recipe allows remote code. The Hub's own
cache is used, so a model that another tool fetched is not fetched again and an interrupted download resumes; its
links are turned into files when the checkpoint is written. Without a connection a cached commit is used; else the
refusal says so (``TF-SRC-019``). Names that the Hub does not know, or does not show, are ``TF-SRC-020``.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

from quantize.intake.disk import system_answers
from quantize.intake.source import Source
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.paths import user_path
from trtforge.ground.progress import Progress
from trtforge.ground.safetensors_header import weight_files

PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja")
#: beside the model on some repositories: the same weights in another layout
IGNORED = ("consolidated*.safetensors", "original/*", "onnx/*", "*/*")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


def hub_cache() -> Path:
    """The Hub's cache folder, by the rules of huggingface_hub, without importing it."""
    if "HF_HUB_CACHE" in os.environ:
        return user_path(os.environ["HF_HUB_CACHE"], code="TF-SRC-031", asked="HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface")
    return user_path(home, code="TF-SRC-031", asked="HF_HOME") / "hub"


def _entry(source: Source) -> Path:
    return hub_cache() / f"models--{source.repo.replace('/', '--')}"


def cached_commit(source: Source) -> str | None:
    """The commit that the cache knows for the source's revision."""
    revision = source.revision or "main"
    if _COMMIT.match(revision):
        return revision
    try:
        return (_entry(source) / "refs" / revision).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def cached_snapshot(source: Source) -> Path | None:
    """The folder of the source's commit in the cache, when it is complete."""
    commit = cached_commit(source)
    folder = _entry(source) / "snapshots" / commit if commit else None
    if folder is None or not all((folder / name).exists() for name in ("config.json", "tokenizer.json")):
        return None
    try:
        return folder if weight_files(folder) else None
    except ForgeError as error:
        if error.code == "TF-SRC-006":
            return None  # shards that are still to come
        raise


def resolve_commit(source: Source) -> str | None:
    """The commit behind the source's revision: asked from the Hub, else from the cache, else ``None``."""
    if source.revision and _COMMIT.match(source.revision):
        return source.revision
    if not offline():
        try:
            from huggingface_hub import HfApi

            return str(HfApi().model_info(source.repo, revision=source.revision, timeout=5.0).sha)
        except Exception:  # no connection, no such name: the fetch itself will say which
            return cached_commit(source)
    return cached_commit(source)


def offline() -> bool:
    """Whether the user asked to stay off the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def download_snapshot(source: Source, *, allow_remote_code: bool, progress: Progress) -> tuple[Path, str]:
    """The folder of the source's files in the Hub's cache, and its commit."""
    hub = hub_library(source)
    patterns = [*PATTERNS, "*.py"] if allow_remote_code else list(PATTERNS)
    progress.start(f"Downloading {source.repo} from the Hugging Face Hub")
    arguments: dict[str, Any] = {
        "revision": source.revision,
        "allow_patterns": patterns,
        "ignore_patterns": list(IGNORED),
        "cache_dir": hub_cache(),
        "tqdm_class": _bar(progress, source.repo),
    }
    with system_answers(hub_cache(), f"downloading {source.repo}"):
        try:
            folder = Path(hub.snapshot_download(source.repo, **arguments))
        except Exception as error:
            raise refusal(source, error) from None
    return folder, folder.name


def hub_library(source: Source) -> Any:
    """huggingface_hub; ``TF-SRC-027`` where it is not installed."""
    try:
        import huggingface_hub
    except ImportError:
        raise EnvironmentLacks(
            "TF-SRC-027",
            "an hf: source needs the package huggingface_hub",
            asked=source.text,
            remedies=["pip install 'trtforge[quantize]'", "pip install huggingface_hub"],
        ) from None
    return huggingface_hub


def _bar(progress: Progress, repo: str) -> Any:
    """A tqdm class that feeds the file count to our progress and prints nothing."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            total = kwargs.get("total")
            self._counts_files = kwargs.get("unit", "it") == "it"
            if self._counts_files:
                progress.start(f"Downloading {repo}", total)
            kwargs.update(disable=True)
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> Any:
            if self._counts_files and n:
                progress.advance(n)
            return super().update(n)

    return Bar


def refusal(source: Source, error: Exception) -> ForgeError:
    """What an error of the Hub's library or of its transport means to the user; a bug is raised again as it is."""
    from huggingface_hub import errors

    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, errors.GatedRepoError):
        return ForgeError(
            "TF-SRC-020",
            f"{source.repo} is gated: its publisher asks for an agreement first",
            asked=source.text,
            why=first_line,
            remedies=[f"accept the terms on https://huggingface.co/{source.repo} and log in: hf auth login"],
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError):
        what = "revision" if isinstance(error, errors.RevisionNotFoundError) else "model"
        return ForgeError(
            "TF-SRC-020",
            f"the Hugging Face Hub has no such {what}: {source.text.removeprefix('hf:')}",
            asked=source.text,
            why=first_line,
            remedies=["correct the name (org/name[@revision])", "log in if the model is private: hf auth login"],
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None and error.response.status_code < 500:
        return ForgeError(
            "TF-SRC-020",
            f"the Hugging Face Hub refused {source.repo}",
            asked=source.text,
            numbers={"status": error.response.status_code},
            why=first_line,
            remedies=["log in: hf auth login", "correct the name (org/name[@revision])"],
        )
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        raise error  # the disk's own answer: the caller names it
    transport = type(error).__module__.split(".")[0] in ("httpx", "httpcore", "requests", "urllib3")
    if not (transport or isinstance(error, OSError | errors.HfHubHTTPError)):
        raise error  # nothing that a connection explains: a bug, shown as one
    return EnvironmentLacks(
        "TF-SRC-019",
        "the Hugging Face Hub cannot be reached",
        asked=source.text,
        numbers={"offline_mode": offline()},
        why=f"The model is not complete in the cache ({hub_cache()}): {first_line}",
        remedies=[
            "connect to the network (unset HF_HUB_OFFLINE), or set HF_ENDPOINT to a mirror that can be reached",
            "copy the checkpoint here and name its directory as the source",
        ],
    )

"""A live Triton server over an engine and a repository of the store, for smoke test and benchmark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtforge.ground.files import copy_tree, remove_tree
from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.repository import REPOSITORY_DIR

#: distributions whose versions decide what a live server does
TOOLS = ("nvidia-pytriton", "tritonclient", "torch", "tokenizers", "numpy")
LOG_FILE = "tritonserver.log"


def assemble(context: StageContext) -> Path:
    """Lay engine and repository out as a bundle does, in the scratch folder; returns that folder.

    The repository is copied (a model finds its engine relative to its own real path), the engine is
    linked.
    """
    folder = context.scratch / "bundle"
    remove_tree(folder)
    folder.mkdir(parents=True)
    copy_tree(context.inputs["repository"].path / REPOSITORY_DIR, folder / "repository")
    (folder / "engine").symlink_to(context.inputs["build"].path, target_is_directory=True)
    return folder


@contextlib.contextmanager
def live_server(context: StageContext, log_path: Path) -> Iterator[Any]:
    """A :class:`launcher.local.TritonServer` on free ports that is ready to answer; drained at the end.

    Raises:
        EnvironmentLacks: no server is installed.
        ForgeError: the server does not start (its log's reason is in ``why``).
    """
    from launcher.local import TritonServer

    folder = assemble(context)
    context.progress.start("starting the Triton server")
    try:
        with TritonServer(folder / "repository", log_path=log_path) as server:
            yield server
    finally:
        remove_tree(folder)

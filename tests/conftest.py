"""Fixtures that several packages' tests share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock
from hypothesis import settings

from tests.support.tiny import write_tiny_llama

# No deadlines: a loaded machine is no fault of the code. Continuous integration draws the same examples each
# time, so that a red run is a change's fault; developers' runs keep looking for new ones.
settings.register_profile("developer", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "developer")

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that: tests that interrupt a process
# would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: what starts servers and watches processes: one after the other on one worker, never two at once
ALONE = (
    "tests/e2e/test_foreign_clients.py",
    "tests/e2e/test_live_server.py",
    "tests/e2e/test_openai_front.py",
    "tests/e2e/test_openai_front_trtllm.py",
    "tests/e2e/test_tritons_openai_frontend.py",
    "tests/e2e/test_serving_keys.py",
    "tests/e2e/test_speculation_served.py",
    "tests/e2e/test_tiny_pipeline.py",
    "tests/faults/",
    "tests/launcher/",
    "tests/triton_repo/test_lint_against_server.py",
    "tests/triton_repo/test_served_",
)
#: files and folders of tests that take long, the longest first: what takes seconds fills the workers at the end
LONG = (
    "tests/e2e/",
    "tests/families/",
    "tests/plugins/",
    "tests/trtforge/cli/test_plan",
    "tests/quantize/",
    "tests/runtime/",
)
#: memory that a worker may come to need: torch, transformers and a process or two beside it
WORKER_BYTES = 4 * 2**30


def group_of(nodeid: str) -> str:
    """What runs on one worker: a file, so that its fixtures are made once, or everything in :data:`ALONE`."""
    return "alone" if nodeid.startswith(ALONE) else nodeid.split("::", 1)[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Workers collect one after the other: the first rewrites the assertions, the others find that done on the disk."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    build = session.config.rootpath / "build"
    build.mkdir(exist_ok=True)
    with FileLock(build / "collection.lock"):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest group begins first, then whole runs, then what else takes long."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        ranks = (rank for rank, start in enumerate(LONG) if item.nodeid.startswith(start))
        return group_of(item.nodeid) != "alone", next(ranks, len(LONG))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker a core that this process may use, and one: whoever has :data:`ALONE` waits for servers half of the time.

    As far as the memory goes.
    """
    return max(1, min(len(os.sched_getaffinity(0)) + 1, psutil.virtual_memory().total // WORKER_BYTES))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out groups, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama-family checkpoint of a few hundred kB; read only."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def tiny_engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint's engine for the torch target; read only."""
    from builder.graphs.build import build_graph
    from tests.support.engines import build_engine
    from trtforge.recipe.schema import Build

    folder = tmp_path_factory.mktemp("tiny-engine")
    build_graph(tiny_checkpoint, folder / "graph", block_size=16)
    build = Build.model_validate(
        {
            "limits": {"max_batch_size": 16, "max_num_tokens": 512, "max_seq_len": 1024},
            "kv_cache": {"block_size": 16, "memory": "16MiB"},
        }
    )
    build_engine(folder / "graph", folder / "engine", name="tiny", build=build)
    return folder / "engine"

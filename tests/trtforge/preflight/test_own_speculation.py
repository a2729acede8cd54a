"""Bad speculation on trtforge's own runtime is refused before anything is built, each by its code."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from builder.speculation import tree_of
from tests.support.preflight import SMOL, codes, only
from tests.support.sources import ROOT
from tests.trtforge.drafting import checkpoints
from tests.trtforge.preflight.settings import GPU, RTX, build, merged, speculation, trtllm
from trtforge.drafting.record import DynamicTree
from trtforge.recipe.load import load_recipe

HEAD = {"method": "eagle3", "draft": "draft", "max_draft_len": 4}


@pytest.mark.parametrize("target", [{}, GPU], ids=["torch", "tensorrt"])
@pytest.mark.parametrize(
    ("keys", "more", "code"),
    [
        ({"choices": [[0], [1, 0]]}, {}, "TF-K12-011"),
        ({"choices": [[0], [0, 0], [0, 0, 0]], "max_draft_len": 2}, {}, "TF-K12-012"),
        ({"choices": [[i] for i in range(16)] + [[0, i] for i in range(16)], "max_draft_len": 17}, {}, None),
        ({"choices": [[16]] + [[i] for i in range(16)]}, {}, "TF-K12-032"),
        ({"choices": [[0] * size for size in range(1, 18)], "max_draft_len": 17}, {}, "TF-K12-032"),
        ({"max_draft_len": 64}, {}, "TF-K12-032"),
        ({"max_draft_len": 40}, build(limits={"max_num_tokens": 32, "max_batch_size": 4}), "TF-K12-033"),
        ({}, trtllm(max_beam_width=2), "TF-K12-003"),
        ({"method": "medusa"}, {}, "TF-K12-001"),
        ({"method": "eagle"}, {}, "TF-K12-001"),
        ({"method": "lookahead"}, {}, "TF-K12-001"),
        ({"draft": None}, {}, "TF-K12-004"),
        ({"draft": "nowhere"}, {}, "TF-K12-005"),
        ({"max_draft_len": None}, {}, "TF-K12-009"),
        ({"heads": 4}, {}, "TF-K9-010"),
        ({"ngram": {"max_matching_ngram_size": 3}}, {}, "TF-K12-031"),
        ({"method": "ngram", "draft": None, "ngram_on_top": True}, {}, "TF-K12-030"),
        ({"method": "draft_target", "dynamic_tree": {"depth": 4, "top_k": 2, "total": 8}}, {}, "TF-K12-030"),
    ],
)
def test_settings(
    tmp_path: Path, target: dict[str, Any], keys: dict[str, Any], more: dict[str, Any], code: str | None
) -> None:
    checkpoints.write(tmp_path / "draft", checkpoints.Spec("specforge"))
    asked = merged(target, speculation(**{**HEAD, **keys}), more)
    found = codes(asked, directory=tmp_path, model=SMOL)
    assert (code in found) if code else not {c for c in found if c in ("TF-K12-011", "TF-K12-012", "TF-K12-032")}


def test_keys_of_a_base_recipe_are_no_error_where_nothing_drafts() -> None:
    found = codes(speculation(method="none", adaptive=False, ngram={"max_matching_ngram_size": 4}))
    assert "TF-K12-030" not in found and "TF-K9-010" in found


def test_the_tree_that_the_documentation_measures_is_had_from_the_shipped_recipe() -> None:
    text = (ROOT / "docs" / "speculation.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^trtforge speculate measure .*?(?=\n```)", text, re.MULTILINE | re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    changes = [value for option, value in pairwise(words) if option == "--set"]
    recipe = load_recipe(ROOT / words[3], changes).recipe
    assert tree_of(recipe.speculation) == DynamicTree(depth=6, top_k=10, total=60)
    assert not recipe.speculation.ngram_on_top and recipe.speculation.max_draft_len == 6
    asked = {"speculation": recipe.speculation.model_dump(mode="json", exclude_unset=True)}
    assert not {code for code in codes(asked, directory=ROOT / "configs") if code.startswith("TF-K12")}


def test_rtx_engines_draft_nothing() -> None:
    assert "TF-K12-001" in codes(merged(RTX, speculation(method="ngram", max_draft_len=4)))


def test_the_pool_holds_the_draft_too(tmp_path: Path) -> None:
    """A pool for one request of the model alone is too small when a draft has its part of every block."""
    checkpoints.write(tmp_path / "draft", checkpoints.Spec("speculators", layers=2))
    # 30 layers of 3 heads of 64 in bfloat16: 23,040 bytes a token; the head's two layers of 2 heads of 8: 128
    room = 2048 * 23_040
    asked = merged(build(kv_cache={"memory": f"{room}B"}, limits={"max_seq_len": 2048}))
    assert "TF-K10-001" not in codes(asked, model=SMOL)
    finding = only("TF-K10-001", merged(asked, speculation(**HEAD)), directory=tmp_path, model=SMOL)
    assert finding.numbers["bytes_per_token"] == 23_040 + 128
    fits = build(kv_cache={"memory": f"{2048 * (23_040 + 128)}B"})
    assert "TF-K10-001" not in codes(merged(asked, speculation(**HEAD), fits), directory=tmp_path, model=SMOL)
    # TensorRT-LLM's memory is not ours to count
    other = merged(asked, speculation(**HEAD), build(target="trtllm-llmapi", architectures=["sm_90"]))
    assert "TF-K10-001" not in codes(other, directory=tmp_path, model=SMOL)

"""An EAGLE-3 head in a plan: its bytes, its cache, its pass, and the lengths that pay; worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.planner.drafts import eagle3_facts, eagle3_from_folder
from builder.planner.hardware import gpu
from builder.planner.memory import plan_memory
from builder.planner.speculation import Speculating, expected_tokens, expected_tokens_of_tree, grown_tree
from builder.planner.speed.ops import Linear, ops_of_model
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import drafting_time
from builder.planner.types import Beside, ParallelPlan, Precision, Serving
from builder.planner.weights import groups_from_facts, groups_from_shapes
from tests.builder.planner.models import known
from tests.support.tiny import write_tiny_llama
from tests.trtforge.drafting import checkpoints
from tests.trtforge.drafting.checkpoints import Spec
from trtforge.drafting.description import Eagle3, Rope
from trtforge.models.kv import kv_bytes_per_token

#: a head of one layer for SmolLM2-135M: width 576, three taps, draft vocabulary 4,096
HEAD = Eagle3(576, 576, 1, 9, 3, 64, 1536, 49152, 4096, 1e-5, "silu", None, 3, Rope(10000.0))


def test_a_heads_weights_by_hand() -> None:
    facts = eagle3_facts(HEAD, "head")
    shapes = {**HEAD.shapes(), "lm_head.weight": (4096, 576), "embed_tokens.weight": (49152, 576)}
    fc, norms = 576 * 3 * 576, 4 * 576
    attention = (576 + 192 + 192) * 2 * 576 + 576 * 576
    total = fc + norms + attention + 3 * 576 * 1536 + 4096 * 576 + 49152 * 576
    groups = groups_from_shapes(shapes, facts)
    assert sum(group.bytes for group in groups) == 2 * total == 71_520_768
    assert {group.part for group in groups} == {"embedding", "attention", "mlp", "norms", "head"}


def test_a_heads_cache_is_one_layer_of_its_own_format() -> None:
    facts, target = eagle3_facts(HEAD, "head"), known("meta-llama/Meta-Llama-3.1-8B")
    assert kv_bytes_per_token(facts.kv, "bfloat16") == 2 * 3 * 64 * 2 == 768
    weights, serving = groups_from_facts(target), Serving(4, 2048, 4096)

    def per_token(**options: object) -> int:
        precision = Precision("fp8", "bfloat16", "fp8")
        given = replace(serving, **options)
        (plan,) = plan_memory(target, weights, precision, ParallelPlan(), given, gpu("h200"), Beside(facts))
        return plan.pool.bytes_per_token

    alone = kv_bytes_per_token(target.kv, "fp8")
    assert per_token() - alone == 384
    assert per_token(draft_kv="bfloat16") - alone == 768


def test_a_heads_pass_reads_twice_its_width_and_its_taps() -> None:
    linears = {op.name: op for op in ops_of_model(eagle3_facts(HEAD, "head"), Precision()) if isinstance(op, Linear)}
    assert (linears["fc"].n, linears["fc"].k) == (576, 1728)
    assert linears["model.layers.*.self_attn.q_proj"].k == 1152
    assert linears["model.layers.*.self_attn.o_proj"].k == 576
    assert linears["lm_head"].n == 4096
    deep = ops_of_model(eagle3_facts(replace(HEAD, layers=3), "head"), Precision())
    widths = [(op.k, op.count) for op in deep if isinstance(op, Linear) and op.name.endswith("q_proj")]
    assert widths == [(1152, 1), (576, 2)]


def test_a_head_costs_a_small_part_of_its_target() -> None:
    llama = known("meta-llama/Meta-Llama-3.1-8B")
    head = replace(HEAD, hidden_size=4096, target_hidden_size=4096, heads=32, kv_heads=8, head_size=128)
    head = replace(head, intermediate_size=14336, vocab_size=128256, draft_vocab_size=32000)
    target = Engine(llama, Precision(), gpu("h200"), ParallelPlan())
    draft = Engine(eagle3_facts(head, "head"), Precision(), gpu("h200"), ParallelPlan())
    chain = Speculating("eagle3", 1, (0.7, 0.7))
    step = drafting_time(target, 1, 1024, replace(chain, draft_cost=1.0))[1]
    share = drafting_time(target, 1, 1024, chain, draft)[1] / step
    # 0.43 billion weights that are read of 8.0
    assert 0.04 < float(share) < 0.08


@pytest.mark.parametrize("dialect", ("specforge", "speculators", "modelopt", "tensorrt-llm"))
def test_a_head_of_any_dialect_is_read_from_its_folder(tmp_path: Path, dialect: str) -> None:
    folder = checkpoints.write(tmp_path / "head", Spec(dialect))
    found = eagle3_from_folder(folder)
    assert found is not None and found.measured
    facts = found.facts
    assert (facts.layers, facts.hidden, facts.vocab) == (1, checkpoints.WIDTH, checkpoints.DRAFT_VOCAB)
    assert facts.joined == 3 * checkpoints.WIDTH
    by_name = {group.pattern: group.shape for group in found.groups}
    assert by_name["fc.weight"] == (checkpoints.WIDTH, 3 * checkpoints.WIDTH)
    assert by_name["embed_tokens.weight"] == (checkpoints.VOCAB, checkpoints.WIDTH)


def test_a_model_is_no_head(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model")
    assert eagle3_from_folder(tmp_path / "model") is None


def test_a_dynamic_tree_grows_its_likeliest_nodes() -> None:
    tree = grown_tree(0.6, depth=3, top_k=2, total=5)
    # 0.6, 0.36, 0.24, 0.216 and 0.144 (twice: the first child of rank 1, the second child of rank 0)
    assert tree[:4] == ((0,), (0, 0), (1,), (0, 0, 0))
    assert tree[4] in ((0, 1), (1, 0))
    assert expected_tokens_of_tree(tree, [0.6, 0.24]) == pytest.approx(1 + 0.6 + 0.36 + 0.24 + 0.216 + 0.144)
    assert grown_tree(0.6, depth=2, top_k=1, total=9) == ((0,), (0, 0))


def test_a_tree_of_one_candidate_is_a_chain() -> None:
    tree = grown_tree(0.7, depth=4, top_k=1, total=4)
    assert expected_tokens_of_tree(tree, [0.7]) == pytest.approx(expected_tokens(0.7, 4))

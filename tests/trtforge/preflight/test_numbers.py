"""The arithmetic behind the rules: what they accept is exactly what works, and the remedies they compute do work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.preflight import BIG, H100, SMOL, codes, only, report
from tests.support.public_models import public
from tests.trtforge.preflight.settings import (
    API,
    ENGINE,
    LLAMA_8B,
    LLAMA_70B,
    QWEN_72B,
    build,
    merged,
    quant,
    speculation,
)
from trtforge.models.kv import fullest_stage, kv_bytes_per_token
from trtforge.models.shape import (
    linears,
    matches,
    quantized_linears,
)
from trtforge.preflight.rules.groups import padded, width
from trtforge.preflight.rules.heads import tp_works
from trtforge.preflight.rules.trees import lookahead_draft_len, tree_problem

TREES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=12)


def with_prefixes(paths: list[list[int]]) -> list[list[int]]:
    """The smallest sound tree that holds every path."""
    nodes = {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    return [list(node) for node in sorted(nodes)]


class TestGroups:
    @pytest.mark.parametrize("target", ["torch", "tensorrt-rtx"])
    def test_a_sequence_of_one_token_is_refused_as_the_build_refuses_it(self, target: str) -> None:
        one = only("TF-K9-002", build(target=target, limits={"max_seq_len": 1}))
        assert one.numbers == {"max_seq_len": 1, "least": 2}
        assert "TF-K9-002" not in codes(build(target=target, limits={"max_seq_len": 2}))

    def test_qwen_72b_awq_over_four_ranks(self) -> None:
        """29,568 / 4 = 7,392 is a multiple neither of 128 nor of 64."""
        asked = merged(quant(format="int4_awq"), build(target="tensorrt", parallel={"tp": 4}))
        finding = only("TF-K4-001", asked, model=QWEN_72B, machine=BIG)
        assert finding.numbers["linears"] == {"down_proj": {"K": 29_568, "K_per_rank": 7392.0, "remainder": 96.0}}
        assert finding.numbers["padded_K"] == {"down_proj": 29_696}
        pairs = finding.numbers["works_tp_group"]
        assert [1, 128] in pairs
        assert [4, 32] in pairs
        assert [4, 64] not in pairs
        assert "quantize.group_size: 32" in finding.remedies

    def test_pairs_without_a_kernel_are_not_offered(self) -> None:
        """TensorRT-LLM has groups of 64 and 128 only."""
        asked = merged(ENGINE, quant(format="int4_awq"), build(parallel={"tp": 4}))
        pairs = only("TF-K4-001", asked, model=QWEN_72B, machine=BIG).numbers["works_tp_group"]
        assert pairs == [[1, 64], [1, 128], [2, 64]]

    def test_the_pairs_respect_the_heads(self) -> None:
        finding = only("TF-K4-001", quant(format="int4_awq"))
        assert all(ranks == 1 for ranks, _ in finding.numbers["works_tp_group"])

    def test_excluded_linears_need_not_divide(self) -> None:
        model = replace(SMOL, ffn=1500)
        assert "TF-K4-001" in codes(quant(format="int4_awq", group_size=64), model=model)
        asked = quant(format="int4_awq", group_size=64, exclude=["lm_head", "down_proj"])
        assert "TF-K4-001" not in codes(asked, model=model)

    @settings(max_examples=40)
    @given(hidden=st.integers(1, 40), ffn=st.integers(1, 40), group=st.sampled_from([32, 64, 128]))
    def test_the_rule_accepts_exactly_whole_groups(self, hidden: int, ffn: int, group: int) -> None:
        model = replace(SMOL, hidden=hidden * 32, ffn=ffn * 32, heads=4, head_size=64)
        whole = (hidden * 32) % group == 0 and (ffn * 32) % group == 0 and 256 % group == 0
        assert ("TF-K4-001" not in codes(quant(format="int4_awq", group_size=group), model=model)) == whole

    @settings(max_examples=40)
    @given(ffn=st.integers(1, 500), tp=st.sampled_from([1, 2, 4, 8]), group=st.sampled_from([16, 32, 64, 128]))
    def test_the_padding_works_and_none_below_does(self, ffn: int, tp: int, group: int) -> None:
        down = next(item for item in linears(replace(SMOL, ffn=ffn * 8)) if item.kind == "down_proj")
        size = padded(down, tp, group)
        assert width(replace(down, columns=size), tp) % group == 0
        assert size >= down.columns
        assert size - down.columns < group * tp

    @settings(max_examples=40, deadline=None)
    @given(ffn=st.integers(8, 400).map(lambda number: number * 32), tp=st.sampled_from([1, 2, 4, 8]))
    def test_every_pair_that_is_offered_passes(self, ffn: int, tp: int) -> None:
        model = replace(LLAMA_8B, ffn=ffn)
        asked = merged(ENGINE, quant(format="int4_awq"), build(parallel={"tp": tp}))
        for finding in report(asked, model=model, machine=BIG).findings:
            if finding.code == "TF-K4-001":
                for ranks, group in finding.numbers["works_tp_group"]:
                    tried = merged(asked, quant(group_size=group), build(parallel={"tp": ranks}))
                    assert not {"TF-K4-001", "TF-K4-003", "TF-K5-004"} & codes(tried, model=model, machine=BIG)


class TestTiles:
    def test_the_ranks_that_are_offered_fill_the_tiles(self) -> None:
        """Qwen1.5-1.8B: 5504 / 16 = 344 is no multiple of 16."""
        asked = merged(ENGINE, quant(format="fp8"), build(parallel={"tp": 16}))
        finding = only("TF-K4-004", asked, model=public("Qwen/Qwen1.5-1.8B-Chat"), machine=BIG)
        assert finding.numbers["works_tp"] == [1, 2, 4, 8]
        assert finding.numbers["padded"]["down_proj"] == {"K": 5632, "N": 2048}

    @settings(max_examples=40, deadline=None)
    @given(ffn=st.integers(1, 200).map(lambda number: number * 16), tp=st.sampled_from([1, 2, 4, 8]))
    def test_the_rule_accepts_exactly_whole_tiles(self, ffn: int, tp: int) -> None:
        model = replace(LLAMA_8B, ffn=ffn)
        asked = merged(ENGINE, quant(format="fp8"), build(parallel={"tp": tp}))
        found = codes(asked, model=model, machine=BIG)
        assert ("TF-K4-004" in found) == (ffn % tp == 0 and (ffn // tp) % 16 != 0)


class TestHeads:
    @settings(max_examples=60)
    @given(heads=st.integers(1, 64), kv=st.integers(1, 64), tp=st.integers(1, 16))
    def test_head_rules_accept_exactly_what_can_be_split(self, heads: int, kv: int, tp: int) -> None:
        found = codes(build(target="tensorrt", parallel={"tp": tp}), model=replace(SMOL, heads=heads, kv_heads=kv))
        assert ("TF-K5-001" in found) == (heads % tp != 0)
        assert ("TF-K5-002" in found) == (kv % tp != 0 and tp % kv != 0)

    @settings(max_examples=60)
    @given(heads=st.integers(1, 64), kv=st.integers(1, 16), ffn=st.integers(1, 64))
    def test_every_number_of_ranks_that_works_passes(self, heads: int, kv: int, ffn: int) -> None:
        model = replace(SMOL, heads=heads, kv_heads=kv, ffn=ffn * 64)
        assert 1 in tp_works(model)
        for tp in tp_works(model)[:6]:
            found = codes(build(target="tensorrt", parallel={"tp": tp}), model=model)
            assert not {"TF-K5-001", "TF-K5-002", "TF-K5-004"} & found

    def test_28_heads_over_8_ranks(self) -> None:
        finding = only(
            "TF-K5-001", build(target="tensorrt", parallel={"tp": 8}), model=public("Qwen/Qwen2.5-7B-Instruct")
        )
        assert finding.numbers["works"] == [1, 2, 4], "18,944 does not split over 28"
        assert finding.remedies[0] == "build.parallel.tp: 4"


class TestMemory:
    def test_the_least_pool_is_enough_and_less_is_not(self) -> None:
        least = only("TF-K10-001", build(kv_cache={"memory": "1MiB"})).numbers["least_bytes"]
        assert least == 2048 * 2 * 30 * 3 * 64 * 2
        assert "TF-K10-001" not in codes(build(kv_cache={"memory": f"{least}B"}))
        assert "TF-K10-001" in codes(build(kv_cache={"memory": f"{least - 1}B"}))
        rtx = build(target="tensorrt-rtx", architectures=["sm_89"], kv_cache={"memory": "1MiB"})
        assert not {"TF-K10-001", "TF-K10-004"} & set(codes(rtx)), "an RTX engine has no pool"

    def test_an_fp8_cache_holds_twice_as_much(self) -> None:
        plain = only("TF-K10-001", build(kv_cache={"memory": "10MiB"})).numbers["pool_tokens"]
        asked = merged(quant(format="fp8", kv_cache="fp8"), build(kv_cache={"memory": "10MiB"}))
        assert abs(only("TF-K10-001", asked).numbers["pool_tokens"] - 2 * plain) <= 32

    def test_llama_3_70b_kv_bytes(self) -> None:
        assert kv_bytes_per_token(LLAMA_70B.kv, "float16") == 327_680
        assert kv_bytes_per_token(LLAMA_70B.kv, "float16", tp=8) == 40_960
        assert kv_bytes_per_token(LLAMA_70B.kv, "float16", tp=16) == 40_960, "one head is the least"
        assert kv_bytes_per_token(LLAMA_70B.kv, "float16", tp=4, layers=fullest_stage(80, 2)) == 40_960

    def test_a_pool_is_counted_a_rank(self) -> None:
        """A full-length request of Llama-3.1-70B takes 80 MiB on each of 8 ranks, not 640."""
        asked = merged(ENGINE, build(parallel={"tp": 8}, kv_cache={"memory": "80MiB"}, limits={"max_seq_len": 2048}))
        assert "TF-K10-001" not in codes(asked, model=LLAMA_70B, machine=BIG)
        less = merged(asked, build(kv_cache={"memory": "79MiB"}))
        assert "TF-K10-001" in codes(less, model=LLAMA_70B, machine=BIG)

    def test_the_largest_batch_that_fits_fits(self) -> None:
        gpu = {"model": LLAMA_8B, "machine": replace(BIG, gpus=(H100,))}
        asked = merged(ENGINE, build(kv_cache={"memory": "70GiB"}))
        finding = only("TF-K10-007", asked, **gpu)
        assert "TF-K10-007" not in codes(
            merged(asked, {"build": {"kv_cache": {"memory": finding.remedies[0].split()[-1]}}}), **gpu
        )
        numbers = finding.numbers
        assert numbers["largest_full_length_batch"] * 2048 * numbers["bytes_per_token"] < 70 * 2**30

    def test_the_ranks_that_hold_the_weights(self) -> None:
        finding = only("TF-K10-006", merged(ENGINE, build(architectures=["sm_89"])), model=LLAMA_70B, machine=BIG)
        assert finding.numbers["least_ranks"] == 3
        assert finding.remedies[0] == "build.parallel.tp: 4"

    def test_files_shared_by_two_roles_must_suffice_for_both(self, tmp_path: Path) -> None:
        (tmp_path / "text.txt").write_text("x" * 10_000)
        one: dict[str, Any] = {"evals": {"perplexity": {"corpus": "file:text.txt", "tokens": 8192}}}
        assert "TF-K19-002" not in codes(one, directory=tmp_path)
        both = merged(one, quant(format="fp8", calibration={"corpus": "file:text.txt", "samples": 4}))
        finding = next(item for item in report(both, directory=tmp_path).findings if item.code == "TF-K19-002")
        assert finding.numbers["tokens_of_all_roles"] == 8192 + 4 * 512


class TestPositions:
    def test_yarn_stretches_the_original_context(self) -> None:
        assert public("Qwen/Qwen2.5-7B-Instruct with YaRN").usable_positions == 131_072
        assert public("Qwen/Qwen2.5-7B-Instruct").usable_positions == 32_768

    def test_llama_3_says_its_own_reach(self) -> None:
        """The llama3 scaling is applied in max_position_embeddings already."""
        assert public("meta-llama/Llama-3.2-1B-Instruct").usable_positions == 131_072


class TestSpeculation:
    @pytest.mark.parametrize(("sizes", "length"), [((7, 7, 7), 83), ((4, 3, 4), 15), ((2, 2, 1), 2), ((1, 1, 0), 0)])
    def test_lookahead_lengths_of_the_documentation(self, sizes: tuple[int, int, int], length: int) -> None:
        assert lookahead_draft_len(*sizes) == length

    @given(TREES)
    def test_a_tree_with_its_prefixes_is_sound(self, paths: list[list[int]]) -> None:
        assert tree_problem(with_prefixes(paths)) is None

    @given(TREES, st.data())
    def test_a_tree_without_an_inner_node_is_not(self, paths: list[list[int]], data: st.DataObject) -> None:
        tree = with_prefixes(paths)
        inner = [node for node in tree if any(other[: len(node)] == node and other != node for other in tree)]
        if inner:
            gone = data.draw(st.sampled_from(inner))
            problem = tree_problem([node for node in tree if node != gone])
            assert problem is not None
            assert gone in problem[1]

    @given(TREES)
    def test_what_is_missing_mends_the_tree(self, paths: list[list[int]]) -> None:
        unique = [list(path) for path in dict.fromkeys(map(tuple, paths))]
        problem = tree_problem(unique)
        assert tree_problem([*unique, *(problem[1] if problem else [])]) is None

    def test_the_replacement_of_a_removed_method_is_named_first(self) -> None:
        finding = only("TF-K12-001", merged(API, speculation(method="eagle", draft="hf:a/b", max_draft_len=4)))
        assert finding.remedies[0] == "speculation.method: eagle3"

    @settings(max_examples=40)
    @given(batch=st.integers(1, 64), drafts=st.integers(1, 16), tokens=st.integers(64, 1024))
    def test_the_batch_that_is_offered_fits_the_step(self, batch: int, drafts: int, tokens: int) -> None:
        asked = merged(
            API,
            build(limits={"max_batch_size": batch, "max_num_tokens": tokens}),
            speculation(method="ngram", max_draft_len=drafts),
        )
        for finding in report(asked).findings:
            if finding.code == "TF-K12-014":
                assert (
                    finding.numbers["largest_batch"] * (1 + drafts) <= tokens or finding.numbers["largest_batch"] == 1
                )


def test_a_bare_corpus_name_is_offered_as_what_it_may_be() -> None:
    finding = only("TF-K19-001", {"evals": {"perplexity": {"corpus": "python-topics"}}})
    assert finding.remedies[0] == "evals.perplexity.corpus: builtin:python-topics"


def test_a_removed_backend_names_its_replacement() -> None:
    finding = only("TF-K23-001", merged({"stack": "trtllm-1.3"}, ENGINE))
    assert "build.target: trtllm-llmapi with triton.layout: llmapi" in finding.remedies
    assert "stack: trtllm-1.2.1" in finding.remedies


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"format": "fp8"}, {"sm_89", "sm_120", "sm_121"}),
        ({"format": "nvfp4"}, {"sm_120", "sm_121"}),
        ({"format": "none"}, {"sm_80", "sm_86", "sm_89", "sm_120", "sm_121"}),  # bfloat16: Turing has none
    ],
)
def test_an_rtx_engine_for_no_architecture_is_offered_those_that_have_its_kernels(
    settings: dict[str, Any], names: set[str]
) -> None:
    finding = only("TF-K3-022", merged(build(target="tensorrt-rtx"), quant(kv_cache="none", **settings)))
    assert set(finding.remedies) == {f"build.architectures: [{name}]" for name in names}


def test_device_ids_are_counted_for_the_ranks() -> None:
    asked = merged(ENGINE, build(parallel={"tp": 2}), {"triton": {"parameters": {"gpu_device_ids": "0,1;1,2"}}})
    finding = only("TF-K16-004", asked, model=LLAMA_8B, machine=BIG)
    assert finding.remedies[0] == 'triton.parameters.gpu_device_ids: "0,1;2,3"'


def test_linears_and_exclude_patterns() -> None:
    kinds = {linear.kind: (linear.rows, linear.columns) for linear in linears(SMOL)}
    assert kinds["k_proj"] == (192, 576)
    assert kinds["down_proj"] == (576, 1536)
    assert kinds["lm_head"] == (49_152, 576)
    for pattern in ("down_proj", "*down_proj", "model.layers.0.mlp.down_proj", "model.layers.0", "mlp", "*layers.0.*"):
        assert matches("model.layers.0.mlp.down_proj", pattern), pattern
    for pattern in ("down", "layers.1", "lm_head", "self_attn"):
        assert not matches("model.layers.0.mlp.down_proj", pattern), pattern
    left = {linear.kind for linear in quantized_linears(SMOL, ["lm_head", "self_attn", "model.layers.0.mlp"])}
    assert left == {"gate_proj", "up_proj", "down_proj"}


def test_gates_on_items_of_your_own_are_held_against_what_the_file_can_decide(tmp_path: Path) -> None:
    lines = [f'{{"prompt": "{number}", "answer": "b"}}' for number in range(20)]
    (tmp_path / "items.jsonl").write_text("\n".join(lines), encoding="utf-8")

    def found(drop: str) -> set[str]:
        own = {"path": "file:items.jsonl", "name": "own", "gate": {"max_drop": drop}}
        changes = {"evals": {"custom": [own]}, "quantize": {"format": "fp8"}}
        return {item.code for item in report(changes, directory=tmp_path).findings if item.code.startswith("TF-K8")}

    assert found("5%") == {"TF-K8-006"} and found("9%") == set() and found("100%") == {"TF-K8-002"}


def test_items_of_your_own_are_read_once_however_many_remedies_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    path = tmp_path / "items.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": "d"}', encoding="utf-8")

    def reading(place: Path, limit: int) -> bytes:
        read.append(place)
        return place.read_bytes()

    monkeypatch.setattr("evals.custom.read_bytes_file", reading)
    own = {"path": "file:items.jsonl", "name": "own", "gate": {"max_drop": "5%"}}
    changes = {"evals": {"custom": [own]}, "quantize": {"format": "fp8"}, "bench": {"concurrency": [1, 4096]}}
    found = report(changes, directory=tmp_path).findings
    assert {"TF-K8-006", "TF-K9-007"} <= {item.code for item in found}
    assert read == [path]

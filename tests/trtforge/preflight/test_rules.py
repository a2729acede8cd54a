"""Every rule once against a recipe that breaks it and once against one that does not, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantize.formats import load_formats
from trtforge.preflight import Machine, all_rules, check_report
from trtforge.preflight.engine import Report
from trtforge.preflight.model import kv_bytes_per_token, linears, matches, quantized_linears
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.merge import deep_merge

FORMATS = {row.name: row for row in load_formats().formats}
KV_MODES = {row.name: row for row in load_formats().kv_modes}
MACHINE = Machine(memory_total=24 << 30, memory_available=20 << 30, disk_free=100 << 30, offline=False, cores=2)


@dataclass(frozen=True)
class Model:
    """SmolLM2-135M's shape."""

    family: str = "llama"
    parameters: int = 134_515_008
    layers: int = 30
    hidden: int = 576
    ffn: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_size: int = 64
    vocab: int = 49_152
    max_positions: int = 8192
    tied: bool = True
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 1e5})
    prequantized: str | None = None


SMOL = Model()
QWEN_72B = Model(
    parameters=72_000_000_000, layers=80, hidden=8192, ffn=29_568, heads=64, kv_heads=8, head_size=128,
    vocab=152_064, max_positions=32_768, tied=False,
)  # fmt: skip


def report(
    settings: dict[str, Any],
    *,
    model: Model | None = SMOL,
    machine: Machine | bool = MACHINE,
    directory: Path | str = ".",
) -> Report:
    base: dict[str, Any] = {"name": "x", "model": {"source": "m"}}
    loaded = recipe_from_mapping(deep_merge(base, settings), directory)
    return check_report(loaded, model=model, formats=FORMATS, kv_modes=KV_MODES, machine=machine)


def codes(settings: dict[str, Any], **facts: Any) -> set[str]:
    return {finding.code for finding in report(settings, **facts).findings}


def build(**keys: Any) -> dict[str, Any]:
    return {"build": keys}


def quant(**keys: Any) -> dict[str, Any]:
    return {"quantize": keys}


GPU = {"target": "tensorrt", "architectures": ["sm_89"]}
#: code: (settings that break it, facts of that), (settings that do not, facts of that)
CASES: dict[str, tuple[tuple[dict[str, Any], dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]] = {
    "TF-K2-001": (({"stack": "trt-10.61"}, {}), ({"stack": "torch-2.13"}, {})),
    "TF-K2-002": (({"stack": "trt-10.16"}, {}), ({"stack": "trt-10.16", **build(**GPU)}, {})),
    "TF-K2-003": (({"triton": {"version": "25.12"}}, {}), ({"triton": {"version": "2.51.0"}}, {})),
    "TF-K3-001": ((quant(format="fp9"), {}), (quant(format="fp8"), {})),
    "TF-K3-002": (
        ({**quant(format="nvfp4"), **build(**GPU)}, {}),
        ({**quant(format="nvfp4"), **build(target="tensorrt", architectures=["sm_100"])}, {}),
    ),
    "TF-K3-003": (
        (
            {
                **quant(format="int4_awq", group_size=64, kv_cache="fp8"),
                **build(target="tensorrt", architectures=["sm_80"]),
            },
            {},
        ),
        ({**quant(format="fp8", kv_cache="fp8"), **build(**GPU)}, {}),
    ),
    "TF-K3-004": ((build(target="tensorrt", architectures=["sm_91"]), {}), (build(**GPU), {})),
    "TF-K3-005": ((quant(format="fp8", kv_cache="nvfp4"), {}), (quant(format="fp8", kv_cache="fp8"), {})),
    "TF-K3-006": (
        (quant(format="fp8"), {"model": replace(SMOL, prequantized="fp8")}),
        (quant(format="none"), {"model": replace(SMOL, prequantized="fp8")}),
    ),
    "TF-K3-007": ((build(architectures=["sm_89"]), {}), (build(**GPU), {})),
    "TF-K4-001": ((quant(format="int4_awq"), {}), (quant(format="int4_awq", group_size=64), {})),
    "TF-K4-002": ((quant(format="fp8", group_size=64), {}), (quant(format="int4_awq", group_size=64), {})),
    "TF-K5-001": (
        (build(target="tensorrt", parallel={"tp": 2}), {}),
        (build(target="tensorrt", parallel={"tp": 3}), {}),
    ),
    "TF-K5-002": (
        (build(target="tensorrt", parallel={"tp": 4}), {"model": replace(SMOL, heads=12)}),
        (build(target="tensorrt", parallel={"tp": 4}), {"model": replace(SMOL, heads=12, kv_heads=2)}),
    ),
    "TF-K6-001": ((quant(format="fp8", exclude=[]), {}), (quant(format="fp8", exclude=["lm_head"]), {})),
    "TF-K6-002": (
        (quant(format="fp8", exclude=["lm_hed"]), {}),
        (quant(format="fp8", exclude=["lm_head", "o_proj"]), {}),
    ),
    "TF-K6-003": (
        (build(target="tensorrt", parallel={"tp": 3}), {"model": replace(SMOL, vocab=49_153)}),
        (build(target="tensorrt", parallel={"tp": 3}), {}),
    ),
    "TF-K9-001": ((build(limits={"max_seq_len": 8193}), {}), (build(limits={"max_seq_len": 8192}), {})),
    "TF-K9-002": ((build(limits={"max_input_len": 2048}), {}), (build(limits={"max_input_len": 2047}), {})),
    "TF-K9-003": (
        (build(limits={"max_num_tokens": 31, "max_batch_size": 32}), {}),
        (build(limits={"max_num_tokens": 32, "max_batch_size": 32}), {}),
    ),
    "TF-K9-004": (
        (quant(format="fp8", calibration={"sequence_length": 9000}), {}),
        (quant(format="none", calibration={"sequence_length": 9000}), {}),
    ),
    "TF-K9-005": (
        ({"evals": {"perplexity": {"window": 9000}}}, {}),
        ({"evals": {"perplexity": {"window": 8192}}}, {}),
    ),
    "TF-K9-006": (
        (build(limits={"max_seq_len": 512}), {}),
        ({**build(limits={"max_seq_len": 512}), "bench": {"prompts": "builtin:short"}}, {}),
    ),
    "TF-K9-007": (({"bench": {"concurrency": [1, 64]}}, {}), ({"bench": {"concurrency": [1, 32]}}, {})),
    "TF-K9-008": (
        ({**build(limits={"max_seq_len": 64}), "evals": {"generation": {"max_tokens": 64}}}, {}),
        ({**build(limits={"max_seq_len": 64}), "evals": {"generation": {"max_tokens": 63}}}, {}),
    ),
    "TF-K9-009": (({"evals": {"perplexity": {"tokens": 1000}}}, {}), ({"evals": {"perplexity": {"tokens": 1024}}}, {})),
    "TF-K10-001": (
        (build(kv_cache={"memory": "44MiB"}), {}),
        (build(kv_cache={"memory": "45MiB"}), {}),
    ),
    "TF-K10-002": (
        (build(kv_cache={"memory": "24GiB"}), {}),
        (build(kv_cache={"memory": "16GiB"}), {}),
    ),
    "TF-K10-003": (
        (build(kv_cache={"memory": "2GiB"}), {"machine": replace(MACHINE, memory_available=2 << 30)}),
        (build(kv_cache={"memory": "512MiB"}), {"machine": replace(MACHINE, memory_available=2 << 30)}),
    ),
    "TF-K10-004": (
        (build(kv_cache={"memory": "46MiB"}, limits={"max_batch_size": 256}), {}),
        (build(kv_cache={"memory": "512MiB"}, limits={"max_batch_size": 256}), {}),
    ),
    "TF-K11-001": ((quant(format="fp8"), {"model": QWEN_72B}), (quant(format="fp8"), {})),
    "TF-K11-002": (
        (quant(format="fp8"), {"machine": replace(MACHINE, disk_free=800 << 20)}),
        (quant(format="fp8"), {"machine": replace(MACHINE, disk_free=2 << 30)}),
    ),
    "TF-K12-001": (({"speculation": {"method": "ngram"}}, {}), ({"speculation": {"method": "none"}}, {})),
    "TF-K13-001": (({"triton": {"layout": "llmapi"}}, {}), ({"triton": {"layout": "native"}}, {})),
    "TF-K13-002": (({"evals": {"tasks": ["mmlu"]}}, {}), ({"evals": {"tasks": []}}, {})),
    "TF-K16-001": ((build(parallel={"tp": 3}), {}), (build(parallel={"tp": 1}), {})),
    "TF-K16-002": (
        (build(target="tensorrt", parallel={"pp": 31}), {}),
        (build(target="tensorrt", parallel={"pp": 30}), {}),
    ),
    "TF-K18-001": (
        ({}, {"model": replace(SMOL, rope={"type": "longrope"})}),
        ({}, {"model": replace(SMOL, rope={"rope_type": "yarn", "factor": 4.0})}),
    ),
    "TF-K18-002": (
        ({}, {"model": replace(SMOL, rope={"rope_type": "llama3", "factor": 8.0})}),
        ({}, {"model": replace(SMOL, rope={"type": "linear", "factor": 2.0})}),
    ),
    "TF-K19-001": (
        (quant(format="fp8", calibration={"corpus": "wikitext"}), {}),
        (quant(format="none", calibration={"corpus": "wikitext"}), {}),
    ),
    "TF-K19-002": (
        ({"bench": {"prompts": "file:no-such-file.txt"}}, {}),
        ({"bench": {"prompts": "builtin:short"}}, {}),
    ),
    "TF-K19-003": (
        ({"evals": {"perplexity": {"corpus": "hf:wikitext"}}}, {"machine": replace(MACHINE, offline=True)}),
        ({"evals": {"perplexity": {"corpus": "hf:wikitext"}}}, {}),
    ),
    "TF-K19-004": (
        ({"evals": {"perplexity": {"tokens": 10_000_000}}}, {}),
        ({"evals": {"perplexity": {"tokens": 8192}}}, {}),
    ),
    "TF-K23-001": (
        ({"stack": "trtllm-1.3", **build(target="trtllm-engine")}, {}),
        ({"stack": "trtllm-1.2.1", **build(target="trtllm-engine")}, {}),
    ),
    "TF-K23-002": ((build(target="tensorrt"), {}), (build(target="torch"), {})),
    "TF-K23-003": (({"triton": {"layout": "inflight_batcher_llm"}}, {}), ({"triton": {"layout": "native"}}, {})),
}


def test_every_rule_has_its_cases() -> None:
    assert set(CASES) == set(all_rules())


@pytest.mark.parametrize("code", CASES)
def test_the_rule_finds_it(code: str) -> None:
    settings, facts = CASES[code][0]
    found = [finding for finding in report(settings, **facts).findings if finding.code == code]
    assert found, "the rule must find it"
    rule = all_rules()[code]
    for finding in found:
        assert finding.severity == rule.severity
        assert finding.message
        assert finding.asked
        assert finding.remedies, "a finding names what would work"
        assert finding.why
        assert finding.to_json()["code"] == code


@pytest.mark.parametrize("code", CASES)
def test_the_rule_lets_it_pass(code: str) -> None:
    settings, facts = CASES[code][1]
    assert code not in codes(settings, **facts)


def only(code: str, settings: dict[str, Any], **facts: Any) -> Any:
    (finding,) = [finding for finding in report(settings, **facts).findings if finding.code == code]
    return finding


class TestNumbers:
    def test_the_default_recipe_has_no_findings(self) -> None:
        assert report({}).findings == ()

    def test_qwen_72b_awq_over_four_ranks(self) -> None:
        """29,568 / 4 = 7,392 is a multiple neither of 128 nor of 64."""
        settings = {**quant(format="int4_awq"), **build(target="tensorrt", parallel={"tp": 4})}
        finding = only("TF-K4-001", settings, model=QWEN_72B)
        assert finding.numbers["linears"] == {"down_proj": {"K": 29_568, "K_per_rank": 7392.0, "remainder": 96.0}}
        assert finding.numbers["padded_K"] == {"down_proj": 29_696}
        pairs = finding.numbers["works_tp_group"]
        assert [1, 128] in pairs
        assert [4, 32] in pairs
        assert [4, 64] not in pairs
        assert "quantize.group_size: 32" in finding.remedies

    def test_the_pairs_respect_the_heads(self) -> None:
        finding = only("TF-K4-001", quant(format="int4_awq"))
        assert all(ranks in (1,) for ranks, _ in finding.numbers["works_tp_group"])

    def test_excluded_linears_need_not_divide(self) -> None:
        model = replace(SMOL, ffn=1500)
        assert "TF-K4-001" in codes(quant(format="int4_awq", group_size=64), model=model)
        settings = quant(format="int4_awq", group_size=64, exclude=["lm_head", "down_proj"])
        assert "TF-K4-001" not in codes(settings, model=model)

    def test_the_least_pool_is_enough_and_less_is_not(self) -> None:
        finding = only("TF-K10-001", build(kv_cache={"memory": "1MiB"}))
        least = finding.numbers["least_bytes"]
        assert least == 2048 * 2 * 30 * 3 * 64 * 2
        assert "TF-K10-001" not in codes(build(kv_cache={"memory": f"{least}B"}))
        assert "TF-K10-001" in codes(build(kv_cache={"memory": f"{least - 1}B"}))

    def test_an_fp8_cache_holds_twice_as_much(self) -> None:
        plain = only("TF-K10-001", build(kv_cache={"memory": "10MiB"})).numbers["pool_tokens"]
        settings = {**quant(format="fp8", kv_cache="fp8"), **build(kv_cache={"memory": "10MiB"})}
        halved = only("TF-K10-001", settings).numbers["pool_tokens"]
        assert abs(halved - 2 * plain) <= 32

    def test_llama_3_70b_kv_bytes(self) -> None:
        llama = replace(SMOL, layers=80, kv_heads=8, head_size=128)
        assert kv_bytes_per_token(llama, "float16") == 327_680

    def test_files_shared_by_two_roles_must_suffice_for_both(self, tmp_path: Path) -> None:
        (tmp_path / "text.txt").write_text("x" * 10_000)
        one = {"evals": {"perplexity": {"corpus": "file:text.txt", "tokens": 8192}}}
        assert "TF-K19-002" not in codes(one, directory=tmp_path)
        both = {**one, **quant(format="fp8", calibration={"corpus": "file:text.txt", "samples": 4})}
        finding = next(item for item in report(both, directory=tmp_path).findings if item.code == "TF-K19-002")
        assert finding.numbers["tokens_of_all_roles"] == 8192 + 4 * 512

    def test_a_bare_corpus_name_is_offered_as_what_it_may_be(self) -> None:
        finding = only("TF-K19-001", {"evals": {"perplexity": {"corpus": "python-topics"}}})
        assert finding.remedies[0] == "evals.perplexity.corpus: builtin:python-topics"

    def test_removed_backend_names_its_replacement(self) -> None:
        finding = only("TF-K23-001", {"stack": "trtllm-1.3", **build(target="trtllm-engine")})
        assert "build.target: trtllm-llmapi" in finding.remedies
        assert "stack: trtllm-1.2.1" in finding.remedies

    @pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx", "trtllm-engine", "trtllm-llmapi"])
    def test_targets_of_later_versions_are_refused_plainly(self, target: str) -> None:
        finding = only("TF-K23-002", build(target=target))
        assert "not implemented in this version" in finding.message
        assert finding.remedies == ("build.target: torch",)


@given(heads=st.integers(1, 64), kv=st.integers(1, 64), tp=st.integers(1, 16))
def test_head_rules_accept_exactly_what_can_be_split(heads: int, kv: int, tp: int) -> None:
    found = codes(build(target="tensorrt", parallel={"tp": tp}), model=replace(SMOL, heads=heads, kv_heads=kv))
    assert ("TF-K5-001" in found) == (heads % tp != 0)
    assert ("TF-K5-002" in found) == (kv % tp != 0 and tp % kv != 0)


@given(hidden=st.integers(1, 40), ffn=st.integers(1, 40), group=st.sampled_from([32, 64, 128]))
def test_group_rule_accepts_exactly_whole_groups(hidden: int, ffn: int, group: int) -> None:
    model = replace(SMOL, hidden=hidden * 32, ffn=ffn * 32, heads=4, head_size=64)
    found = codes(quant(format="int4_awq", group_size=group), model=model)
    whole = (hidden * 32) % group == 0 and (ffn * 32) % group == 0 and 256 % group == 0
    assert ("TF-K4-001" not in found) == whole


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

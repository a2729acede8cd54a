"""No alarm on what is documented to work; every planted fault found by the rule that is meant to find it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.preflight import BIG, H100, L4, SMALL, codes, report
from tests.support.public_models import public
from tests.trtforge.preflight.corpus import LLAMA_31, MC_SIM, UNSERVED, VALID
from tests.trtforge.preflight.settings import build, merged, parameters, quant, speculation, triton, trtllm
from trtforge.cli import common
from trtforge.recipe.load import load_recipe

ROOT = Path(__file__).parents[3]
GLM = public("THUDM/chatglm3-6b")


@pytest.mark.parametrize("name", VALID)
def test_nothing_is_found_in_what_is_documented_to_work(name: str, tmp_path: Path) -> None:
    valid = VALID[name]
    assert valid.source.startswith("https://")
    valid.write(tmp_path)
    found = report(valid.settings, directory=tmp_path, **valid.facts_with()).findings
    assert [(finding.code, finding.message) for finding in found] == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_nothing_is_found_in_the_recipes_that_ship(path: Path) -> None:
    loaded = load_recipe(path)
    found = common.preflight(loaded, model=public("HuggingFaceTB/SmolLM2-135M-Instruct"), machine=SMALL).findings
    assert [(finding.code, finding.message) for finding in found] == []


#: (recipe that works, what is changed, facts that are changed, the code that must be found)
PLANTED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("llama-7b-fp16", {"model": {"source": "/path/to/llama"}}, {}, "TF-K1-001"),
    ("serve-eagle3", speculation(draft="<draft model>"), {}, "TF-K1-001"),
    ("serve-ngram", {"bench": {"prompts": "file:$PROMPTS"}}, {}, "TF-K1-001"),
    ("triton-llama-7b", parameters(kv_cache_free_gpu_mem_fraction="${fraction}"), {}, "TF-K1-003"),
    ("triton-llama-7b", parameters(gpt_model_type="inflight"), {}, "TF-K1-003"),
    ("triton-llama-7b", parameters(enable_chunked_contexts="true"), {}, "TF-K1-002"),
    ("triton-llama-7b", parameters(engine_dir="/engines"), {}, "TF-K1-002"),
    ("triton-llama-7b", parameters(batch_scheduler_policy="max_utilization"), {}, "TF-K1-004"),
    ("llama-7b-fp16", {"stack": "trtllm-1.2"}, {}, "TF-K2-001"),
    ("llama-7b-fp16", {"evals": {"perplexity": {"window": 128, "stride": 128}}}, {}, "TF-K9-015"),
    ("llama-7b-fp16", {"evals": {"perplexity": {"window": 1, "stride": 1}}}, {}, "TF-K9-015"),
    ("llama-7b-fp16", build(limits={"max_batch_size": 10**12, "max_num_tokens": 10**12}), {}, "TF-K9-016"),
    ("llama-7b-fp16", build(limits={"max_num_tokens": 10**18}), {}, "TF-K9-016"),
    ("kv-reuse-with-offload", trtllm(host_kv_memory="99999999999GiB"), {}, "TF-K9-016"),
    ("triton-llama-7b", parameters(kv_cache_host_memory_bytes="99999999999999999999999"), {}, "TF-K1-003"),
    ("triton-llama-7b", triton(queue_delay_us=99999999999999999999999), {}, "TF-K9-016"),
    ("triton-llama-7b", parameters(max_tokens_in_paged_kv_cache="64"), {}, "TF-K10-010"),
    ("triton-llama-7b", parameters(max_attention_window_size="0"), {}, "TF-K1-003"),
    ("triton-llama-7b", parameters(kv_cache_free_gpu_mem_fraction="0"), {}, "TF-K1-003"),
    ("triton-llama-7b", parameters(cross_kv_cache_fraction="0.5"), {}, "TF-K13-007"),
    ("triton-llama-7b", parameters(decoding_mode="medusa"), {}, "TF-K12-020"),
    ("lookahead-vicuna", parameters(decoding_mode="top_k_top_p"), {}, "TF-K12-020"),
    ("lookahead-vicuna", build(architectures=["sm_100"]), {}, "TF-K12-021"),
    ("llama-7b-fp16", {}, {"model": replace(public("meta-llama/Llama-2-7b-hf"), head_size=100)}, "TF-K5-007"),
    (
        "serve-llama-3.1-8b-fp8-tp2",
        {},
        {"model": replace(public("meta-llama/Llama-3.1-8B-Instruct"), head_size=100)},
        "TF-K5-007",
    ),
    ("serve-ngram", {"stack": "trt-10.16"}, {}, "TF-K2-002"),
    ("llama-7b-fp16", triton(version="24.07"), {}, "TF-K2-003"),
    ("llama-7b-fp16", {}, {"machine": replace(BIG, versions={"tensorrt-llm": "0.20.0"})}, "TF-K2-004"),
    ("llama-7b-fp16", {}, {"machine": replace(BIG, versions={"tensorrt": "10.13.3"})}, "TF-K2-005"),
    ("llama-70b-fp8-tp2", build(architectures=["sm_80"]), {}, "TF-K3-002"),
    ("ptq-llama-3.1-8b-nvfp4", build(architectures=["sm_90"]), {}, "TF-K3-002"),
    ("llama-7b-awq-128", build(architectures=["sm_100"]), {}, "TF-K3-002"),
    ("serve-llama-3.3-70b-fp4-b200", build(architectures=["sm_90"]), {}, "TF-K3-002"),
    ("llama-70b-fp8-tp2", build(architectures=["sm_80"]), {}, "TF-K3-003"),
    ("llama-7b-fp16", build(architectures=["sm_900"]), {}, "TF-K3-004"),
    ("llama-70b-fp8-tp2", quant(kv_cache="nvfp4"), {}, "TF-K3-005"),
    ("serve-llama-3.3-70b-fp8", quant(format="fp8"), {}, "TF-K3-006"),
    ("rtx-fp8", build(architectures=["sm_90"]), {}, "TF-K3-008"),
    ("llama-7b-fp16", build(architectures=["sm_75"]), {}, "TF-K3-008"),
    ("llama-7b-fp16", build(target="tensorrt", architectures=["sm_75"]), {}, "TF-K3-008"),
    ("llama-7b-fp16", {}, {"machine": replace(BIG, gpus=(L4,))}, "TF-K3-009"),
    ("llama-7b-fp16", build(architectures=["sm_80", "sm_90"]), {}, "TF-K3-010"),
    ("qwen2.5-7b-fp8", build(architectures=["sm_89"]), {}, "TF-K3-011"),
    ("qwen2-72b-tp8", quant(format="int4_awq", group_size=128), {}, "TF-K4-001"),
    ("qwen2-72b-tp8", merged(quant(format="int4_awq", group_size=64), build(parallel={"tp": 4})), {}, "TF-K4-001"),
    ("llama-7b-awq-128", build(parallel={"tp": 4}), {}, "TF-K4-001"),  # 11008 / 4 = 2752
    ("llama-7b-awq-128", quant(group_size=256), {}, "TF-K4-002"),
    ("llama-7b-awq-128", quant(group_size=32), {}, "TF-K4-003"),
    ("llama-70b-fp8-tp2", build(parallel={"tp": 2}), {"model": public("tiiuae/falcon-7b")}, "TF-K5-001"),
    ("qwen2.5-7b-fp8", build(parallel={"tp": 8}), {}, "TF-K5-001"),
    ("llama-7b-fp16", build(parallel={"tp": 3}), {"model": replace(GLM, heads=33)}, "TF-K5-002"),
    ("llama-70b-tp8", build(parallel={"tp": 16}), {}, "TF-K5-003"),
    ("qwen2.5-7b-fp8", build(parallel={"tp": 28}), {}, "TF-K5-004"),
    ("rtx-fp8", quant(exclude=[]), {}, "TF-K6-001"),
    ("llama-70b-fp8-tp2", quant(exclude=["lm_head", "*.mlp.gate"]), {}, "TF-K6-002"),
    (
        "rtx-fp8",
        build(parallel={"tp": 2}),
        {"model": replace(public("Qwen/Qwen2.5-7B-Instruct"), vocab=32_001)},
        "TF-K6-003",
    ),
    ("llama-70b-fp8-tp2", quant(exclude=[]), {}, "TF-K6-004"),
    ("llama-7b-awq-128", {"evals": {"perplexity": {"gate": None}}}, {}, "TF-K8-001"),
    ("rtx-fp8", {"evals": {"engine_parity": {"gate": None}}}, {}, "TF-K8-001"),
    ("serve-qwen2.5-yarn", quant(format="fp8"), {}, "TF-K8-003"),
    ("llama-7b-fp16", build(limits={"max_seq_len": 8192}), {}, "TF-K9-001"),
    ("serve-qwen2.5-yarn", build(limits={"max_seq_len": 262_144}), {}, "TF-K9-001"),
    ("lookahead-vicuna", build(limits={"max_input_len": 2048}), {}, "TF-K9-002"),
    ("llama-7b-fp16", build(limits={"max_num_tokens": 16}), {}, "TF-K9-003"),
    ("serve-ngram", trtllm(timing_cache="cache.bin"), {}, "TF-K9-010"),
    ("rtx-fp8", trtllm(kv_reuse=True), {}, "TF-K9-010"),
    ("rtx-fp8", build(tensorrt={"optimization_level": 5}), {}, "TF-K9-010"),
    ("serve-eagle3", triton(preprocessing_instances=8), {}, "TF-K9-010"),
    ("lookahead-vicuna", speculation(choices=[[0]]), {}, "TF-K9-010"),
    (
        "llama-3-8b",
        merged(trtllm(chunked_context=False), build(limits={"max_num_tokens": 4096, "max_seq_len": 8192})),
        {},
        "TF-K9-011",
    ),
    ("llama-7b-fp16", build(kv_cache={"memory": "512MiB"}), {}, "TF-K10-001"),
    ("serve-draft-target", build(kv_cache={"free_fraction": 0.9}), {}, "TF-K10-005"),
    ("llama-70b-tp8", build(parallel={"tp": 1}, architectures=["sm_80"]), {}, "TF-K10-006"),
    ("llama-7b-fp16", build(kv_cache={"memory": "72GiB"}), {"machine": replace(BIG, gpus=(H100,))}, "TF-K10-007"),
    ("triton-llama-7b", build(kv_cache={"free_fraction": 0.98}), {}, "TF-K10-008"),
    ("llama-70b-fp8-tp2", {}, {"machine": replace(SMALL, memory_total=8 << 30)}, "TF-K11-001"),
    ("llama-70b-fp8-tp2", {"model": {"loading": "whole"}}, {"machine": SMALL}, "TF-K11-001"),
    ("llama-70b-fp8-tp2", {}, {"machine": SMALL}, "TF-K11-005"),
    ("llama-70b-tp8", {}, {"machine": replace(BIG, disk_free=200 << 30)}, "TF-K11-002"),
    ("llama-70b-tp8", trtllm(workers=8), {"machine": replace(BIG, memory_total=240 << 30)}, "TF-K11-003"),
    ("kv-reuse-with-offload", {}, {"machine": SMALL}, "TF-K11-004"),
    ("serve-eagle3", speculation(method="eagle"), {}, "TF-K12-001"),
    ("serve-ngram", speculation(method="medusa", draft="hf:a/b"), {}, "TF-K12-001"),
    ("lookahead-vicuna", speculation(method="ngram", max_draft_len=4), {}, "TF-K12-001"),
    ("serve-eagle3", build(parallel={"pp": 2}), {}, "TF-K12-003"),
    ("lookahead-vicuna", trtllm(max_beam_width=4), {}, "TF-K12-003"),
    ("medusa-vicuna", speculation(draft=None), {}, "TF-K12-004"),
    ("medusa-vicuna", speculation(heads=5), {}, "TF-K12-013"),
    ("serve-eagle3", {}, {"model": public("meta-llama/Llama-2-7b-hf", vocab=32_016)}, "TF-K12-006"),
    ("serve-eagle3", {}, {"model": public("meta-llama/Llama-3.2-1B-Instruct")}, "TF-K12-007"),
    ("serve-eagle3", speculation(draft="hf:yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"), {}, "TF-K12-019"),
    ("eagle-vicuna", speculation(choices=None, max_draft_len=31), {}, "TF-K12-023"),
    ("eagle-vicuna", trtllm(paged_context_attention=False, chunked_context=False), {}, "TF-K12-002"),
    ("eagle-vicuna", quant(format="fp8", kv_cache="fp8"), {}, "TF-K12-003"),
    ("serve-eagle3", speculation(draft="no-such-folder"), {}, "TF-K12-005"),
    ("serve-ngram", speculation(max_draft_len=None), {}, "TF-K12-009"),
    ("lookahead-vicuna", speculation(max_draft_len=63), {}, "TF-K12-010"),
    ("lookahead-vicuna", speculation(max_draft_len=None, lookahead={"window": 1, "ngram": 1}), {}, "TF-K12-010"),
    ("medusa-vicuna", speculation(choices=[path for path in MC_SIM if path != [1]]), {}, "TF-K12-011"),
    ("medusa-vicuna", speculation(choices=[*MC_SIM, [0, 0]]), {}, "TF-K12-011"),
    ("medusa-vicuna", speculation(heads=3), {}, "TF-K12-012"),
    ("medusa-vicuna", speculation(max_draft_len=32), {}, "TF-K12-012"),
    ("eagle-vicuna", speculation(heads=5), {}, "TF-K12-012"),
    ("serve-eagle3", speculation(choices=[[0], [1], [0, 0]]), {}, "TF-K12-036"),
    ("serve-eagle3-dynamic-tree", {"stack": "trtllm-1.2.1"}, {}, "TF-K12-036"),
    ("serve-eagle3-by-load", {"stack": "trtllm-1.2.1"}, {}, "TF-K12-036"),
    ("serve-eagle3-automaton", {"stack": "trtllm-1.2.1"}, {}, "TF-K12-036"),
    ("serve-eagle3-dynamic-tree", speculation(ngram_on_top=True), {}, "TF-K12-036"),
    ("serve-eagle3-dynamic-tree", speculation(max_concurrency=8), {}, "TF-K12-036"),
    ("serve-draft-target", speculation(ngram_on_top=True), {}, "TF-K12-036"),
    (
        "serve-ngram",
        speculation(acceptance_rate_threshold=0.3, acceptance_rate_window_size=64),
        {},
        "TF-K12-036",
    ),
    ("serve-ngram", speculation(ngram={"min_matching_ngram_size": 3}), {}, "TF-K12-036"),
    (
        "serve-eagle3-dynamic-tree",
        speculation(dynamic_tree={"depth": 6, "top_k": 10, "total": 61}),
        {},
        "TF-K12-037",
    ),
    ("serve-eagle3-by-load", speculation(max_draft_len=5), {}, "TF-K12-037"),
    ("serve-eagle3-by-load", build(limits={"max_batch_size": 8}), {}, "TF-K12-038"),
    ("serve-eagle3-dynamic-tree", {}, {"model": replace(LLAMA_31, windows=(4096,) * LLAMA_31.layers)}, "TF-K12-003"),
    ("serve-eagle3-dynamic-tree", trtllm(guided_decoding="xgrammar"), {}, "TF-K12-003"),
    ("serve-ngram", build(limits={"max_num_tokens": 64}), {}, "TF-K12-014"),
    ("serve-eagle3", build(limits={"max_batch_size": 256}), {}, "TF-K12-015"),
    ("eagle-vicuna", build(limits={"max_batch_size": 1024}), {}, "TF-K12-016"),
    ("llama-7b-fp16", triton(layout="llmapi"), {}, "TF-K13-001"),
    ("kv-reuse-with-offload", trtllm(paged_context_attention=False, chunked_context=False), {}, "TF-K13-003"),
    ("kv-reuse-with-offload", trtllm(kv_reuse=False), {}, "TF-K13-003"),
    ("llama-7b-fp16", trtllm(paged_context_attention=False), {}, "TF-K13-003"),
    ("qwen2.5-7b-fp8", quant(kv_cache="none"), {}, "TF-K13-003"),
    ("llama-7b-awq-128", quant(kv_cache="fp8"), {}, "TF-K13-004"),
    ("qwen2.5-7b-fp8", quant(kv_cache="int8"), {}, "TF-K13-004"),
    ("qwen2.5-7b-fp8", trtllm(fp8_context_attention=False), {}, "TF-K13-004"),
    ("serve-llama-3.1-8b-fp8-tp2", merged(build(parallel={"pp": 2}), trtllm(chunked_context=True)), {}, "TF-K13-005"),
    ("triton-llama-7b-streaming", triton(accumulate_tokens=False), {}, "TF-K14-001"),
    ("triton-llama-7b", {"bench": {"slo": {"ttft_p99": "2s"}}}, {}, "TF-K14-002"),
    ("triton-llama-7b", parameters(decoupled="true"), {}, "TF-K14-003"),
    ("llama-3-8b", {}, {"model": public("meta-llama/Meta-Llama-3-8B", eos_token_ids=())}, "TF-K15-002"),
    ("rtx-fp8", build(parallel={"tp": 3}), {}, "TF-K16-001"),
    ("llama-70b-tp8", {}, {"machine": replace(BIG, gpus=(H100,) * 4)}, "TF-K16-003"),
    ("llama-7b-tp2", parameters(gpu_device_ids="0"), {}, "TF-K16-004"),
    ("llama-7b-tp2", parameters(gpu_device_ids="0,0"), {}, "TF-K16-004"),
    ("llama-7b-tp2", parameters(participant_ids="1"), {}, "TF-K16-005"),
    (
        "llama-7b-tp2",
        parameters(gpu_device_ids="0,8"),
        {"machine": replace(BIG, gpus=(H100,) * 8)},
        "TF-K16-008",
    ),
    ("triton-llama-7b", parameters(tokenizer_dir="/models/llama"), {}, "TF-K1-005"),
    ("qwen2.5-7b-fp8", {}, {"machine": replace(BIG, versions={"nvidia-modelopt": "0.43.0"})}, "TF-K2-006"),
    ("llama-7b-fp16", {"model": {"source": "hf:meta-llama/none-such"}}, {}, "TF-K19-007"),
    ("llama-7b-tp2", trtllm(workers=4), {}, "TF-K16-006"),
    ("llama-3-8b", {}, {"model": public("meta-llama/Meta-Llama-3-8B", rope={"type": "dynamic"})}, "TF-K18-001"),
    ("llama-3-8b", {}, {"model": public("meta-llama/Meta-Llama-3-8B", rope={"type": "yarn"})}, "TF-K18-002"),
    ("llama-70b-fp8-tp2", quant(calibration={"corpus": "cnn_dailymail"}), {}, "TF-K19-001"),
    ("llama-70b-fp8-tp2", quant(calibration={"corpus": "file:calib.txt"}), {}, "TF-K19-002"),
    ("llama-70b-fp8-tp2", quant(calibration={"corpus": "hf:cnn_dailymail"}), {}, "TF-K19-005"),
    (
        "triton-lora",
        merged(build(target="trtllm-llmapi"), triton(layout="llmapi"), trtllm(guided_decoding="xgrammar")),
        {},
        "TF-K21-001",
    ),
    ("triton-lora", trtllm(lora={"adapters": {"3": "no-such-folder"}}), {}, "TF-K21-002"),
    ("triton-lora", trtllm(lora={"target_modules": ["q_proj"]}), {}, "TF-K21-005"),
    ("triton-llama-7b", triton(preprocessing_instances=1), {}, "TF-K22-001"),
    ("triton-llama-7b", triton(queue_delay_us=100_000), {}, "TF-K22-002"),
    ("serve-qwen2.5-yarn", build(limits={"max_num_tokens": 512}), {}, "TF-K22-004"),
    ("llama-7b-awq-128", build(limits={"max_batch_size": 256}), {}, "TF-K22-005"),
    ("llama-7b-fp16", {"stack": "trtllm-1.3"}, {}, "TF-K23-001"),
    ("llama-7b-fp16", quant(format="int8_sq"), {}, "TF-K3-013"),
    ("ptq-llama-3.1-8b-nvfp4", quant(mixed={"int4_wo": ["down_proj"]}), {}, "TF-K3-025"),
    ("llama-70b-fp8-tp2", quant(mixed={"nvfp4": ["down_proj"]}), {}, "TF-K3-025"),
    ("ptq-llama-3.1-8b-nvfp4", quant(mixed={"fp8": ["gate_proj"]}), {}, "TF-K3-026"),
    ("triton-llama-7b", parameters(enable_trt_overlap="true"), {}, "TF-K23-005"),
    ("llama-7b-fp16", trtllm(max_beam_width=4), {"model": public("mistralai/Mistral-7B-v0.1")}, "TF-K24-001"),
    ("triton-guided", trtllm(max_beam_width=2), {}, "TF-K24-002"),
    ("triton-llama-7b-streaming", trtllm(max_beam_width=4), {}, "TF-K24-003"),
    ("triton-llama-7b-streaming", trtllm(max_beam_width=4), {}, "TF-K24-004"),
    ("triton-llama-7b", parameters(decoding_mode="beam_search"), {}, "TF-K24-005"),
    ("triton-llama-7b", parameters(max_beam_width="4"), {}, "TF-K24-006"),
]


@pytest.mark.parametrize("name", ["llama-7b-tp2", "serve-llama-3.1-8b-fp8-tp2"])
def test_a_vocabulary_that_tensorrt_llm_pads_is_no_finding(name: str, tmp_path: Path) -> None:
    valid = VALID[name]
    valid.write(tmp_path)
    facts = valid.facts_with()
    facts["model"] = replace(facts["model"], vocab=32_001)
    assert "TF-K6-003" not in codes(valid.settings, directory=tmp_path, **facts)


def test_a_load_test_is_judged_where_it_runs_and_was_asked_for() -> None:
    small = build(limits={"max_batch_size": 8})
    assert "TF-K9-007" not in codes(small)
    asked = merged(small, {"bench": {"concurrency": [16]}})
    assert "TF-K9-007" in codes(asked)
    assert "TF-K9-007" not in codes(merged(asked, build(target="tensorrt-rtx", architectures=["sm_89"])))


@pytest.mark.parametrize("stack", ["trtllm-9", "trtllm-1.3.0", "zzz"])
def test_an_unknown_stack_is_answered_with_rows_of_the_target(stack: str, tmp_path: Path) -> None:
    valid = VALID["llama-7b-fp16"]
    valid.write(tmp_path)
    (found,) = [
        finding
        for finding in report(
            merged(valid.settings, {"stack": stack}), directory=tmp_path, **valid.facts_with()
        ).findings
        if finding.code == "TF-K2-001"
    ]
    rows = [remedy for remedy in found.remedies if remedy.startswith("stack: ")]
    assert rows == ["stack: trtllm-1.2.1"]


def test_the_corpora_are_large_enough() -> None:
    assert len(VALID) >= 20
    assert len(PLANTED) >= 60
    assert len({(name, str(change), str(facts)) for name, change, facts, _ in PLANTED}) >= 60


@pytest.mark.parametrize(("name", "change", "facts", "code"), PLANTED, ids=lambda value: str(value)[:48])
def test_the_planted_fault_is_found(
    name: str, change: dict[str, Any], facts: dict[str, Any], code: str, tmp_path: Path
) -> None:
    valid = {**VALID, **UNSERVED}[name]
    valid.write(tmp_path)
    assert code not in codes(valid.settings, directory=tmp_path, **valid.facts_with())
    assert code in codes(merged(valid.settings, change), directory=tmp_path, **valid.facts_with(**facts))

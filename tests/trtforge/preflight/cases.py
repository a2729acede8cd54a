"""Every rule's cases that settings, a model's record and a machine show: one that breaks it, one that does not."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from tests.support.preflight import BIG, H100, L4, SMALL, SMOL
from tests.support.public_models import public
from trtforge.recipe.merge import deep_merge

Case = tuple[dict[str, Any], dict[str, Any]]


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Settings laid over each other."""
    return reduce(deep_merge, parts, {})


def build(**keys: Any) -> dict[str, Any]:
    return {"build": keys}


def quant(**keys: Any) -> dict[str, Any]:
    return {"quantize": keys}


def trtllm(**keys: Any) -> dict[str, Any]:
    return {"build": {"trtllm": keys}}


def triton(**keys: Any) -> dict[str, Any]:
    return {"triton": keys}


def parameters(**values: str) -> dict[str, Any]:
    return {"triton": {"parameters": values}}


def speculation(**keys: Any) -> dict[str, Any]:
    return {"speculation": keys}


#: a recipe for each target
GPU = build(target="tensorrt", architectures=["sm_89"])
RTX = build(target="tensorrt-rtx", architectures=["sm_89"])
ENGINE = merged(
    build(target="trtllm-engine", architectures=["sm_90"]),
    triton(layout="inflight_batcher_llm"),
    {"model": {"dtype": "float16"}},
)
API = merged(build(target="trtllm-llmapi", architectures=["sm_90"]), triton(layout="llmapi"))

QWEN_72B = public("Qwen/Qwen2-72B-Instruct")
LLAMA_70B = public("meta-llama/Llama-3.1-70B-Instruct")
LLAMA_8B = public("meta-llama/Llama-3.1-8B-Instruct")
QWEN_7B = public("Qwen/Qwen2.5-7B-Instruct")
VICUNA = public("lmsys/vicuna-7b-v1.3")
GLM = public("THUDM/chatglm3-6b")
QWEN_18 = public("Qwen/Qwen1.5-1.8B-Chat")
YARN = public("Qwen/Qwen2.5-7B-Instruct with YaRN")
WINDOW = public("mistralai/Mistral-7B-v0.1")
TREE = [[0], [0, 0], [1], [0, 1], [0, 0, 0]]

CASES: dict[str, tuple[Case, Case]] = {
    "TF-K1-001": (({"model": {"source": "${MODEL_DIR}"}}, {}), ({}, {})),
    "TF-K1-002": (
        (merged(ENGINE, parameters(kv_cache_free_gpu_memory_fraction="0.9")), {}),
        (merged(ENGINE, parameters(kv_cache_free_gpu_mem_fraction="0.9")), {}),
    ),
    "TF-K1-003": (
        (merged(ENGINE, parameters(kv_cache_free_gpu_mem_fraction="90")), {}),
        (merged(ENGINE, parameters(kv_cache_free_gpu_mem_fraction="0.9")), {}),
    ),
    "TF-K1-004": (
        (merged(ENGINE, parameters(enable_kv_cache_reuse="true")), {}),
        (merged(ENGINE, parameters(enable_kv_cache_reuse="true"), trtllm(kv_reuse=True)), {}),
    ),
    "TF-K1-005": (
        (merged(ENGINE, parameters(gpt_model_path="/engines/llama")), {}),
        (merged(ENGINE, parameters(normalize_log_probs="true")), {}),
    ),
    "TF-K2-001": (({"stack": "trt-10.61"}, {}), ({"stack": "torch-2.13"}, {})),
    "TF-K2-002": (({"stack": "trt-10.16"}, {}), ({"stack": "trt-10.16", **GPU}, {})),
    "TF-K2-003": ((triton(version="25.12"), {}), (triton(version="2.51.0"), {})),
    "TF-K2-004": (
        (ENGINE, {"machine": replace(BIG, versions={"tensorrt-llm": "1.1.0"})}),
        (ENGINE, {"machine": replace(BIG, versions={"tensorrt-llm": "1.2.1"})}),
    ),
    "TF-K2-005": (
        (ENGINE, {"machine": replace(BIG, versions={"tensorrt": "10.13.3.9"})}),
        (ENGINE, {"machine": replace(BIG, versions={"tensorrt": "10.14.1.48"})}),
    ),
    "TF-K2-006": (
        (quant(format="fp8"), {"machine": replace(BIG, versions={"nvidia-modelopt": "0.37.0"})}),
        (quant(format="fp8"), {"machine": replace(BIG, versions={"nvidia-modelopt": "0.47.0"})}),
    ),
    "TF-K3-001": ((quant(format="fp9"), {}), (quant(format="fp8"), {})),
    "TF-K3-002": (
        (merged(quant(format="nvfp4"), GPU), {}),
        (merged(quant(format="nvfp4"), build(target="tensorrt", architectures=["sm_100"])), {}),
    ),
    "TF-K3-003": (
        (
            merged(
                quant(format="int4_awq", group_size=64, kv_cache="fp8"),
                build(target="tensorrt", architectures=["sm_80"]),
            ),
            {},
        ),
        (merged(quant(format="fp8", kv_cache="fp8"), GPU), {}),
    ),
    "TF-K3-004": ((build(target="tensorrt", architectures=["sm_91"]), {}), (GPU, {})),
    "TF-K3-005": ((quant(format="fp8", kv_cache="nvfp4"), {}), (quant(format="fp8", kv_cache="fp8"), {})),
    "TF-K3-006": (
        (quant(format="fp8"), {"model": replace(SMOL, prequantized="fp8")}),
        (quant(format="none"), {"model": replace(SMOL, prequantized="fp8")}),
    ),
    "TF-K3-007": ((build(architectures=["sm_89"]), {}), (GPU, {})),
    "TF-K3-008": ((build(target="tensorrt-rtx", architectures=["sm_90"]), {}), (RTX, {})),
    "TF-K3-009": ((ENGINE, {"machine": replace(BIG, gpus=(L4,))}), (ENGINE, {"machine": replace(BIG, gpus=(H100,))})),
    "TF-K3-010": ((merged(ENGINE, build(architectures=["sm_89", "sm_90"])), {}), (ENGINE, {})),
    "TF-K3-011": (
        (
            merged(
                ENGINE,
                quant(format="fp8", kv_cache="fp8"),
                build(architectures=["sm_89"]),
                trtllm(fp8_context_attention=True),
            ),
            {},
        ),
        (merged(ENGINE, quant(format="fp8", kv_cache="fp8"), trtllm(fp8_context_attention=True)), {}),
    ),
    "TF-K3-012": (
        (build(target="tensorrt-rtx", architectures=["sm_75"]), {}),
        (merged(build(target="tensorrt-rtx", architectures=["sm_75"]), {"model": {"dtype": "float16"}}), {}),
    ),
    "TF-K4-001": ((quant(format="int4_awq"), {}), (quant(format="int4_awq", group_size=64), {})),
    "TF-K4-002": ((quant(format="fp8", group_size=64), {}), (quant(format="int4_awq", group_size=64), {})),
    "TF-K4-003": (
        (merged(ENGINE, quant(format="int4_awq", group_size=32)), {"model": LLAMA_8B}),
        (merged(ENGINE, quant(format="int4_awq", group_size=64)), {"model": LLAMA_8B}),
    ),
    "TF-K4-004": (
        (merged(ENGINE, quant(format="fp8"), build(parallel={"tp": 16})), {"model": QWEN_18}),  # 5504 / 16 = 344
        (merged(ENGINE, quant(format="fp8"), build(parallel={"tp": 8})), {"model": QWEN_18}),
    ),
    "TF-K5-001": (
        (build(target="tensorrt", parallel={"tp": 8}), {"model": QWEN_7B}),  # 28 heads
        (build(target="tensorrt", parallel={"tp": 4}), {"model": QWEN_7B}),
    ),
    "TF-K5-002": (
        (build(target="tensorrt", parallel={"tp": 3}), {"model": GLM}),
        (build(target="tensorrt", parallel={"tp": 4}), {"model": GLM}),
    ),
    "TF-K5-003": (
        (build(target="tensorrt", parallel={"tp": 4}), {"model": GLM}),
        (build(target="tensorrt", parallel={"tp": 2}), {"model": GLM}),
    ),
    "TF-K5-004": (
        (build(target="tensorrt", parallel={"tp": 4}), {"model": replace(GLM, ffn=13_698)}),
        (build(target="tensorrt", parallel={"tp": 4}), {"model": GLM}),
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
    "TF-K6-004": (
        (quant(format="fp8", exclude=[]), {"model": LLAMA_8B, "machine": BIG}),
        (quant(format="fp8"), {"model": LLAMA_8B, "machine": BIG}),
    ),
    "TF-K7-006": (
        (merged(ENGINE, trtllm(fp8_context_attention=True)), {"model": replace(LLAMA_8B, prequantized="fp8")}),
        (
            merged(ENGINE, trtllm(fp8_context_attention=True)),
            {"model": replace(LLAMA_8B, prequantized="fp8", prequantized_kv_cache="fp8")},
        ),
    ),
    "TF-K7-007": (
        ({}, {"model": replace(LLAMA_8B, rope={"rope_type": "default", "rope_theta": 500_000.0}), "machine": BIG}),
        ({}, {"model": LLAMA_8B, "machine": BIG}),
    ),
    "TF-K8-001": (
        (merged(quant(format="fp8"), {"evals": {"perplexity": {"gate": None}}}), {}),
        ({"evals": {"perplexity": {"gate": None}}}, {}),
    ),
    "TF-K8-002": (
        (merged(quant(format="fp8"), {"evals": {"perplexity": {"gate": {"max_increase": "400%"}}}}), {}),
        (merged(quant(format="fp8"), {"evals": {"perplexity": {"gate": {"max_increase": "10%"}}}}), {}),
    ),
    "TF-K8-003": (
        (merged(API, quant(format="fp8"), build(limits={"max_seq_len": 65_536})), {"model": YARN, "machine": BIG}),
        (merged(API, quant(format="fp8"), build(limits={"max_seq_len": 32_768})), {"model": YARN, "machine": BIG}),
    ),
    "TF-K8-004": (
        (merged(quant(format="int4_awq", group_size=64), {"evals": {"perplexity": {"gate": None}}}), {}),
        (quant(format="int4_awq", group_size=64), {}),
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
        (merged(build(limits={"max_seq_len": 512}), {"bench": {"prompts": "builtin:short"}}), {}),
    ),
    "TF-K9-007": (({"bench": {"concurrency": [1, 64]}}, {}), ({"bench": {"concurrency": [1, 32]}}, {})),
    "TF-K9-008": (
        (merged(build(limits={"max_seq_len": 64}), {"evals": {"generation": {"max_tokens": 64}}}), {}),
        (merged(build(limits={"max_seq_len": 64}), {"evals": {"generation": {"max_tokens": 63}}}), {}),
    ),
    "TF-K9-009": (({"evals": {"perplexity": {"tokens": 1000}}}, {}), ({"evals": {"perplexity": {"tokens": 1024}}}, {})),
    "TF-K9-010": ((trtllm(workers=2), {}), (merged(ENGINE, trtllm(workers=1)), {})),
    "TF-K9-011": (
        # a prompt of 9,351 tokens against 8,192
        (
            merged(
                ENGINE,
                trtllm(chunked_context=False),
                build(limits={"max_num_tokens": 8192, "max_input_len": 9351, "max_seq_len": 16_384}),
            ),
            {"model": LLAMA_8B},
        ),
        (
            merged(ENGINE, build(limits={"max_num_tokens": 8192, "max_input_len": 9351, "max_seq_len": 16_384})),
            {"model": LLAMA_8B},
        ),
    ),
    "TF-K9-012": (
        (merged(ENGINE, build(limits={"max_num_tokens": 32}, kv_cache={"block_size": 64})), {}),
        (merged(ENGINE, build(limits={"max_num_tokens": 64}, kv_cache={"block_size": 64})), {}),
    ),
    "TF-K10-001": ((build(kv_cache={"memory": "44MiB"}), {}), (build(kv_cache={"memory": "45MiB"}), {})),
    "TF-K10-002": ((build(kv_cache={"memory": "24GiB"}), {}), (build(kv_cache={"memory": "16GiB"}), {})),
    "TF-K10-003": (
        (build(kv_cache={"memory": "2GiB"}), {"machine": replace(SMALL, memory_available=2 << 30)}),
        (build(kv_cache={"memory": "512MiB"}), {"machine": replace(SMALL, memory_available=2 << 30)}),
    ),
    "TF-K10-004": (
        (build(kv_cache={"memory": "46MiB"}, limits={"max_batch_size": 256}), {}),
        (build(kv_cache={"memory": "512MiB"}, limits={"max_batch_size": 256}), {}),
    ),
    "TF-K10-005": (
        (
            merged(ENGINE, build(kv_cache={"free_fraction": 0.9}), speculation(method="draft_target", max_draft_len=4)),
            {},
        ),
        (
            merged(ENGINE, build(kv_cache={"memory": "8GiB"}), speculation(method="draft_target", max_draft_len=4)),
            {},
        ),
    ),
    "TF-K10-006": (
        (merged(ENGINE, build(architectures=["sm_89"])), {"model": LLAMA_70B}),
        (merged(ENGINE, build(architectures=["sm_89"], parallel={"tp": 4})), {"model": LLAMA_70B}),
    ),
    "TF-K10-007": (
        (
            merged(ENGINE, build(kv_cache={"memory": "70GiB"})),
            {"model": LLAMA_8B, "machine": replace(BIG, gpus=(H100,))},
        ),
        (
            merged(ENGINE, build(kv_cache={"memory": "40GiB"})),
            {"model": LLAMA_8B, "machine": replace(BIG, gpus=(H100,))},
        ),
    ),
    "TF-K10-008": (
        (merged(ENGINE, build(kv_cache={"free_fraction": 0.99})), {}),
        (merged(ENGINE, build(kv_cache={"free_fraction": 0.9})), {}),
    ),
    "TF-K10-009": (
        (
            merged(
                ENGINE, trtllm(max_beam_width=8), build(kv_cache={"memory": "256MiB"}, limits={"max_batch_size": 64})
            ),
            {},
        ),
        (
            merged(ENGINE, trtllm(max_beam_width=8), build(kv_cache={"memory": "1GiB"}, limits={"max_batch_size": 64})),
            {},
        ),
    ),
    "TF-K11-001": ((quant(format="fp8"), {"model": QWEN_72B}), (quant(format="fp8"), {})),
    "TF-K11-002": (
        (quant(format="fp8"), {"machine": replace(SMALL, disk_free=800 << 20)}),
        (quant(format="fp8"), {"machine": replace(SMALL, disk_free=2 << 30)}),
    ),
    "TF-K11-003": (
        (
            merged(ENGINE, trtllm(workers=8), build(parallel={"tp": 8})),
            {"model": LLAMA_70B, "machine": replace(BIG, memory_total=256 << 30)},
        ),
        (
            merged(ENGINE, trtllm(workers=4), build(parallel={"tp": 8})),
            {"model": LLAMA_70B, "machine": replace(BIG, memory_total=256 << 30)},
        ),
    ),
    "TF-K11-004": (
        (merged(ENGINE, trtllm(kv_reuse=True, host_kv_memory="45GB")), {}),
        (merged(ENGINE, trtllm(kv_reuse=True, host_kv_memory="45GB")), {"machine": BIG}),
    ),
    "TF-K12-001": ((speculation(method="ngram"), {}), (speculation(method="none"), {})),
    "TF-K12-002": (
        (merged(ENGINE, speculation(method="draft_target", draft="hf:a/b", max_draft_len=4)), {}),
        (
            merged(ENGINE, trtllm(kv_reuse=True), speculation(method="draft_target", draft="hf:a/b", max_draft_len=4)),
            {},
        ),
    ),
    "TF-K12-003": (
        (merged(API, build(parallel={"pp": 2}), speculation(method="ngram", max_draft_len=4)), {}),
        (merged(API, speculation(method="ngram", max_draft_len=4)), {}),
    ),
    "TF-K12-004": (
        (merged(ENGINE, speculation(method="medusa", max_draft_len=63)), {}),
        (merged(ENGINE, speculation(method="lookahead")), {}),
    ),
    "TF-K12-009": (
        (merged(API, speculation(method="ngram")), {}),
        (merged(API, speculation(method="ngram", max_draft_len=4)), {}),
    ),
    "TF-K12-010": (
        # (7, 7, 7) gives 83, as NVIDIA's example says
        (
            merged(
                ENGINE,
                speculation(
                    method="lookahead", max_draft_len=64, lookahead={"window": 7, "ngram": 7, "verification": 7}
                ),
            ),
            {},
        ),
        (
            merged(
                ENGINE,
                speculation(
                    method="lookahead", max_draft_len=83, lookahead={"window": 7, "ngram": 7, "verification": 7}
                ),
            ),
            {},
        ),
    ),
    "TF-K12-011": (
        (merged(ENGINE, speculation(method="medusa", draft="hf:a/b", choices=[[0], [1, 0]])), {}),
        (merged(ENGINE, speculation(method="medusa", draft="hf:a/b", choices=TREE)), {}),
    ),
    "TF-K12-012": (
        (merged(ENGINE, speculation(method="medusa", draft="hf:a/b", heads=2, choices=TREE)), {}),
        (merged(ENGINE, speculation(method="medusa", draft="hf:a/b", heads=3, choices=TREE)), {}),
    ),
    "TF-K12-014": (
        (
            merged(
                API,
                speculation(method="ngram", max_draft_len=7),
                build(limits={"max_batch_size": 64, "max_num_tokens": 256}),
            ),
            {},
        ),
        (
            merged(
                API,
                speculation(method="ngram", max_draft_len=7),
                build(limits={"max_batch_size": 64, "max_num_tokens": 512}),
            ),
            {},
        ),
    ),
    "TF-K12-015": (
        (
            merged(
                API,
                speculation(method="ngram", max_draft_len=3),
                build(limits={"max_batch_size": 128, "max_num_tokens": 2048}),
            ),
            {},
        ),
        (merged(API, speculation(method="ngram", max_draft_len=3)), {}),
    ),
    "TF-K12-016": (
        (merged(ENGINE, speculation(method="eagle", draft="hf:a/b", heads=4, max_draft_len=512)), {}),
        (merged(ENGINE, speculation(method="eagle", draft="hf:a/b", heads=4, max_draft_len=63)), {}),
    ),
    "TF-K12-017": (
        (
            merged(ENGINE, trtllm(kv_reuse=True), speculation(method="draft_target", draft="hf:a/b", max_draft_len=4)),
            {},
        ),
        (merged(ENGINE, speculation(method="lookahead")), {}),
    ),
    "TF-K12-018": (
        (merged(ENGINE, speculation(method="eagle", draft="draft", max_draft_len=63)), {}),
        (merged(ENGINE, speculation(method="medusa", draft="draft", max_draft_len=63)), {}),
    ),
    "TF-K12-019": (
        (merged(API, speculation(method="eagle3", draft="hf:yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")), {}),
        (merged(API, speculation(method="eagle3", draft="EAGLE3-LLaMA3.1-Instruct-8B")), {}),
    ),
    "TF-K13-001": ((triton(layout="llmapi"), {}), (triton(layout="native"), {})),
    "TF-K13-002": (({"evals": {"tasks": ["mmlu"]}}, {}), ({"evals": {"tasks": []}}, {})),
    "TF-K13-003": (
        (merged(ENGINE, trtllm(kv_reuse=True, chunked_context=False, paged_context_attention=False)), {}),
        (merged(ENGINE, trtllm(kv_reuse=True)), {}),
    ),
    "TF-K13-004": (
        (merged(ENGINE, quant(format="fp8", kv_cache="int8")), {}),
        (merged(ENGINE, quant(format="fp8", kv_cache="fp8")), {}),
    ),
    "TF-K13-005": (
        (merged(API, quant(format="int4_awq", group_size=64, kv_cache="fp8")), {}),
        (merged(API, quant(format="int4_awq", group_size=64)), {}),
    ),
    "TF-K14-001": (
        (merged(ENGINE, triton(accumulate_tokens=False)), {}),
        (merged(ENGINE, triton(accumulate_tokens=False, decoupled=False)), {}),
    ),
    "TF-K14-002": (
        (merged(triton(decoupled=False), {"bench": {"slo": {"itl_p99": "200ms"}}}), {}),
        ({"bench": {"slo": {"itl_p99": "200ms"}}}, {}),
    ),
    "TF-K14-003": ((merged(API, parameters(decoupled="false")), {}), (merged(API, triton(decoupled=False)), {})),
    "TF-K15-002": (({}, {"model": replace(SMOL, eos_token_ids=())}), ({}, {})),
    "TF-K16-001": ((build(parallel={"tp": 3}), {}), (build(parallel={"tp": 1}), {})),
    "TF-K16-002": (
        (build(target="tensorrt", parallel={"pp": 31}), {}),
        (build(target="tensorrt", parallel={"pp": 30}), {}),
    ),
    "TF-K16-003": (
        (
            merged(API, build(parallel={"tp": 4, "pp": 2})),
            {"model": LLAMA_70B, "machine": replace(BIG, gpus=(H100,) * 4)},
        ),
        (merged(API, build(parallel={"tp": 4})), {"model": LLAMA_70B, "machine": replace(BIG, gpus=(H100,) * 4)}),
    ),
    "TF-K16-004": (
        (merged(ENGINE, build(parallel={"tp": 2}), parameters(gpu_device_ids="0,1;1,2")), {"model": LLAMA_8B}),
        (merged(ENGINE, build(parallel={"tp": 2}), parameters(gpu_device_ids="0,1;2,3")), {"model": LLAMA_8B}),
    ),
    "TF-K16-005": (
        (
            merged(ENGINE, build(parallel={"tp": 2}), triton(launch="orchestrator"), parameters(participant_ids="0,1")),
            {"model": LLAMA_8B},
        ),
        (
            merged(ENGINE, build(parallel={"tp": 2}), triton(launch="orchestrator"), parameters(participant_ids="1,2")),
            {"model": LLAMA_8B},
        ),
    ),
    "TF-K16-006": ((merged(ENGINE, trtllm(workers=8)), {}), (merged(ENGINE, trtllm(workers=1)), {})),
    "TF-K16-007": (
        (
            merged(
                ENGINE, build(parallel={"tp": 2}), speculation(method="draft_target", draft="hf:a/b", max_draft_len=4)
            ),
            {"model": LLAMA_8B},
        ),
        (
            merged(
                ENGINE,
                build(parallel={"tp": 2}),
                triton(launch="orchestrator"),
                speculation(method="draft_target", draft="hf:a/b", max_draft_len=4),
            ),
            {"model": LLAMA_8B},
        ),
    ),
    "TF-K16-008": (
        (
            merged(ENGINE, build(parallel={"tp": 2}), parameters(gpu_device_ids="2,3")),
            {"model": LLAMA_8B, "machine": replace(BIG, gpus=(H100,) * 2)},
        ),
        (
            merged(ENGINE, build(parallel={"tp": 2}), parameters(gpu_device_ids="0,1")),
            {"model": LLAMA_8B, "machine": replace(BIG, gpus=(H100,) * 2)},
        ),
    ),
    "TF-K18-001": (
        ({}, {"model": replace(SMOL, rope={"type": "longrope"})}),
        ({}, {"model": replace(SMOL, rope={"rope_type": "yarn", "factor": 4.0})}),
    ),
    "TF-K18-002": (
        ({}, {"model": replace(SMOL, rope={"rope_type": "llama3", "factor": 8.0})}),
        ({}, {"model": replace(SMOL, rope={"type": "linear", "factor": 2.0})}),
    ),
    "TF-K18-005": (
        ({}, {"machine": replace(BIG, versions={"transformers": "4.40.0"})}),
        ({}, {"machine": replace(BIG, versions={"transformers": "4.57.1"})}),
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
        ({"evals": {"perplexity": {"corpus": "hf:wikitext"}}}, {"machine": replace(SMALL, offline=True)}),
        ({"evals": {"perplexity": {"corpus": "hf:wikitext"}}}, {}),
    ),
    "TF-K19-004": (
        ({"evals": {"perplexity": {"tokens": 10_000_000}}}, {}),
        ({"evals": {"perplexity": {"tokens": 8192}}}, {}),
    ),
    "TF-K19-005": (
        ({"evals": {"perplexity": {"corpus": "hf:wikitext"}}}, {}),
        (
            {"evals": {"perplexity": {"corpus": "hf:wikitext"}}},
            {"machine": replace(SMALL, versions={"datasets": "4.0.0"})},
        ),
    ),
    "TF-K19-006": (
        ({"model": {"source": "hf:no-org/no-model"}}, {"machine": replace(SMALL, offline=True), "model": None}),
        ({"model": {"source": "hf:no-org/no-model"}}, {"model": None}),
    ),
    "TF-K19-007": (
        ({"model": {"source": "hf:meta-llama/no-such-Llama"}}, {"model": None}),
        (
            {"model": {"source": "hf:meta-llama/no-such-Llama"}},
            {"model": None, "machine": replace(SMALL, hub_token=True)},
        ),
    ),
    "TF-K21-001": (
        (merged(API, trtllm(lora={"adapters": {"a": "hf:a/b"}}), speculation(method="ngram", max_draft_len=4)), {}),
        (merged(API, trtllm(lora={"adapters": {"a": "hf:a/b"}})), {}),
    ),
    "TF-K21-008": (
        (merged(ENGINE, trtllm(lora={"max_rank": 16})), {}),
        (merged(ENGINE, trtllm(lora={"adapters": {"a": "hf:a/b"}})), {}),
    ),
    "TF-K22-001": (
        (merged(ENGINE, triton(preprocessing_instances=1)), {}),
        (merged(ENGINE, triton(preprocessing_instances=5)), {}),
    ),
    "TF-K22-002": (
        (merged(ENGINE, triton(queue_delay_us=50_000)), {}),
        (merged(ENGINE, triton(queue_delay_us=0)), {}),
    ),
    "TF-K22-003": (
        (merged(ENGINE, triton(preprocessing_instances=40)), {"machine": replace(SMALL, gpus=(H100,))}),
        (ENGINE, {"machine": replace(BIG, gpus=(H100,))}),
    ),
    "TF-K22-004": (
        (
            merged(API, build(limits={"max_num_tokens": 1024, "max_seq_len": 131_072})),
            {"model": LLAMA_70B, "machine": BIG},
        ),
        (
            merged(API, build(limits={"max_num_tokens": 8192, "max_seq_len": 131_072})),
            {"model": LLAMA_70B, "machine": BIG},
        ),
    ),
    "TF-K22-005": (
        (
            merged(ENGINE, quant(format="int4_awq"), build(limits={"max_batch_size": 64})),
            {"model": LLAMA_8B, "machine": BIG},
        ),
        (merged(ENGINE, quant(format="int4_awq"), build(limits={"max_batch_size": 8})), {"model": LLAMA_8B}),
    ),
    "TF-K23-001": (
        (merged({"stack": "trtllm-1.3"}, ENGINE), {}),
        (merged({"stack": "trtllm-1.2.1"}, ENGINE), {}),
    ),
    "TF-K23-004": ((quant(format="w4a8_awq"), {}), (quant(format="int4_awq", group_size=64), {})),
    "TF-K23-005": (
        (merged(ENGINE, parameters(enable_trt_overlap="true")), {}),
        (merged(ENGINE, parameters(enable_chunked_context="true")), {}),
    ),
    "TF-K24-001": (
        (merged(ENGINE, trtllm(max_beam_width=4)), {"model": WINDOW, "machine": BIG}),
        (merged(ENGINE, trtllm(max_beam_width=1)), {"model": WINDOW, "machine": BIG}),
    ),
    "TF-K24-002": (
        (merged(API, trtllm(max_beam_width=4, guided_decoding="xgrammar")), {}),
        (merged(API, trtllm(guided_decoding="xgrammar")), {}),
    ),
    "TF-K24-003": (
        (merged(API, trtllm(max_beam_width=4)), {}),
        (merged(API, trtllm(max_beam_width=4), triton(decoupled=False)), {}),
    ),
    "TF-K24-004": (
        (merged(ENGINE, trtllm(max_beam_width=4)), {}),
        (merged(ENGINE, trtllm(max_beam_width=4), triton(decoupled=False)), {}),
    ),
    "TF-K24-005": (
        (merged(ENGINE, parameters(decoding_mode="beam_search")), {}),
        (merged(ENGINE, parameters(decoding_mode="top_k_top_p")), {}),
    ),
    "TF-K24-006": (
        (merged(ENGINE, parameters(max_beam_width="4")), {}),
        (merged(ENGINE, parameters(max_beam_width="1")), {}),
    ),
}

#: rules about this version of trtforge: their cases depend on what it implements, so they say it themselves
UNIMPLEMENTED: dict[str, dict[str, Any]] = {
    "TF-K23-002": {"implemented_targets": ("torch",), "settings": GPU},
    "TF-K23-003": {"implemented_layouts": ("native",), "settings": triton(layout="inflight_batcher_llm")},
}

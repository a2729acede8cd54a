"""Cases of K1 to K11: one that breaks the rule, one that does not."""

from __future__ import annotations

from dataclasses import replace

from tests.support.preflight import BIG, H100, L4, SMALL, SMOL
from tests.trtforge.preflight.settings import (
    API,
    ENGINE,
    GLM,
    GPU,
    LLAMA_8B,
    LLAMA_70B,
    QWEN_7B,
    QWEN_18,
    QWEN_72B,
    RTX,
    YARN,
    Case,
    build,
    merged,
    parameters,
    quant,
    speculation,
    triton,
    trtllm,
)
from trtforge.preflight.surroundings import Lack

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
    "TF-K2-007": (
        (GPU, {"machine": replace(BIG, lacks=(Lack("TensorRT", "libnvinfer does not load", "pip install tensorrt"),))}),
        (GPU, {"machine": BIG}),
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
    "TF-K10-011": (
        (merged(ENGINE, build(architectures=["sm_90"], kv_cache={"memory": "96MiB"})), {"machine": None}),
        (merged(ENGINE, build(architectures=["sm_90"], kv_cache={"memory": "8GiB"})), {"machine": None}),
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
    "TF-K3-013": (
        (merged(quant(format="fp8_rowwise"), build(target="tensorrt", architectures=["sm_90"])), {}),
        (merged(quant(format="fp8"), build(target="tensorrt", architectures=["sm_90"])), {}),
    ),
    "TF-K3-014": ((quant(format="nvfp4_svdquant"), {}), (quant(format="nvfp4_awq"), {})),
    "TF-K3-024": (
        (quant(format="nvfp4", mixed={"fp9": ["down_proj"]}), {}),
        (quant(format="nvfp4", mixed={"fp8": ["down_proj"]}), {}),
    ),
    "TF-K3-025": (
        (quant(format="nvfp4", mixed={"int4_awq": ["down_proj"]}), {}),
        (quant(format="nvfp4", mixed={"int8_wo": ["down_proj"]}), {}),
    ),
    "TF-K3-026": (
        (quant(format="nvfp4", mixed={"fp8": ["layers.0.self_attn.q_proj"]}), {}),
        (quant(format="nvfp4", mixed={"fp8": ["layers.0.self_attn"]}), {}),
    ),
    "TF-K3-027": (
        (quant(format="nvfp4", mixed={"fp8": ["down_project"]}), {}),
        (quant(format="nvfp4", mixed={"fp8": ["down_proj"]}), {}),
    ),
    "TF-K3-028": (
        (quant(format="nvfp4", mixed={"int4_wo:128": ["down_proj", "o_proj"]}), {}),
        (quant(format="nvfp4", mixed={"int4_wo:128": ["down_proj"]}), {}),
    ),
    "TF-K3-015": ((quant(format="fp8", scope="experts"), {}), (quant(format="fp8", scope="mlp"), {})),
    "TF-K3-020": ((merged(RTX, quant(format="fp8", kv_cache="fp8")), {}), (merged(RTX, quant(format="fp8")), {})),
    "TF-K3-021": (
        (merged(build(target="tensorrt-rtx", architectures=["sm_75"]), {"model": {"dtype": "float32"}}), {}),
        (merged(RTX, {"model": {"dtype": "float32"}}), {}),
    ),
    "TF-K3-022": ((build(target="tensorrt-rtx"), {}), (RTX, {})),
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
    "TF-K5-006": (
        (GPU, {"model": replace(SMOL, head_size=100)}),
        (merged(API), {"model": replace(SMOL, head_size=32)}),
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
    "TF-K5-007": (
        # OpenLLaMA 3B: 3200 over 32 heads
        (merged(ENGINE, build(limits={"max_seq_len": 2048})), {"model": replace(LLAMA_8B, head_size=100)}),
        (merged(ENGINE, build(limits={"max_seq_len": 2048})), {"model": replace(LLAMA_8B, head_size=96)}),
    ),
    "TF-K5-008": (
        # Phi-3-mini's heads
        (
            merged(
                ENGINE,
                quant(format="fp8", kv_cache="fp8"),
                trtllm(fp8_context_attention=True),
                build(architectures=["sm_100"], limits={"max_seq_len": 2048}),
            ),
            {"model": replace(LLAMA_8B, heads=8, kv_heads=8, head_size=96), "machine": BIG},
        ),
        (
            merged(
                ENGINE,
                quant(format="fp8", kv_cache="fp8"),
                trtllm(fp8_context_attention=True),
                build(architectures=["sm_100"], limits={"max_seq_len": 2048}),
            ),
            {"model": LLAMA_8B, "machine": BIG},
        ),
    ),
    "TF-K5-009": (
        (
            merged(API, quant(format="fp8", kv_cache="fp8"), build(architectures=["sm_120"])),
            {"model": replace(LLAMA_8B, head_size=256), "machine": BIG},
        ),
        (
            merged(API, quant(format="fp8", kv_cache="fp8"), build(architectures=["sm_90"])),
            {"model": replace(LLAMA_8B, head_size=256), "machine": BIG},
        ),
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
    "TF-K8-005": (
        # read of the checkpoint: a Llama class over Qwen's weights
        (quant(format="fp8", kv_cache="fp8"), {"model": replace(SMOL, key_bias=211.0)}),
        (quant(format="fp8"), {"model": replace(SMOL, key_bias=211.0)}),
    ),
    "TF-K8-006": (
        ({"evals": {"engine_parity": {"prompts": 2}}}, {}),
        ({"evals": {"engine_parity": {"prompts": 3}}}, {}),
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
    "TF-K9-017": (
        ({"evals": {"long_context": {"lengths": [1024, 9000]}}}, {}),
        ({"evals": {"long_context": {"lengths": [1024, 8192]}}}, {}),
    ),
    "TF-K9-018": (
        ({"evals": {"perplexity": {"tokens": 2048}, "engine_parity": {"tokens": 4096}}}, {}),
        ({"evals": {"perplexity": {"tokens": 2048}, "engine_parity": {"tokens": 2048}}}, {}),
    ),
    "TF-K9-006": (
        (build(limits={"max_seq_len": 512}), {}),
        (merged(build(limits={"max_seq_len": 512}), {"bench": {"prompts": "builtin:short"}}), {}),
    ),
    "TF-K9-019": (
        ({"serving": {"max_output_tokens": 16}, "bench": {"max_tokens": 17}}, {}),
        ({"serving": {"max_output_tokens": 16}, "bench": {"max_tokens": 16}}, {}),
    ),
    "TF-K9-007": (({"bench": {"concurrency": [1, 64]}}, {}), ({"bench": {"concurrency": [1, 32]}}, {})),
    "TF-K9-015": (
        ({"evals": {"perplexity": {"window": 128, "stride": 128}}}, {}),
        ({"evals": {"perplexity": {"window": 128, "stride": 127}}}, {}),
    ),
    "TF-K9-016": (
        (merged(ENGINE, build(limits={"max_num_tokens": 10**18})), {}),
        (merged(ENGINE, build(limits={"max_num_tokens": 2**31 - 1})), {}),
    ),
    "TF-K10-010": (
        # five blocks of 512: 2,560 tokens, a request takes 6,144
        (
            merged(ENGINE, build(limits={"max_seq_len": 6144}), parameters(max_tokens_in_paged_kv_cache="2560")),
            {"model": LLAMA_8B, "machine": BIG},
        ),
        (
            merged(ENGINE, build(limits={"max_seq_len": 6144}), parameters(max_tokens_in_paged_kv_cache="6144")),
            {"model": LLAMA_8B, "machine": BIG},
        ),
    ),
    "TF-K9-008": (
        (merged(build(limits={"max_seq_len": 64}), {"evals": {"generation": {"max_tokens": 64}}}), {}),
        (merged(build(limits={"max_seq_len": 64}), {"evals": {"generation": {"max_tokens": 63}}}), {}),
    ),
    "TF-K9-009": (({"evals": {"perplexity": {"tokens": 1000}}}, {}), ({"evals": {"perplexity": {"tokens": 1024}}}, {})),
    "TF-K9-014": (
        (build(limits={"max_seq_len": 65_536}), {"model": YARN, "machine": BIG}),
        (build(limits={"max_seq_len": 32_768}), {"model": YARN, "machine": BIG}),
    ),
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
    "TF-K11-001": (
        (quant(format="fp8"), {"model": QWEN_72B, "machine": replace(SMALL, memory_total=8 << 30)}),
        (quant(format="fp8"), {"model": QWEN_72B}),
    ),
    "TF-K11-005": (
        (quant(format="fp8"), {"model": QWEN_72B}),
        (merged(quant(format="fp8"), {"model": {"loading": "by_layer"}}), {"model": QWEN_72B}),
    ),
    "TF-K11-002": (
        (quant(format="fp8"), {"machine": replace(SMALL, disk_free=400 << 20)}),
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
}

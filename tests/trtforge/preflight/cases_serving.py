"""Cases of K12 to K24: one that breaks the rule, one that does not."""

from __future__ import annotations

from dataclasses import replace

from tests.support.preflight import BIG, H100, SMALL, SMOL
from tests.trtforge.preflight.settings import (
    API,
    ENGINE,
    LLAMA_8B,
    LLAMA_70B,
    QWEN_7B,
    TREE,
    WINDOW,
    Case,
    build,
    merged,
    parameters,
    quant,
    speculation,
    triton,
    trtllm,
)

#: a Qwen2 whose windows are switched on (published ones have them off)
SLIDING_QWEN = replace(QWEN_7B, architecture="Qwen2ForCausalLM", windows=(4096,) * QWEN_7B.layers)

OLDER = {"stack": "trtllm-1.2.1"}
EIGHT = build(limits={"max_batch_size": 8})
DRAFTED = {"method": "eagle3", "draft": "draft"}
CHAIN = {**DRAFTED, "max_draft_len": 4}

CASES: dict[str, tuple[Case, Case]] = {
    "TF-K12-001": ((speculation(method="lookahead"), {}), (speculation(method="ngram", max_draft_len=4), {})),
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
    "TF-K12-020": (
        (merged(ENGINE, parameters(decoding_mode="medusa")), {}),
        (merged(ENGINE, speculation(method="lookahead"), parameters(decoding_mode="lookahead")), {}),
    ),
    "TF-K12-021": (
        (merged(ENGINE, build(architectures=["sm_100"]), speculation(method="lookahead")), {}),
        (merged(ENGINE, speculation(method="lookahead")), {}),
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
        (merged(ENGINE, triton(layout="llmapi"), speculation(method="lookahead")), {}),
        (merged(ENGINE, speculation(method="lookahead")), {}),
    ),
    "TF-K12-023": (
        (merged(ENGINE, speculation(method="eagle", draft="draft", max_draft_len=31)), {}),
        (merged(ENGINE, speculation(method="eagle", draft="draft", max_draft_len=63)), {}),
    ),
    "TF-K12-019": (
        (merged(API, speculation(method="eagle3", draft="hf:yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")), {}),
        (merged(API, speculation(method="eagle3", draft="EAGLE3-LLaMA3.1-Instruct-8B")), {}),
    ),
    "TF-K12-030": (
        (merged(API, speculation(method="ngram", max_draft_len=4, adaptive=False)), {}),
        (speculation(method="ngram", max_draft_len=4, adaptive=False), {}),
    ),
    "TF-K12-031": (
        (speculation(method="eagle3", draft="draft", max_draft_len=4, ngram={"max_matching_ngram_size": 4}), {}),
        (
            speculation(
                method="eagle3",
                draft="draft",
                max_draft_len=4,
                ngram={"max_matching_ngram_size": 4},
                ngram_on_top=True,
            ),
            {},
        ),
    ),
    "TF-K12-032": (
        (speculation(method="ngram", max_draft_len=64), {}),
        (speculation(method="ngram", max_draft_len=63), {}),
    ),
    "TF-K12-033": (
        (merged(API, speculation(method="ngram", max_draft_len=64), build(limits={"max_num_tokens": 64})), {}),
        (merged(API, speculation(method="ngram", max_draft_len=63), build(limits={"max_num_tokens": 64})), {}),
    ),
    "TF-K12-036": (
        (merged(API, OLDER, speculation(**CHAIN, max_concurrency=8)), {}),
        (merged(API, speculation(**CHAIN, max_concurrency=8)), {}),
    ),
    "TF-K12-037": (
        (merged(API, speculation(**DRAFTED, dynamic_tree={"depth": 4, "top_k": 4, "total": 17})), {}),
        (merged(API, speculation(**DRAFTED, dynamic_tree={"depth": 4, "top_k": 4, "total": 16})), {}),
    ),
    "TF-K12-038": (
        (merged(EIGHT, speculation(method="ngram", max_draft_len=4, draft_len_schedule={4: 4, 8: 2, 32: 1})), {}),
        (merged(EIGHT, speculation(method="ngram", max_draft_len=4, draft_len_schedule={4: 4, 7: 2, 32: 1})), {}),
    ),
    "TF-K13-001": ((triton(layout="llmapi"), {}), (triton(layout="native"), {})),
    "TF-K13-002": (
        ({"evals": {"tasks": ["mmlu"]}}, {}),
        ({"evals": {"tasks": ["mmlu"]}}, {"machine": replace(SMALL, versions={"lm-eval": "0.4.13"})}),
    ),
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
    "TF-K13-007": (
        (merged(ENGINE, parameters(cross_kv_cache_fraction="0.5")), {}),
        (merged(ENGINE, parameters(cross_kv_cache_fraction="")), {}),
    ),
    "TF-K13-011": (
        (merged(ENGINE, {"serving": {"max_waiting": 8}}), {}),
        ({"serving": {"max_waiting": 8}}, {}),
    ),
    "TF-K13-008": (
        (merged(API, build(limits={"max_seq_len": 8192})), {"model": SLIDING_QWEN}),
        (merged(API, build(limits={"max_seq_len": 4096, "max_num_tokens": 4096})), {"model": SLIDING_QWEN}),
    ),
    "TF-K13-010": (
        (ENGINE, {"model": replace(SMOL, architecture="SmolLM3ForCausalLM")}),
        ({}, {"model": replace(SMOL, architecture="SmolLM3ForCausalLM")}),
    ),
    "TF-K14-001": (
        (merged(ENGINE, triton(accumulate_tokens=False)), {}),
        (merged(ENGINE, triton(accumulate_tokens=False, decoupled=False)), {}),
    ),
    "TF-K14-002": (
        (merged(API, triton(decoupled=False), {"bench": {"slo": {"itl_p99": "200ms"}}}), {}),
        (merged(API, {"bench": {"slo": {"itl_p99": "200ms"}}}), {}),
    ),
    "TF-K14-003": ((merged(API, parameters(decoupled="false")), {}), (merged(API, triton(decoupled=False)), {})),
    "TF-K15-002": (({}, {"model": replace(SMOL, eos_token_ids=())}), ({}, {})),
    "TF-K16-001": ((build(parallel={"tp": 3}), {}), (build(parallel={"tp": 1}), {})),
    "TF-K16-009": (
        (
            merged(
                ENGINE,
                build(parallel={"pp": 2}),
                quant(format="fp8", exclude=["lm_head", "model.layers.0.self_attn.o_proj"]),
            ),
            {},
        ),
        (merged(ENGINE, build(parallel={"pp": 2}), quant(format="fp8", exclude=["lm_head", "o_proj"])), {}),
    ),
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
    "TF-K23-004": ((quant(format="fp8_pc_pt"), {}), (quant(format="int4_awq", group_size=64), {})),
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

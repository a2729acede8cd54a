"""Planted faults of engines, chains of models, the LLM API, vLLM and the native layout."""

from __future__ import annotations

from pathlib import Path

from tests.triton_repo import corpus_llm as L
from tests.triton_repo import corpus_published as P
from tests.triton_repo import corpus_triton as T
from tests.triton_repo.corpus import PYTHON
from tests.triton_repo.plants import (
    BLS,
    ENGINE,
    POST,
    PRE,
    Plant,
    ifb,
    with_engine,
)

NGRAM = "decoding_type: NGram, max_draft_len: 4"
HEAD = "decoding_type: Eagle3, max_draft_len: 4, speculative_model: /drafts/head"
TREE = f"{HEAD}, use_dynamic_tree: true, dynamic_tree_max_topK: 4"
GATE = "acceptance_rate_window_size: 50"

ENGINES = [
    Plant(
        "no engine in the folder",
        "TF-TRI-188",
        with_engine(),
        ENGINE,
        "",
        "",
        'engine"',
        None,
        lambda r: (r.parent / "engine/config.json").unlink(),
    ),
    Plant(
        "a rank is missing",
        "TF-TRI-188",
        with_engine(tp_size=2, values={"gpu_device_ids": "0,1"}),
        ENGINE,
        "",
        "",
        'engine"',
        None,
        lambda r: (r.parent / "engine/rank1.engine").unlink(),
    ),
    Plant("relative engine that is nowhere", "TF-TRI-188", ifb(), ENGINE, "/engines/gpt/fp16/4-gpu", "engines/gpt"),
    Plant(
        "reuse without paged context",
        "TF-TRI-191",
        with_engine({"enable_kv_cache_reuse": "true"}, plugin_use_paged_context_fmha=False),
        ENGINE,
        "",
        "",
        '"true"',
    ),
    Plant(
        "chunks without paged context",
        "TF-TRI-192",
        with_engine({"enable_chunked_context": "True"}, plugin_use_paged_context_fmha=False),
        ENGINE,
        "",
        "",
        '"True"',
    ),
    Plant(
        "cache not paged",
        "TF-TRI-215",
        with_engine(kv_cache_type="CONTINUOUS"),
        ENGINE,
        "",
        "",
        "inflight_fused_batching",
    ),
    Plant("beams above the engine's", "TF-TRI-193", with_engine({"max_beam_width": "4"}), ENGINE, "", "", '"4"'),
    Plant("batch above the engine's", "TF-TRI-193", with_engine(max_batch_size=2), ENGINE, "", "", "max_batch_size: 4"),
    Plant(
        "cache below one request",
        "TF-TRI-194",
        with_engine({"max_tokens_in_paged_kv_cache": "1024"}),
        ENGINE,
        "",
        "",
        '"1024"',
    ),
    Plant(
        "one GPU for two ranks", "TF-TRI-200", with_engine({"gpu_device_ids": "0"}, tp_size=2), ENGINE, "", "", '"0"'
    ),
    Plant(
        "LoRA of another type", "TF-TRI-211", with_engine(plugin_lora_plugin="bfloat16"), ENGINE, "", "", "lora_weights"
    ),
    Plant(
        "medusa on a plain engine",
        "TF-TRI-214",
        with_engine({"decoding_mode": "medusa"}, speculative_decoding_mode=1),
        ENGINE,
        "",
        "",
        '"medusa"',
    ),
    Plant(
        "logits of another type", "TF-TRI-210", with_engine(logits_dtype="float16"), ENGINE, "", "", "context_logits"
    ),
]


def two_engines(root: Path) -> None:
    L.chain(root, values={"kv_cache_free_gpu_mem_fraction": "0.9"})
    values = {"kv_cache_free_gpu_mem_fraction": "0.85"}
    L.add(root, "tensorrt_llm_draft", L.engine_config(name="tensorrt_llm_draft", values=values))


CHAINS = [
    Plant(  # https://github.com/triton-inference-server/tensorrtllm_backend/issues/513
        "tokens accumulated of beams",
        "TF-TRI-216",
        ifb(accumulate="true", values={"max_beam_width": "4", "decoding_mode": "beam_search"}),
        BLS,
        "",
        "",
        '"true"',
    ),
    Plant(
        "flags of BLS and engine",
        "TF-TRI-203",
        ifb(decoupled=True, accumulate="true"),
        BLS,
        "decoupled: true",
        "decoupled: false",
    ),
    Plant("batch sizes of the chain", "TF-TRI-204", ifb(), POST, "max_batch_size: 4", "max_batch_size: 8"),
    Plant("BLS asks nobody", "TF-TRI-205", ifb(), BLS, 'string_value: "tensorrt_llm"', 'string_value: "tensorrt_lm"'),
    Plant("draft model of nobody", "TF-TRI-205", ifb(), BLS, "${tensorrt_llm_draft_model_name}", "draft"),
    Plant("stream token by token", "TF-TRI-206", ifb(decoupled=True), BLS, "", "", "${accumulate_tokens}"),
    Plant("one tokenizer", "TF-TRI-207", ifb(batch=64), PRE, "", "", "instance_group"),
    Plant("two tokenizers", "TF-TRI-208", ifb(), POST, "gpt/gpt2", "llama"),
    Plant("two engines on one GPU", "TF-TRI-198", two_engines, "tensorrt_llm_draft/config.pbtxt", "", "", '"0.85"'),
    Plant(
        "tokenizer folder without one",
        "TF-TRI-213",
        L.trtllm_with_engine,
        PRE,
        "",
        "",
        "-tokenizer",
        None,
        lambda r: (r.parent / f"{r.name}-tokenizer/tokenizer.json").unlink(),
    ),
]
LLM_CONFIG, LLM_YAML, VLLM_JSON = "tensorrt_llm/config.pbtxt", "tensorrt_llm/1/model.yaml", "vllm_model/1/model.json"


OTHERS = [
    Plant(
        "model.yaml without a model",
        "TF-TRI-220",
        L.llmapi,
        LLM_YAML,
        "model: TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "model:",
    ),
    Plant(
        "model.yaml does not parse",
        "TF-TRI-220",
        L.llmapi,
        LLM_YAML,
        "pipeline_parallel_size: 1",
        "pipeline_parallel_size: [1",
        at=None,
    ),
    Plant(
        "placeholder in model.yaml", "TF-TRI-224", L.llmapi, LLM_YAML, "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "${MODEL}"
    ),
    Plant("batch in triton_config", "TF-TRI-221", L.llmapi, LLM_YAML, "max_batch_size: 0", "max_batch_size: 64"),
    Plant(
        "decoupled in both files",
        "TF-TRI-221",
        L.llmapi,
        LLM_CONFIG,
        "",
        "model_transaction_policy { decoupled: true }\n",
    ),
    Plant(
        "two keys of the graphs' batches",
        "TF-TRI-263",
        L.llmapi,
        LLM_YAML,
        "tensor_parallel_size: 1",
        "cuda_graph_config: {batch_sizes: [1, 2], max_batch_size: 8}",
    ),
    Plant("value of no type of vLLM", "TF-TRI-252", L.vllm, VLLM_JSON, '"enforce_eager": true', '"dtype": "fp8"'),
    Plant("no rank of vLLM", "TF-TRI-252", L.vllm, VLLM_JSON, '"enforce_eager": true', '"tensor_parallel_size": 0'),
    Plant("argument misspelt", "TF-TRI-223", L.llmapi, LLM_YAML, "tensor_parallel_size: 1", "tensor_paralell_size: 1"),
    Plant(
        "nested argument misspelt",
        "TF-TRI-223",
        L.llmapi_multi_instance,
        LLM_YAML,
        "free_gpu_memory_fraction",
        "free_gpu_mem_fraction",
    ),
    *(
        Plant(name, "TF-TRI-223", L.llmapi, LLM_YAML, "", f"{line}\n")
        for name, line in (
            ("argument cut short", "enable_chunked_prefil: true"),
            ("argument with more behind it", "tensor_parallel_sizes: 2"),
            ("graphs of an older release", "use_cuda_graph: true"),
            ("batch sizes of an older release", "cuda_graph_batch_sizes: [1, 2]"),
            ("section of an older release", "pytorch_backend_config: {}"),
            ("build of an engine", "build_config: {max_batch_size: 4}"),
            ("argument that nobody knows", "warp_drive: true"),
            ("key twice", "backend: pytorch"),
            ("argument of a section", "free_gpu_memory_fraction: 0.5"),
            # https://github.com/NVIDIA/TensorRT-LLM/pull/18901
            ("cache type at the top", "kv_cache_dtype: fp8"),
        )
    ),
    Plant(
        "padding as an older release named it",  # https://github.com/NVIDIA/TensorRT-LLM/pull/18901
        "TF-TRI-223",
        L.llmapi,
        LLM_YAML,
        "",
        "cuda_graph_config:\n  padding_enabled: true\n",
        "padding_enabled",
    ),
    Plant(
        "weights of a draft as an older release named them",
        "TF-TRI-223",
        L.llmapi,
        LLM_YAML,
        "",
        "speculative_config:\n  decoding_type: NGram\n  max_draft_len: 4\n  pytorch_weights_path: /d\n",
        "pytorch_weights_path",
    ),
    *(
        Plant(name, "TF-TRI-226", L.llmapi, LLM_YAML, "", f"speculative_config:\n  {line}\n", line)
        for name, line in (
            ("EAGLE without a draft", "decoding_type: Eagle"),
            ("EAGLE-3 without a draft", "decoding_type: Eagle3"),
            ("draft model without a draft", "decoding_type: Draft_Target"),
            ("method of engines", "decoding_type: Medusa"),
            ("no such method", "decoding_type: Eagle4"),
        )
    ),
    Plant("engine backend", "TF-TRI-223", L.llmapi, LLM_YAML, "pytorch", "tensorrt"),
    Plant(
        "fraction of model.yaml",
        "TF-TRI-225",
        L.llmapi_multi_instance,
        LLM_YAML,
        "free_gpu_memory_fraction: 0.8",
        "free_gpu_memory_fraction: 80",
    ),
    Plant("sets of the wrong size", "TF-TRI-222", L.llmapi_multi_instance, LLM_CONFIG, "0,1;2,3", "0;1"),
    Plant("model.json does not parse", "TF-TRI-230", L.vllm, VLLM_JSON, "true", "True"),
    Plant("model.json without a model", "TF-TRI-230", L.vllm, VLLM_JSON, '"model"', '"name"', at="{"),
    Plant("share of vLLM", "TF-TRI-230", L.vllm, VLLM_JSON, "0.1", "1.1"),
    Plant("KIND_GPU and ranks", "TF-TRI-230", L.vllm_llama, "llama2vllm/config.pbtxt", "KIND_MODEL", "KIND_GPU"),
    Plant("argument of vLLM misspelt", "TF-TRI-251", L.vllm, VLLM_JSON, "enforce_eager", "enforce_eagar"),
    Plant("argument of vLLM that went", "TF-TRI-251", L.vllm, VLLM_JSON, '"enforce_eager"', '"disable_log_requests"'),
    Plant("share of vLLM in quotes", "TF-TRI-252", L.vllm, VLLM_JSON, "0.1", '"0.1"'),
    Plant("flag of vLLM in words", "TF-TRI-252", L.vllm, VLLM_JSON, "true", '"off"', at="enforce_eager"),
    Plant(
        "adapters without their list",
        "TF-TRI-230",
        P.vllm_adapters,
        "vllm_llama_multi_lora/1/model.json",
        "",
        "",
        "enable_lora",
        None,
        lambda r: (r / "vllm_llama_multi_lora/1/multi_lora.json").unlink(),
    ),
    Plant(
        "grammar and a schedule of drafts",
        "TF-TRI-250",
        L.llmapi,
        LLM_YAML,
        "",
        "guided_decoding_backend: xgrammar\nspeculative_config:\n  decoding_type: NGram\n  max_draft_len: 4\n"
        "  draft_len_schedule: {1: 4, 8: 2}\n",
        "draft_len_schedule",
    ),
    *(
        Plant(name, code, L.llmapi, LLM_YAML, "", f"speculative_config: {{{lines}}}\n", at="speculative_config")
        for name, code, lines in (
            ("n-gram without a length", "TF-TRI-265", "decoding_type: NGram"),
            ("two ways to stop by batch", "TF-TRI-265", f"{NGRAM}, max_concurrency: 8, draft_len_schedule: {{8: 4}}"),
            ("schedule that begins short", "TF-TRI-265", f"{NGRAM}, draft_len_schedule: {{4: 2, 8: 1}}"),
            ("schedule over the longest", "TF-TRI-265", f"{NGRAM}, draft_len_schedule: {{4: 8}}"),
            ("schedule from no batch", "TF-TRI-265", f"{NGRAM}, draft_len_schedule: {{0: 4}}"),
            ("tree of no width", "TF-TRI-266", f"{HEAD}, use_dynamic_tree: true"),
            ("tree of both kinds", "TF-TRI-266", f"{TREE}, eagle_choices: [[0]]"),
            ("tree of too many nodes", "TF-TRI-266", f"{TREE}, max_total_draft_tokens: 17"),
            ("width without its tree", "TF-TRI-266", f"{HEAD}, dynamic_tree_max_topK: 4"),
            ("path through no node", "TF-TRI-266", f"{HEAD}, eagle_choices: [[0], [1, 0]]"),
            ("share of more than one", "TF-TRI-225", f"{HEAD}, {GATE}, acceptance_rate_threshold: 40"),
            ("threshold that nothing measures", "TF-TRI-267", f"{HEAD}, acceptance_rate_threshold: 0.4"),
            ("length that nothing measures", "TF-TRI-267", f"{HEAD}, acceptance_length_threshold: 1.5"),
        )
    ),
    Plant("grammar that nobody can send", "TF-TRI-255", L.llmapi, LLM_YAML, "", "guided_decoding_backend: xgrammar\n"),
    *(
        Plant(name, code, L.llmapi, LLM_YAML, "", f"{line}\n")
        for name, code, line in (
            ("section in another section", "TF-TRI-223", "kv_cache_config: {moe_config: {backend: TRTLLM}}"),
            ("key of the top in a section", "TF-TRI-223", "kv_cache_config: {max_seq_len: 4096, dtype: fp8}"),
            ("key around all arguments", "TF-TRI-223", "llm_args: {max_seq_len: 4096, kv_cache_config: {dtype: fp8}}"),
            ("graphs' sizes set twice over", "TF-TRI-223", "cuda_graph_max_batch_size: 8\ncuda_graph_config: {}"),
            ("overlap by its old name", "TF-TRI-223", "enable_overlap_scheduler: true"),
            ("section that is a number", "TF-TRI-223", "kv_cache_config: 0.9"),
            ("unknown name in a section", "TF-TRI-223", "peft_cache_config: {warp_drive: 1}"),
            ("backend of experts in small letters", "TF-TRI-225", "moe_config: {backend: Cutlass}"),
            ("cache type of PyTorch's spelling", "TF-TRI-225", "kv_cache_config: {dtype: fp8_e4m3}"),
            ("no such grammar library", "TF-TRI-225", "guided_decoding_backend: outlines"),
        )
    ),
    Plant(
        "Python model over all GPUs",
        "TF-TRI-256",
        T.python_add_sub,
        "add_sub/config.pbtxt",
        "KIND_CPU",
        "KIND_GPU",
        "KIND_GPU",
        None,
        lambda r: (r / "add_sub/1/model.py").write_text(f"NET = load(device_map='auto')\n{PYTHON}"),
    ),
    Plant("native engine unfilled", "TF-TRI-027", L.native, "demo/config.pbtxt", "../../engine", "${engine_dir}"),
    Plant("native limit", "TF-TRI-028", L.native, "demo/config.pbtxt", 'string_value: "511"', 'string_value: "510"'),
    Plant(
        "native speculation",
        "TF-TRI-030",
        L.native,
        "demo/config.pbtxt",
        'key: "exclude_input_in_output"\n  value {\n    string_value: "true"',
        'key: "speculation"\n  value {\n    string_value: "ngram"',
        at='string_value: "ngram"',
    ),
    Plant(
        "native and not decoupled",
        "TF-TRI-029",
        L.native,
        "demo/config.pbtxt",
        "decoupled: true",
        "decoupled: false",
        at="model_transaction_policy",
        # the code of a model that was written before the layout had the choice
        change=lambda r: (r / "demo/1/model.py").write_text(
            "from runtime.triton_frontend import request_from_tensors\n"
        ),
    ),
]

"""Further faults, one for each place where a rule can speak and no planted fault makes it: their remedies are tried."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.triton_repo import corpus_llm as L
from tests.triton_repo import corpus_triton as T
from tests.triton_repo.corpus import COMPLETING, PYTHON, add, parameters, step, steps, tensors
from tests.triton_repo.plants import BLS, ENGINE, IMAGES, SEQ, SIMPLE, Build, ifb, with_engine
from tests.triton_repo.plants_llm import LLM_CONFIG, LLM_YAML, VLLM_JSON

Case = tuple[str, str, Build]


def changed(base: Build, file: str, old: str, new: str, more: Callable[[Path], object] | None = None) -> Build:
    """A repository with one text changed (``old`` empty: appended), and something done to it."""

    def build(root: Path) -> None:
        base(root)
        if file:
            path = root / file
            text = path.read_text(encoding="utf-8")
            assert not old or old in text, (file, old)
            path.write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")
        if more is not None:
            more(root)

    return build


def nvidia(section: str) -> Build:
    """A model.yaml with that ``triton_config`` beside code that reads it without defaults."""
    code = (
        COMPLETING
        + "\n    def read(self, found):\n        return found['triton_config']['max_batch_size'], found['decoupled']\n"
    )

    def build(root: Path) -> None:
        settings = L.LLMAPI_YAML.split("triton_config")[0] + section
        add(root, "tensorrt_llm", L.LLMAPI_CONFIG, {"1/model.py": code, "1/model.yaml": settings})

    return build


def yaml(line: str) -> Build:
    return changed(L.llmapi, LLM_YAML, "", f"{line}\n")


def two_vllm(root: Path) -> None:
    for name in ("one", "other"):
        settings = {"model": "facebook/opt-125m", "gpu_memory_utilization": 0.8}
        add(root, name, L.VLLM, {"1/model.json": json.dumps(settings, indent=4)})


def native(root: Path, engine: str | None) -> None:
    L.native(root)
    path = root.parent / "engine/engine.json"
    path.unlink() if engine is None else path.write_text(engine, encoding="utf-8")


def stream_without_bls(root: Path) -> None:
    L.chain(root, decoupled=True)
    for path in (root / "tensorrt_llm_bls/1/model.py", root / "tensorrt_llm_bls/config.pbtxt"):
        path.unlink()
    (root / "tensorrt_llm_bls/1").rmdir()
    (root / "tensorrt_llm_bls").rmdir()


def joined_streams(root: Path) -> None:
    """A step that reads the outputs of two decoupled models."""
    io = tensors("input", [("x", "FP32", (4,))]) + tensors("output", [("y", "FP32", (4,))])
    for name in ("a", "b"):
        add(
            root,
            name,
            f'backend: "python"\nmodel_transaction_policy {{ decoupled: true }}\n{io}',
            {"1/model.py": PYTHON},
        )
    both = tensors("input", [("y1", "FP32", (4,)), ("y2", "FP32", (4,))]) + tensors("output", [("z", "FP32", (4,))])
    add(root, "join", f'backend: "python"\n{both}', {"1/model.py": PYTHON})
    outer = tensors("input", [("x", "FP32", (4,))]) + tensors("output", [("z", "FP32", (4,))])
    parts = steps(
        step("a", {"x": "x"}, {"y": "y1"}),
        step("b", {"x": "x"}, {"y": "y2"}),
        step("join", {"y1": "y1", "y2": "y2"}, {"z": "z"}),
    )
    add(root, "e", f'platform: "ensemble"\n{outer}{parts}')


BATCHED, PLACED = "batched/config.pbtxt", "placed/config.pbtxt"
PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'


def set_to(**values: str) -> Build:
    return ifb(values=values)


MORE: list[Case] = [
    # instances and GPUs
    ("instances without GPUs", "TF-TRI-199", changed(ifb(), ENGINE, "count: 1", "count: 2")),
    ("a GPU in two sets", "TF-TRI-199", changed(set_to(gpu_device_ids="0,1;1,2"), ENGINE, "count: 1", "count: 2")),
    ("KIND_GPU with GPUs", "TF-TRI-202", changed(ifb(), ENGINE, "kind : KIND_CPU", "kind : KIND_GPU gpus: [ 0, 1 ]")),
    # schedulers
    ("control without a name", "TF-TRI-134", changed(T.sequence_direct, SEQ, 'name: "START"', 'name: ""')),
    ("control of one tensor twice", "TF-TRI-134", changed(T.sequence_direct, SEQ, 'name: "READY"', 'name: "START"')),
    (
        "ordering with a delay",
        "TF-TRI-146",
        changed(
            T.simple_add_sub,
            SIMPLE,
            "",
            "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY "
            "default_timeout_microseconds: 10 } }\n",
        ),
    ),
    (
        "policy of no level",
        "TF-TRI-146",
        changed(
            T.dynamic_batching_queues,
            BATCHED,
            "dynamic_batching {",
            "dynamic_batching {\n  priority_queue_policy { key: 7 value { max_queue_size: 1 } }",
        ),
    ),
    (
        "state without a name",
        "TF-TRI-137",
        changed(T.implicit_state, "accumulate/config.pbtxt", 'output_name: "OUTPUT_STATE" ', ""),
    ),
    (
        "warm-up of another size",
        "TF-TRI-143",
        changed(T.instance_groups_and_warmup, PLACED, "dims: [ 16 ] zero_data", "dims: [ 8, 2 ] zero_data"),
    ),
    (
        "warm-up from a file that is not there",
        "TF-TRI-143",
        changed(T.instance_groups_and_warmup, PLACED, "zero_data: true", 'input_data_file: "x"'),
    ),
    (
        "warm-up of half of the inputs",
        "TF-TRI-143",
        changed(
            T.simple_add_sub,
            SIMPLE,
            "",
            'model_warmup [ { name: "w" batch_size: 1 inputs { key: "INPUT0" value { data_type: TYPE_INT32 '
            "dims: [ 16 ] zero_data: true } } } ]\n",
        ),
    ),
    (
        "latest 0",
        "TF-TRI-120",
        changed(T.versions_and_auto_complete, "newest_two/config.pbtxt", "num_versions: 2", "num_versions: 0"),
    ),
    # tensors and texts
    ("input without a name", "TF-TRI-024", changed(T.simple_add_sub, SIMPLE, '"INPUT1"', '""')),
    (
        "batch input of two",
        "TF-TRI-147",
        changed(T.ragged_batch, "ragged/config.pbtxt", 'source_input: "INPUT"', 'source_input: [ "INPUT", "INPUT" ]'),
    ),
    (
        "batch output of no output",
        "TF-TRI-147",
        changed(
            T.ragged_batch,
            "ragged/config.pbtxt",
            "",
            'batch_output [ { target_name: "OUTPUTS" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT" } ]\n',
        ),
    ),
    (
        "batch output twice",
        "TF-TRI-147",
        changed(
            T.ragged_batch,
            "ragged/config.pbtxt",
            "",
            'batch_output [ { target_name: [ "OUTPUT", "OUTPUT" ] kind: BATCH_SCATTER_WITH_INPUT_SHAPE '
            'source_input: "INPUT" } ]\n',
        ),
    ),
    (
        "editor's copy",
        "TF-TRI-110",
        changed(T.simple_add_sub, "", "", "", lambda r: (r / "simple/config.pbtxt.bak").touch()),
    ),
    ("field of a newer server", "TF-TRI-105", changed(T.simple_add_sub, SIMPLE, "", "model_metrics { }\n")),
    (
        "byte order mark",
        "TF-TRI-001",
        changed(
            T.simple_add_sub, SIMPLE, "", "", lambda r: (r / SIMPLE).write_text("\ufeff" + (r / SIMPLE).read_text())
        ),
    ),
    (
        "field twice alike",
        "TF-TRI-109",
        changed(T.simple_add_sub, SIMPLE, "max_batch_size: 8", "max_batch_size: 8\nmax_batch_size: 8"),
    ),
    ("flag in words", "TF-TRI-103", changed(ifb(), BLS, "decoupled: false", "decoupled: no")),
    ("flag of no sense", "TF-TRI-103", changed(ifb(), BLS, "decoupled: false", "decoupled: maybe")),
    ("number in quotes", "TF-TRI-103", changed(T.simple_add_sub, SIMPLE, "max_batch_size: 8", 'max_batch_size: "8"')),
    (
        "name without quotes",
        "TF-TRI-103",
        changed(T.sequence_direct, SEQ, 'name: "simple_sequence"', "name: simple_sequence"),
    ),
    (
        "text for a message",
        "TF-TRI-103",
        changed(ifb(), ENGINE, "dynamic_batching {", "optimization: 3\ndynamic_batching {"),
    ),
    (
        "message for a number",
        "TF-TRI-103",
        changed(T.simple_add_sub, SIMPLE, "max_batch_size: 8", "max_batch_size { n: 8 }"),
    ),
    (
        "share in words",
        "TF-TRI-103",
        changed(
            T.sequence_direct,
            SEQ,
            "sequence_batching {",
            "sequence_batching {\n  direct { minimum_slot_utilization: half }",
        ),
    ),
    ("field of no likeness", "TF-TRI-102", changed(T.simple_add_sub, SIMPLE, "", "warp_drive: 9\n")),
    ("field that is there", "TF-TRI-102", changed(T.simple_add_sub, SIMPLE, "", "max_batch_sizes: 9\n")),
    ("placeholder for a message", "TF-TRI-101", changed(ifb(), ENGINE, "", "optimization: ${optimization}\n")),
    ("placeholder for a field", "TF-TRI-101", changed(ifb(), ENGINE, "", "${more}\n")),
    ("placeholder for a name", "TF-TRI-101", changed(T.simple_add_sub, SIMPLE, "", "backend: ${backend}\n")),
    (
        "parameter twice alike",
        "TF-TRI-154",
        changed(
            set_to(max_tokens_in_paged_kv_cache="4096"),
            ENGINE,
            "",
            PARAMETER.format("max_tokens_in_paged_kv_cache", "4096"),
        ),
    ),
    (
        "no folder that can be read",
        "TF-TRI-106",
        changed(T.simple_add_sub, "", "", "", lambda r: (r / "loop").symlink_to("loop")),
    ),
    (
        "folder elsewhere",
        "TF-TRI-107",
        changed(T.simple_add_sub, "", "", "", lambda r: (r / "away").symlink_to("/usr")),
    ),
    (
        "file elsewhere",
        "TF-TRI-107",
        changed(L.llmapi, "", "", "", lambda r: [(r / LLM_YAML).unlink(), (r / LLM_YAML).symlink_to("/etc/hostname")]),
    ),
    (
        "bytes that are no text",
        "TF-TRI-106",
        changed(
            T.simple_add_sub, "", "", "", lambda r: (r / SIMPLE).write_bytes((r / SIMPLE).read_bytes() + b"# caf\xe9\n")
        ),
    ),
    # engines and chains
    (
        "adapters of an engine that has none",
        "TF-TRI-211",
        with_engine({"lora_cache_max_adapter_size": "64"}, plugin_lora_plugin=None),
    ),
    ("choices in other modes", "TF-TRI-189", set_to(medusa_choices="{0}, {1}, {0}", decoding_mode="medusa")),
    (
        "lookahead sizes in other modes",
        "TF-TRI-189",
        set_to(lookahead_window_size="7", lookahead_ngram_size="7", lookahead_verification_set_size="7"),
    ),
    ("beams in sampling", "TF-TRI-190", set_to(max_beam_width="4", decoding_mode="top_k")),
    ("grammar's file without a grammar", "TF-TRI-212", set_to(xgrammar_tokenizer_info_path="/x.json")),
    ("graphs that are off", "TF-TRI-196", set_to(cuda_graph_cache_size="8")),
    ("sink without a window", "TF-TRI-196", set_to(sink_token_length="4")),
    ("tokenizer that is a file", "TF-TRI-213", lambda r: L.chain(r, tokenizer=_touched(r.parent / "tokenizer.json"))),
    (
        "BLS asks a model that is gone",
        "TF-TRI-205",
        changed(
            ifb(),
            "tensorrt_llm_bls/1/model.py",
            "",
            "    asks = 'postprocessing'\n",
            lambda r: (r / "postprocessing").rename(r / "post"),
        ),
    ),
    ("stream without BLS", "TF-TRI-206", stream_without_bls),
    # ensembles
    ("ensemble with optimization", "TF-TRI-161", changed(T.image_ensemble, IMAGES, "", "optimization { }\n")),
    ("ensemble with warm-up", "TF-TRI-161", changed(T.image_ensemble, IMAGES, "", 'model_warmup [ { name: "w" } ]\n')),
    ("ensemble with a backend", "TF-TRI-160", changed(T.image_ensemble, IMAGES, "", 'backend: "python"\n')),
    ("streams that are joined", "TF-TRI-174", joined_streams),
    # the LLM API and vLLM
    ("no triton_config", "TF-TRI-221", nvidia("")),
    ("triton_config that is a number", "TF-TRI-221", nvidia("triton_config: 3\n")),
    ("triton_config by halves", "TF-TRI-221", nvidia("triton_config:\n  decoupled: False\n")),
    (
        "triton_config misspelt",
        "TF-TRI-221",
        changed(L.llmapi, LLM_YAML, "  decoupled: False", "  decoupled: False\n  cancel_check_period_ms: 5"),
    ),
    (
        "triton_config with a foreign key",
        "TF-TRI-221",
        changed(L.llmapi, LLM_YAML, "  decoupled: False", "  decoupled: False\n  zzz: 5"),
    ),
    (
        "period of no time",
        "TF-TRI-221",
        changed(L.llmapi, LLM_YAML, "  decoupled: False", "  decoupled: False\n  cancellation_check_period_ms: 0"),
    ),
    (
        "model.yaml that is a list",
        "TF-TRI-220",
        changed(L.llmapi, "", "", "", lambda r: (r / LLM_YAML).write_text("- a\n")),
    ),
    (
        "processors that model.py hands on",
        "TF-TRI-223",
        changed(yaml("logits_post_processors: {a: b:c}"), "tensorrt_llm/1/model.py", "", "    kept = 'exclude_keys'\n"),
    ),
    (
        "drafts in a pipeline",
        "TF-TRI-226",
        changed(
            yaml("speculative_config: {decoding_type: NGram, max_draft_len: 4}"),
            LLM_YAML,
            "pipeline_parallel_size: 1",
            "pipeline_parallel_size: 2",
        ),
    ),
    (
        "ranks in words",
        "TF-TRI-222",
        changed(
            L.llmapi,
            LLM_YAML,
            "tensor_parallel_size: 1",
            'tensor_parallel_size: "2"',
            lambda r: (r / LLM_CONFIG).write_text((r / LLM_CONFIG).read_text() + parameters({"gpu_device_ids": "0,1"})),
        ),
    ),
    ("no ranks", "TF-TRI-222", changed(L.llmapi, LLM_YAML, "tensor_parallel_size: 1", "tensor_parallel_size: 0")),
    ("cache type twice over", "TF-TRI-223", yaml("kv_cache_dtype: fp8\nkv_cache_config: {dtype: fp8}")),
    ("key of several sections", "TF-TRI-223", yaml("moe_config: {enable_padding: true}")),
    ("key of one other section", "TF-TRI-223", yaml("scheduler_config: {free_gpu_memory_fraction: 0.5}")),
    ("options of trtllm-serve", "TF-TRI-223", yaml("kv_cache_free_gpu_memory_fraction: 0.9\nep_size: 1")),
    ("drafts at the top", "TF-TRI-223", yaml("max_draft_len: 4")),
    ("adapters at the top", "TF-TRI-223", yaml("max_lora_rank: 8")),
    ("backend of experts by its old name", "TF-TRI-223", yaml("moe_backend: Cutlass")),
    ("section in a section that is none", "TF-TRI-223", yaml("kv_cache_config: {moe_config: 3}")),
    ("key that is a flag", "TF-TRI-223", yaml("true: 1")),
    (
        "values that are repeated",
        "TF-TRI-223",
        yaml("kv_cache_config: {moe_config: &a {backend: TRTLLM}}\nmoe_confg: *a"),
    ),
    ("torch.compile as it was", "TF-TRI-223", yaml("torch_compile_enabled: true")),
    ("one value for a list", "TF-TRI-225", yaml("kv_cache_config: {max_attention_window: 4096}")),
    ("a mapping for a list", "TF-TRI-225", yaml("kv_cache_config: {max_attention_window: {a: 1}}")),
    (
        "two keys of the graphs' batches",
        "TF-TRI-263",
        yaml("cuda_graph_config: {batch_sizes: [1, 2], max_batch_size: 8}"),
    ),
    ("a type by another case", "TF-TRI-252", changed(L.vllm, VLLM_JSON, '"enforce_eager": true', '"dtype": "Half"')),
    ("model.json is not there", "TF-TRI-230", changed(L.vllm, "", "", "", lambda r: (r / VLLM_JSON).unlink())),
    ("two models of vLLM", "TF-TRI-231", two_vllm),
    (
        "draft by its old names",
        "TF-TRI-251",
        changed(L.vllm, VLLM_JSON, '"enforce_eager": true', '"speculative_model": "/d"'),
    ),
    ("name of no likeness", "TF-TRI-251", changed(L.vllm, VLLM_JSON, '"enforce_eager"', '"zzz"')),
    (
        "folder of a TensorRT-LLM checkpoint",
        "TF-TRI-253",
        lambda r: _named(r, L.llmapi, LLM_YAML, "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    ),
    ("the same for vLLM", "TF-TRI-254", lambda r: _named(r, L.vllm, VLLM_JSON, "facebook/opt-125m")),
    # the native layout, Python models
    ("native engine that is not there", "TF-TRI-027", lambda r: native(r, None)),
    ("native engine that is none", "TF-TRI-027", lambda r: native(r, "{}")),
    ("native engine of no path", "TF-TRI-027", changed(L.native, "demo/config.pbtxt", "../../engine", "a\\000b")),
    (
        "auto_complete_config of nothing",
        "TF-TRI-158",
        changed(T.python_auto_complete, "batch_auto_complete/1/model.py", "        return config", "        pass"),
    ),
]


def _touched(path: Path) -> str:
    path.write_text("{}", encoding="utf-8")
    return str(path)


def _named(root: Path, base: Build, file: str, name: str) -> None:
    """A repository whose model is the folder of a TensorRT-LLM checkpoint beside it."""
    folder = root.parent / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text('{"architecture": "LlamaForCausalLM"}', encoding="utf-8")
    changed(base, file, name, "../../checkpoint")(root)

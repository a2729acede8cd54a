"""Planted faults of one configuration: tensors, instances, schedulers, warm-up."""

from __future__ import annotations

from tests.triton_repo import corpus_triton as T
from tests.triton_repo.plants import (
    ENGINE,
    SEQ,
    SIMPLE,
    Plant,
    ifb,
)

DENSENET = "densenet_onnx/config.pbtxt"

CONFIG = [
    Plant("input twice", "TF-TRI-024", T.simple_add_sub, SIMPLE, '"INPUT1"', '"INPUT0"', at='"INPUT0"'),
    Plant(
        "no outputs", "TF-TRI-024", T.torchscript, "resnet50/config.pbtxt", "output [", "input [", at='name: "resnet50"'
    ),
    Plant("dim 0", "TF-TRI-024", T.simple_add_sub, SIMPLE, "dims: [ 16 ]", "dims: [ 0 ]"),
    Plant(
        "no type", "TF-TRI-024", T.torchscript, "resnet50/config.pbtxt", "data_type: TYPE_FP32 dims: [ 3", "dims: [ 3"
    ),
    Plant(
        "reshape of another size",
        "TF-TRI-024",
        T.torchscript,
        "resnet50/config.pbtxt",
        "[ 1, 3, 224, 224 ]",
        "[ 1, 3, 224, 225 ]",
    ),
    Plant(
        "scalar without batching", "TF-TRI-024", ifb(), ENGINE, "max_batch_size: 4", "max_batch_size: 0", at="TYPE_BOOL"
    ),
    Plant("runtime of another backend", "TF-TRI-153", ifb(), ENGINE, "", 'runtime: "libtriton_tensorrt.so"\n'),
    Plant(  # https://github.com/triton-inference-server/server/tree/main/qa/L0_model_config/special_cases
        "runtime outside", "TF-TRI-153", T.simple_add_sub, SIMPLE, "", 'runtime: "../other/libtriton_identity.so"\n'
    ),
    Plant(
        "runtime that is no library",
        "TF-TRI-153",
        T.python_add_sub,
        "add_sub/config.pbtxt",
        "",
        'runtime: "model.py"\n',
        at="",
    ),
    Plant("long label file", "TF-TRI-151", T.classifier_with_labels, DENSENET, "densenet_labels.txt", "l" * 5000),
    Plant(
        "parameter twice",
        "TF-TRI-154",
        ifb(values={"kv_cache_free_gpu_mem_fraction": "0.9"}),
        ENGINE,
        "",
        'parameters { key: "kv_cache_free_gpu_mem_fraction" value { string_value: "0.5" } }\n',
    ),
    Plant("negative batch", "TF-TRI-130", T.simple_add_sub, SIMPLE, "max_batch_size: 8", "max_batch_size: -1"),
    Plant("count 0", "TF-TRI-026", ifb(), ENGINE, "count: 1", "count: 0"),
    Plant("CPU with gpus", "TF-TRI-138", T.sequence_direct, SEQ, "kind: KIND_CPU", "kind: KIND_CPU gpus: [ 0 ]"),
    Plant(
        "negative GPU", "TF-TRI-139", T.instance_groups_and_warmup, "placed/config.pbtxt", "gpus: [ 0 ]", "gpus: [ -1 ]"
    ),
    Plant(
        "GPU twice",
        "TF-TRI-139",
        T.instance_groups_and_warmup,
        "placed/config.pbtxt",
        "gpus: [ 1, 2 ]",
        "gpus: [ 1, 1 ]",
    ),
    Plant(
        "cache and decoupled",
        "TF-TRI-136",
        T.python_decoupled,
        "repeat_int32/config.pbtxt",
        "",
        "response_cache { enable: true }\n",
    ),
    Plant("cache and sequences", "TF-TRI-136", T.sequence_direct, SEQ, "", "response_cache { enable: true }\n"),
    Plant(
        "batch input of nothing",
        "TF-TRI-147",
        T.ragged_batch,
        "ragged/config.pbtxt",
        'source_input: "INPUT"',
        'source_input: "INPUTS"',
    ),
    Plant(
        "ragged without batch",
        "TF-TRI-148",
        T.ragged_batch,
        "ragged/config.pbtxt",
        "max_batch_size: 16",
        "max_batch_size: 0",
        at="allow_ragged_batch",
    ),
    Plant(
        "labels missing",
        "TF-TRI-151",
        T.classifier_with_labels,
        "densenet_onnx/config.pbtxt",
        "densenet_labels.txt",
        "labels.txt",
    ),
    Plant(
        "preferred above maximum",
        "TF-TRI-131",
        T.dynamic_batching_queues,
        "batched/config.pbtxt",
        "[ 4, 8 ]",
        "[ 4, 16 ]",
    ),
    Plant(
        "preferred sequences above maximum",
        "TF-TRI-131",
        T.sequence_oldest,
        "simple_dyna_sequence/config.pbtxt",
        "[ 4, 8 ]",
        "[ 4, 9 ]",
    ),
    Plant(
        "dynamic without batch",
        "TF-TRI-132",
        T.dynamic_batching_queues,
        "ordered/config.pbtxt",
        "max_batch_size: 32",
        "max_batch_size: 0",
        at="dynamic_batching",
    ),
    Plant("control twice", "TF-TRI-134", T.sequence_direct, SEQ, "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_START"),
    Plant(
        "control with one value",
        "TF-TRI-134",
        T.sequence_direct,
        SEQ,
        "int32_false_true: [ 0, 1 ]",
        "int32_false_true: [ 1 ]",
    ),
    Plant(
        "correlation id a float",
        "TF-TRI-134",
        T.sequence_oldest,
        "simple_dyna_sequence/config.pbtxt",
        "TYPE_UINT64",
        "TYPE_FP32",
        at="TYPE_FP32",
    ),
    Plant(
        "slot utilization 2",
        "TF-TRI-135",
        T.sequence_direct,
        SEQ,
        "sequence_batching {",
        "sequence_batching {\n  direct { minimum_slot_utilization: 2.0 }",
        at="minimum_slot",
    ),
    Plant(
        "state twice",
        "TF-TRI-137",
        T.implicit_state,
        "accumulate/config.pbtxt",
        "state [ {",
        'state [ { input_name: "INPUT_STATE" output_name: "OTHER" data_type: TYPE_INT32 dims: [ 1 ] },\n    {',
        at="OUTPUT_STATE",
    ),
    Plant(
        "priority 3 of 2",
        "TF-TRI-146",
        T.dynamic_batching_queues,
        "batched/config.pbtxt",
        "default_priority_level: 1",
        "default_priority_level: 3",
    ),
    Plant(
        "ordering with priorities",
        "TF-TRI-146",
        T.dynamic_batching_queues,
        "batched/config.pbtxt",
        "priority_levels: 2",
        "preserve_ordering: true\n  priority_levels: 2",
        at="preserve_ordering",
    ),
    Plant(
        "warm-up of another type",
        "TF-TRI-143",
        T.instance_groups_and_warmup,
        "placed/config.pbtxt",
        "value { data_type: TYPE_FP32",
        "value { data_type: TYPE_INT32",
    ),
    Plant(
        "warm-up of no input", "TF-TRI-143", T.instance_groups_and_warmup, "placed/config.pbtxt", 'key: "x"', 'key: "z"'
    ),
    Plant(
        "warm-up batch too large",
        "TF-TRI-143",
        T.instance_groups_and_warmup,
        "placed/config.pbtxt",
        "batch_size: 4",
        "batch_size: 9",
    ),
    Plant(
        "warm-up of free size",
        "TF-TRI-143",
        T.instance_groups_and_warmup,
        "placed/config.pbtxt",
        "dims: [ 16 ]",
        "dims: [ -1 ]",
        at="zero_data",
    ),
]

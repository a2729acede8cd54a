"""Valid repositories of plain Triton: its documentation, its tutorials and its Python backend."""

from __future__ import annotations

from pathlib import Path

from tests.triton_repo.corpus import (
    COMPLETING,
    CPU,
    DOCS,
    ONNX,
    PY,
    PYTHON_EXAMPLES,
    TUTORIALS,
    add,
    published,
    step,
    steps,
    tensors,
)


# Triton's own examples ---------------------------------------------------------------------------
@published(f"{DOCS}/examples/model_repository/simple/config.pbtxt")
def simple_add_sub(root: Path) -> None:
    pair = lambda n: [(f"{n}0", "INT32", (16,)), (f"{n}1", "INT32", (16,))]  # noqa: E731
    add(
        root,
        "simple",
        'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
        + tensors("input", pair("INPUT"))
        + tensors("output", pair("OUTPUT")),
        ONNX,
    )


@published(f"{DOCS}/examples/model_repository/densenet_onnx/config.pbtxt")
def classifier_with_labels(root: Path) -> None:
    add(
        root,
        "densenet_onnx",
        'name: "densenet_onnx"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 0\n'
        + tensors(
            "input", [("data_0", "FP32", (3, 224, 224), "format: FORMAT_NCHW", "reshape { shape: [ 1, 3, 224, 224 ] }")]
        )
        + tensors(
            "output",
            [
                (
                    "fc6_1",
                    "FP32",
                    (1000,),
                    "reshape { shape: [ 1, 1000, 1, 1 ] }",
                    'label_filename: "densenet_labels.txt"',
                )
            ],
        ),
        {**ONNX, "densenet_labels.txt": "TENCH\n"},
    )


_SEQUENCE_IO = tensors("input", [("INPUT", "INT32", (1,))]) + tensors("output", [("OUTPUT", "INT32", (1,))])


def control(name: str, kind: str, value: str = "int32_false_true: [ 0, 1 ]") -> str:
    return f'    {{\n      name: "{name}"\n      control [ {{ kind: CONTROL_SEQUENCE_{kind} {value} }} ]\n    }}'


@published(f"{DOCS}/examples/model_repository/simple_sequence/config.pbtxt")
def sequence_direct(root: Path) -> None:
    controls = ",\n".join([control("START", "START"), control("READY", "READY")])
    add(
        root,
        "simple_sequence",
        'name: "simple_sequence"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
        + f"sequence_batching {{\n  control_input [\n{controls}\n  ]\n}}\n{_SEQUENCE_IO}{CPU}",
        ONNX,
    )


@published(f"{DOCS}/examples/model_repository/simple_dyna_sequence/config.pbtxt")
def sequence_oldest(root: Path) -> None:
    controls = ",\n".join(
        [
            control("START", "START"),
            control("END", "END"),
            control("READY", "READY"),
            control("CORRID", "CORRID", "data_type: TYPE_UINT64"),
        ]
    )
    add(
        root,
        "simple_dyna_sequence",
        'name: "simple_dyna_sequence"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 8\nsequence_batching {\n'
        "  max_sequence_idle_microseconds: 10000000\n"
        "  oldest { max_candidate_sequences: 1024 max_queue_delay_microseconds: 10000\n"
        "    preferred_batch_size: [ 4, 8 ] }\n"
        f"  control_input [\n{controls}\n  ]\n}}\n{_SEQUENCE_IO}"
        'parameters [ { key: "execute_delay_ms" value: { string_value: "3" } } ]\n'
        "instance_group [ { count: 2 kind: KIND_CPU } ]\n",
        ONNX,
    )


@published(f"{DOCS}/user_guide/implicit_state_management.md")
def implicit_state(root: Path) -> None:
    add(
        root,
        "accumulate",
        'backend: "tensorrt"\nmax_batch_size: 4\nsequence_batching {\n'
        '  state [ { input_name: "INPUT_STATE" output_name: "OUTPUT_STATE" data_type: TYPE_INT32 dims: [ -1 ]\n'
        '    initial_state: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "initial state" } } ]\n}\n'
        + _SEQUENCE_IO,
        {"1/model.plan": ""},
    )


@published(f"{DOCS}/user_guide/ragged_batching.md")
def ragged_batch(root: Path) -> None:
    add(
        root,
        "ragged",
        'backend: "onnxruntime"\nmax_batch_size: 16\n'
        + tensors("input", [("INPUT", "FP32", (-1,), "allow_ragged_batch: true")])
        + tensors("output", [("OUTPUT", "FP32", (1,))])
        + 'batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "INDEX" data_type: TYPE_FP32\n'
        '  source_input: "INPUT" } ]\n',
        ONNX,
    )


@published(f"{DOCS}/user_guide/model_configuration.md")
def versions_and_auto_complete(root: Path) -> None:
    """Version policies, a model without a configuration, several versions, a response cache."""
    io = tensors("input", [("x", "FP32", (4,))]) + tensors("output", [("y", "FP32", (4,))])
    policies = {
        "all_versions": "version_policy: { all { }}\n",
        "newest_two": "version_policy: { latest { num_versions: 2 }}\n",
        "two_named": "version_policy: { specific { versions: [ 1, 3 ] }}\n",
    }
    for name, policy in policies.items():
        files = {f"{v}/model.onnx": "" for v in (1, 2, 3)}
        add(
            root,
            name,
            f'backend: "onnxruntime"\nmax_batch_size: 8\n{policy}{io}response_cache {{ enable: true }}\n',
            files,
        )
    add(root, "no_configuration", None, ONNX)
    add(root, "empty_configuration", "", {"1/model.plan": ""})
    add(root, "model.identity", 'backend: "identity"\n' + io)


@published(f"{DOCS}/user_guide/batcher.md")
def dynamic_batching_queues(root: Path) -> None:
    io = tensors("input", [("x", "FP32", (4,))]) + tensors("output", [("y", "FP32", (4,))])
    queue = (
        "dynamic_batching {\n  preferred_batch_size: [ 4, 8 ]\n  max_queue_delay_microseconds: 100\n"
        "  priority_levels: 2\n  default_priority_level: 1\n  default_queue_policy { max_queue_size: 64\n"
        "    timeout_action: REJECT\n"
        "    default_timeout_microseconds: 5000 allow_timeout_override: true }\n"
        "  priority_queue_policy { key: 2 value { max_queue_size: 8 } }\n}\n"
    )
    add(root, "batched", f'backend: "tensorrt"\nmax_batch_size: 8\n{io}{queue}', {"1/model.plan": ""})
    ordered = "dynamic_batching { preserve_ordering: true }\n"
    add(root, "ordered", f'platform: "tensorrt_plan"\nmax_batch_size: 32\n{io}{ordered}', {"1/model.plan": ""})


@published(f"{DOCS}/user_guide/model_configuration.md")
def instance_groups_and_warmup(root: Path) -> None:
    groups = "instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0 ] }, { count: 2 kind: KIND_GPU gpus: [ 1, 2 ] } ]\n"
    warm = (
        'model_warmup [ { name: "zeros" batch_size: 4\n  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 16 ] '
        "zero_data: true } } } ]\n"
    )
    io = tensors("input", [("x", "FP32", (-1,))]) + tensors("output", [("y", "FP32", (4,))])
    add(root, "placed", f'backend: "tensorrt"\nmax_batch_size: 8\n{io}{groups}{warm}', {"1/model.plan": ""})
    limited = 'instance_group [ { count: 1 kind: KIND_GPU rate_limiter { resources [ { name: "R1" count: 4 } ] } } ]\n'
    add(root, "limited", f'backend: "tensorrt"\nmax_batch_size: 8\n{io}{limited}', {"1/model.plan": ""})


@published(f"{DOCS}/user_guide/ensemble_models.md")
def image_ensemble(root: Path) -> None:
    image = ("preprocessed_image", "FP32", (3, 224, 224))
    add(
        root,
        "ensemble_model",
        'name: "ensemble_model"\nplatform: "ensemble"\nmax_batch_size: 1\n'
        + tensors("input", [("IMAGE", "STRING", (1,))])
        + tensors("output", [("CLASSIFICATION", "FP32", (1000,)), ("SEGMENTATION", "FP32", (3, 224, 224))])
        + steps(
            step("image_preprocess_model", {"RAW_IMAGE": "IMAGE"}, {"PREPROCESSED_OUTPUT": image[0]}),
            step("classification_model", {"FORMATTED_IMAGE": image[0]}, {"CLASSIFICATION_OUTPUT": "CLASSIFICATION"}),
            step("segmentation_model", {"FORMATTED_IMAGE": image[0]}, {"SEGMENTATION_OUTPUT": "SEGMENTATION"}),
        ),
    )
    add(
        root,
        "image_preprocess_model",
        'backend: "python"\nmax_batch_size: 8\n'
        + tensors("input", [("RAW_IMAGE", "STRING", (1,))])
        + tensors("output", [("PREPROCESSED_OUTPUT", *image[1:])]),
        PY,
    )
    for name, output, dims in (
        ("classification_model", "CLASSIFICATION_OUTPUT", (1000,)),
        ("segmentation_model", "SEGMENTATION_OUTPUT", (3, 224, 224)),
    ):
        add(
            root,
            name,
            'backend: "onnxruntime"\nmax_batch_size: 8\n'
            + tensors("input", [("FORMATTED_IMAGE", *image[1:])])
            + tensors("output", [(output, "FP32", dims)])
            + "dynamic_batching { }\n",
            ONNX,
        )


# tutorials ---------------------------------------------------------------------------------------
@published(f"{TUTORIALS}/Conceptual_Guide/Part_5-Model_Ensembles/README.md")
def text_detection_ensemble(root: Path) -> None:
    add(
        root,
        "ensemble_model",
        'name: "ensemble_model"\nplatform: "ensemble"\nmax_batch_size: 256\n'
        + tensors("input", [("input_image", "UINT8", (-1,))])
        + tensors("output", [("recognized_text", "STRING", (-1,))])
        + steps(
            step("detection_preprocessing", {"in": "input_image"}, {"out": "preprocessed_image"}),
            step(
                "text_detection",
                {"input_images:0": "preprocessed_image"},
                {"Sigmoid:0": "Sigmoid:0", "concat_3:0": "concat_3:0"},
            ),
            step(
                "detection_postprocessing",
                {"in_1": "Sigmoid:0", "in_2": "concat_3:0", "in_3": "preprocessed_image"},
                {"out": "cropped_images"},
            ),
            step("text_recognition", {"input.1": "cropped_images"}, {"308": "recognition_output"}),
            step("recognition_postprocessing", {"in": "recognition_output"}, {"out": "recognized_text"}),
        ),
    )
    python = 'backend: "python"\nmax_batch_size: 256\n'
    image, score, geometry = ("FP32", (-1, -1, -1, 3)), ("FP32", (-1, -1, -1, 1)), ("FP32", (-1, -1, -1, 5))
    crop = ("FP32", (1, 32, 100))
    rows = {
        "detection_preprocessing": ([("in", "UINT8", (-1,))], [("out", *image)], python, PY),
        "text_detection": (
            [("input_images:0", *image)],
            [("Sigmoid:0", *score), ("concat_3:0", *geometry)],
            'backend: "onnxruntime"\nmax_batch_size: 256\n',
            ONNX,
        ),
        "detection_postprocessing": (
            [("in_1", *score), ("in_2", *geometry), ("in_3", *image)],
            [("out", *crop)],
            python,
            PY,
        ),
        "text_recognition": (
            [("input.1", *crop)],
            [("308", "FP32", (26, 37))],
            'backend: "onnxruntime"\nmax_batch_size: 256\ndynamic_batching { }\n'
            "instance_group [ { count: 2 kind: KIND_GPU } ]\n",
            ONNX,
        ),
        "recognition_postprocessing": ([("in", "FP32", (26, 37))], [("out", "STRING", (-1,))], python, PY),
    }
    for name, (inputs, outputs, head, files) in rows.items():
        add(root, name, head + tensors("input", inputs) + tensors("output", outputs), files)


@published(f"{TUTORIALS}/HuggingFace/ensemble_model_repository/ensemble_model/config.pbtxt")
def vision_transformer(root: Path) -> None:
    """Steps that ask for version 1 by number; a pixel tensor of fixed size behind one of free size."""
    add(
        root,
        "ensemble_model",
        'name: "ensemble_model"\nplatform: "ensemble"\nmax_batch_size: 4\n'
        + tensors("input", [("image", "FP32", (-1, -1, -1))])
        + tensors("output", [("last_hidden_state", "FP32", (-1, -1)), ("1519", "FP32", (768,))])
        + steps(
            step("preprocessing", {"image": "image"}, {"pixel_values": "pixel_values"}, 1),
            step(
                "vit", {"pixel_values": "pixel_values"}, {"last_hidden_state": "last_hidden_state", "1519": "1519"}, 1
            ),
        ),
    )
    pixels = ("pixel_values", "FP32", (3, 224, 224))
    head = 'backend: "python"\nmax_batch_size: 8\n'
    add(
        root,
        "preprocessing",
        head + tensors("input", [("image", "FP32", (-1, -1, -1))]) + tensors("output", [pixels]),
        PY,
    )
    states = [("last_hidden_state", "FP32", (-1, -1)), ("1519", "FP32", (768,))]
    add(
        root,
        "vit",
        'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n' + tensors("input", [pixels]) + tensors("output", states),
        ONNX,
    )


@published(f"{TUTORIALS}/Quick_Deploy/PyTorch/config.pbtxt")
def torchscript(root: Path) -> None:
    add(
        root,
        "resnet50",
        'name: "resnet50"\nplatform: "pytorch_libtorch"\nmax_batch_size : 0\n'
        + tensors("input", [("input__0", "FP32", (3, 224, 224), "reshape { shape: [ 1, 3, 224, 224 ] }")])
        + tensors("output", [("output__0", "FP32", (1, 1000, 1, 1), "reshape { shape: [ 1, 1000 ] }")]),
        {"1/model.pt": ""},
    )


@published(f"{TUTORIALS}/Conceptual_Guide/Part_7-iterative_scheduling/README.md")
def iterative_scheduling(root: Path) -> None:
    controls = ",\n".join(
        [
            control("correlation_id", "CORRID", "data_type: TYPE_UINT64"),
            control("start", "START", "fp32_false_true: [ 0, 1 ]"),
            control("end", "END", "fp32_false_true: [ 0, 1 ]"),
        ]
    )
    add(
        root,
        "iterative-gpt2",
        'backend: "python"\nmax_batch_size: 8\nsequence_batching {\n  iterative_sequence: true\n'
        f"  control_input: [\n{controls}\n  ]\n"
        "  oldest {}\n  max_sequence_idle_microseconds: 400000000\n}\nmodel_transaction_policy { decoupled: true }\n"
        + tensors("input", [("text_input", "STRING", (1,))])
        + tensors("output", [("text_output", "STRING", (-1,))])
        + "instance_group [ { count: 1 kind: KIND_GPU } ]\n",
        PY,
    )


# Python backend ----------------------------------------------------------------------------------
@published(f"{PYTHON_EXAMPLES}/add_sub/config.pbtxt")
def python_add_sub(root: Path) -> None:
    config = 'name: "add_sub"\nbackend: "python"\n'
    for side, name in (("input", "INPUT"), ("output", "OUTPUT")):
        config += "".join(tensors(side, [(f"{name}{i}", "FP32", (4,))]) for i in (0, 1))
    add(root, "add_sub", config + "instance_group [{ kind: KIND_CPU }]\n", PY)


@published(f"{PYTHON_EXAMPLES}/auto_complete/README.md")
def python_auto_complete(root: Path) -> None:
    add(root, "nobatch_auto_complete", None, {"1/model.py": COMPLETING})
    add(root, "batch_auto_complete", 'backend: "python"\n', {"1/model.py": COMPLETING})


@published(f"{PYTHON_EXAMPLES}/bls/README.md")
def python_bls(root: Path) -> None:
    python_add_sub(root)
    config = 'name: "bls_sync"\nbackend: "python"\n' + tensors("input", [("MODEL_NAME", "STRING", (1,))])
    for side, name in (("input", "INPUT"), ("output", "OUTPUT")):
        config += "".join(tensors(side, [(f"{name}{i}", "FP32", (4,))]) for i in (0, 1))
    add(root, "bls_sync", config + CPU, PY)


@published(f"{PYTHON_EXAMPLES}/decoupled/README.md")
def python_decoupled(root: Path) -> None:
    add(
        root,
        "repeat_int32",
        'name: "repeat_int32"\nbackend: "python"\nmax_batch_size: 0\nmodel_transaction_policy {\n  decoupled: True\n}\n'
        + tensors("input", [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))])
        + tensors("output", [("OUT", "INT32", (1,)), ("IDX", "UINT32", (1,))])
        + CPU,
        PY,
    )
    square = ("INT32", (1,))
    add(
        root,
        "square_int32",
        'backend: "python"\nmodel_transaction_policy { decoupled: true }\n'
        + tensors("input", [("IN", *square)])
        + tensors("output", [("OUT", *square)]),
        PY,
    )
    # a decoupled ensemble whose file does not say so: Triton finds it out from its steps
    add(
        root,
        "repeat_square",
        'platform: "ensemble"\n'
        + tensors("input", [("IN", "INT32", (-1,)), ("DELAY", "UINT32", (-1,)), ("WAIT", "UINT32", (1,))])
        + tensors("output", [("SQUARED", *square), ("IDX", "UINT32", (1,))])
        + steps(
            step("repeat_int32", {"IN": "IN", "DELAY": "DELAY", "WAIT": "WAIT"}, {"OUT": "each", "IDX": "IDX"}),
            step("plain_square", {"IN": "each"}, {"OUT": "SQUARED"}),
        ),
    )
    add(
        root,
        "plain_square",
        'backend: "python"\n' + tensors("input", [("IN", *square)]) + tensors("output", [("OUT", *square)]),
        PY,
    )

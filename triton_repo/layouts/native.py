"""The ``native`` layout: one decoupled Python-backend model that embeds the runtime and the tokenizer.

``REPOSITORY/NAME/config.pbtxt`` and ``REPOSITORY/NAME/1/model.py``. The model finds its engine by the
``engine_dir`` parameter, a path relative to the model's own folder, so a bundle can be moved. Limits
are copied from the engine and checked against it again at load. Batching happens inside the runtime,
token by token, so Triton's own batcher is off and ``max_batch_size`` is 1: a request carries one prompt.
A warm-up request runs at load, so that the first client does not pay for first-touch costs.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

from triton_repo.configs import add_cpu_instance, add_tensors, new_config, print_config, set_parameters
from triton_repo.tensors import INPUTS, OUTPUTS
from trtforge.errors import ForgeError
from trtforge.json_file import read_json_file

#: targets whose engines the model runs
TARGETS = ("torch", "tensorrt")
#: tokens that the warm-up request generates
WARMUP_TOKENS = 4
MODEL_CODE = Path(__file__).with_name("native_model.py")


def emit(
    engine_dir: Path,
    out: Path,
    *,
    name: str,
    engine_reference: str = "../../engine",
) -> dict[str, Any]:
    """Write the repository below ``out`` (an empty or missing folder).

    Args:
        engine_dir: the engine that the repository will serve; its limits are read.
        out: the repository's folder.
        name: the model's name, as clients say it.
        engine_reference: ``engine_dir`` parameter: relative to the model's folder.

    Returns:
        The emitted model's name, limits and files.

    Raises:
        ForgeError: TF-TRI-002 when the engine cannot be read, TF-TRI-003 when the folder is not empty.
    """
    engine = read_engine(engine_dir)
    if out.exists() and any(out.iterdir()):
        raise ForgeError(
            "TF-TRI-003",
            "the repository's folder is not empty",
            asked=str(out),
            remedies=["name an empty folder"],
        )
    limits = engine["limits"]
    config = new_config(name, backend="python", max_batch_size=1, decoupled=True)
    add_tensors(config, INPUTS, OUTPUTS)
    add_cpu_instance(config)
    set_parameters(
        config,
        {
            "engine_dir": engine_reference,
            "max_batch_size": str(limits["max_batch_size"]),
            "max_num_tokens": str(limits["max_num_tokens"]),
            "max_seq_len": str(limits["max_seq_len"]),
            "max_input_len": str(limits["max_input_len"]),
            "exclude_input_in_output": "true",
        },
    )
    model_dir = out / name
    (model_dir / "1").mkdir(parents=True)
    _add_warmup(config, model_dir)
    (model_dir / "config.pbtxt").write_text(print_config(config), encoding="utf-8")
    shutil.copyfile(MODEL_CODE, model_dir / "1" / "model.py")
    # The server's Python would leave bytecode beside the model, and a bundle with one file more no longer
    # verifies. It takes no environment variable that says otherwise; a file of the folder's name stops it.
    (model_dir / "1" / "__pycache__").touch()
    return {"layout": "native", "model": name, "limits": limits, "engine_reference": engine_reference}


def _add_warmup(config: Any, model_dir: Path) -> None:
    """One short real request, read by Triton from files in the model's ``warmup`` folder."""
    from tritonclient.grpc import model_config_pb2 as pb

    prompt = b"Hello"
    contents = {
        "text_input": struct.pack("<I", len(prompt)) + prompt,
        "max_tokens": struct.pack("<i", WARMUP_TOKENS),
    }
    folder = model_dir / "warmup"
    folder.mkdir()
    sample = config.model_warmup.add(name="first_request", batch_size=1, count=1)
    for row in INPUTS:
        if row.name in contents:
            (folder / row.name).write_bytes(contents[row.name])
            tensor = sample.inputs[row.name]
            tensor.data_type = pb.DataType.Value(f"TYPE_{row.dtype}")
            tensor.dims.extend(row.dims)
            tensor.input_data_file = row.name


def read_engine(engine_dir: Path) -> dict[str, Any]:
    """``engine.json`` with the keys that a repository needs.

    Raises:
        ForgeError: TF-TRI-002.
    """
    path = engine_dir / "engine.json"
    try:
        engine: dict[str, Any] = read_json_file(path)
        limits = engine["limits"]
        missing = {"max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len"} - set(limits)
        if missing:
            raise KeyError(", ".join(sorted(missing)))
        if engine.get("target", TARGETS[0]) not in TARGETS:
            raise ValueError(f"it is of target {engine['target']}; native serves {' and '.join(TARGETS)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-TRI-002",
            "the engine cannot be read",
            asked=str(path),
            why=f"{type(error).__name__}: {error}",
            remedies=["build it again: trtforge run RECIPE --force build"],
        ) from None
    return engine

"""Helpers of the tests that load emitted layouts into a real Triton server."""

import dataclasses
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc

from launcher.installation import Installation, find_installation

STAND_IN = Path(__file__).with_name("stand_in_engine.py")
ENGINE = {
    "max_batch_size": 2,
    "max_num_tokens": 512,
    "max_seq_len": 512,
    "max_input_len": 511,
    "max_beam_width": 2,
    "tokens_per_block": 32,
    "vocab_size": 512,
    "logits_dtype": "float32",
    "dtype": "float16",
    "tp": 1,
    "pp": 1,
    "speculation": "none",
    "paged_context_attention": True,
    "kv_bytes_per_token": 1024,
}
_TYPES = {np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32", np.dtype(np.bool_): "BOOL"}
_TYPES |= {np.dtype(np.uint64): "UINT64", np.dtype(np.object_): "BYTES"}


def installation_with_stand_in(folder: Path) -> Installation:
    """The server that is installed, with a backend ``tensorrtllm`` beside its own."""
    found = find_installation()
    assert found.backend_directory is not None
    for backend in found.backend_directory.iterdir():
        (folder / backend.name).symlink_to(backend)
    (folder / "tensorrtllm").mkdir()
    (folder / "tensorrtllm" / "model.py").write_bytes(STAND_IN.read_bytes())
    for name in ("stand_in_engine_words.py", "stand_in_language.py"):
        (folder / "tensorrtllm" / name).write_bytes(STAND_IN.with_name(name).read_bytes())
    return dataclasses.replace(found, backend_directory=folder)


def tensors(values: dict, batched: bool = True) -> list:
    """tritonclient inputs; a value is one item, a list of items (one row), or an array as it is."""
    inputs = []
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            items = value if isinstance(value, list) else [value]
            kind = {str: np.object_, bool: np.bool_, float: np.float32}.get(type(items[0]), np.int32)
            if name.endswith("seed"):
                kind = np.uint64
            value = np.array([items] if batched else items, dtype=kind)
        if value.dtype == np.object_:
            value = np.vectorize(lambda s: s.encode() if isinstance(s, str) else s, otypes=[np.object_])(value)
        tensor = grpc.InferInput(name, list(value.shape), _TYPES[value.dtype])
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def ask(url: str, model: str, values: dict, batched: bool = True, timeout: float = 30.0) -> list:
    """All responses of one streamed request; an error of the server is raised."""
    import queue

    events: queue.Queue = queue.Queue()
    results = []
    with grpc.InferenceServerClient(url) as client:
        client.start_stream(callback=lambda result, error: events.put((result, error)))
        client.async_stream_infer(model, tensors(values, batched), enable_empty_final_response=True)
        while True:
            result, error = events.get(timeout=timeout)
            if error is not None:
                raise error
            if result.as_numpy("text_output") is not None:
                results.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return results


def text(results: list) -> str:
    """The pieces of the first beam, joined."""
    return "".join(result.as_numpy("text_output").reshape(-1)[0].decode() for result in results)

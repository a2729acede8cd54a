"""Triton Python-backend model ``postprocessing``: tokens to text. Copied into the repository as ``1/model.py``.

Stateless: a response's tokens are decoded by themselves. Whole answers come out exact; a streaming ensemble hands
over one token at a time, and then a character of several tokens, or a space that depends on the token before,
cannot come out right. ``tensorrt_llm_bls`` keeps the state and streams exactly.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # provided by Triton

from runtime.tokenizer import EngineTokenizer


class TritonPythonModel:
    """Decodes every beam of every request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer that the configuration names."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._skip = parameters["skip_special_tokens"] == "true"
        self._tokenizer = EngineTokenizer.load((Path(args["model_repository"]) / parameters["tokenizer_dir"]).resolve())

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request: OUTPUT [B × beams], as NVIDIA's model has it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
        try:
            texts = [
                [
                    self._tokenizer.decode(beam[:length].tolist(), skip_special_tokens=self._skip).encode("utf-8")
                    for beam, length in zip(row, row_lengths, strict=True)
                ]
                for row, row_lengths in zip(tokens, lengths, strict=True)
            ]
        except Exception as error:  # one request's fault is no other's in the batch
            text = f"TF-TRI-074: the tokens are no text: {type(error).__name__}: {error}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_).reshape(-1))])

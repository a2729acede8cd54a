"""Triton Python-backend model ``preprocessing``: text to tokens. Copied into the repository as ``1/model.py``.

``tokenizer_dir`` may be relative to the model's own folder. Faults of a request are answered to that request
alone. Tokens are those of Hugging Face's ``AutoTokenizer``, made by ``tokenizers`` without transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # provided by Triton

from runtime.frontend.names import refuse_missing, refuse_timeout, refuse_unknown, told
from runtime.tokenizer import EngineTokenizer
from triton_repo.layouts.ifb_code.ends import end_ids
from triton_repo.layouts.ifb_code.words import embedding_bias, extra_ids, padded, variants, word_list
from triton_repo.layouts.ifb_tensors import BLS_INPUTS, TO_PREPROCESSING
from trtforge.ground.errors import ForgeError

#: names of what clients may send to the models before this one
CLIENT_INPUTS = [row.name for row in BLS_INPUTS]


class TritonPythonModel:
    """Tokenizes prompts, stop words, bad words and biased words."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer that the configuration names."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._add_special = parameters["add_special_tokens"] == "true"
        self._vocab = int(parameters["vocab_size"])
        folder = (Path(args["model_repository"]) / parameters["tokenizer_dir"]).resolve()
        self._tokenizer = EngineTokenizer.load(folder)
        self._tokenizer.prepare_chats()
        self._ends = end_ids(folder, self._tokenizer)
        pad = self._tokenizer.special_tokens.get("pad_token")
        pad_id = None if pad is None else self._tokenizer.backend.token_to_id(pad)
        self._pad = pad_id if pad_id is not None else (self._ends[0] if self._ends else 0)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            outputs = self._tokenize(request)
        except Exception as error:  # one request's fault is no other's in the batch
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(_text_of(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])

    def _tokenize(self, request: Any) -> dict[str, np.ndarray]:
        def given(name: str) -> np.ndarray | None:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy()

        # an ensemble hands the client's request parameters on to its steps
        refuse_unknown(request.parameters(), CLIENT_INPUTS)
        refuse_timeout(request.timeout())
        refuse_missing({client for client, inner in TO_PREPROCESSING.items() if given(inner) is not None})
        query = given("QUERY")
        assert query is not None
        batch = len(query)
        chat, end, pad = given("CHAT"), given("END_ID"), given("PAD_ID")
        end_ids = np.full((batch, 1), self._ends[0] if self._ends else -1, np.int32) if end is None else end
        pad_ids = np.full((batch, 1), self._pad, np.int32) if pad is None else pad
        fill = pad_ids.reshape(-1).tolist()
        rows = [
            self._prompt(row[0].decode("utf-8"), chat is not None and bool(chat.reshape(-1)[index]))
            for index, row in enumerate(query)
        ]
        tokens, lengths = padded(rows, fill)
        decoder, decoder_lengths = padded(self._decoder_rows(given("DECODER_QUERY"), fill), fill)
        # TensorRT-LLM ends at one token; the model's other ends become stop words of one token each
        more_ends = [] if end is not None else [[token] for token in self._ends[1:]]
        outputs = {
            "INPUT_ID": tokens,
            "REQUEST_INPUT_LEN": lengths,
            "DECODER_INPUT_ID": decoder,
            "REQUEST_DECODER_INPUT_LEN": decoder_lengths,
            "BAD_WORDS_IDS": self._words(given("BAD_WORDS_DICT"), batch, []),
            "STOP_WORDS_IDS": self._words(given("STOP_WORDS_DICT"), batch, more_ends),
            "EMBEDDING_BIAS": self._bias(given("EMBEDDING_BIAS_WORDS"), given("EMBEDDING_BIAS_WEIGHTS"), batch),
            "REQUEST_OUTPUT_LEN": given("REQUEST_OUTPUT_LEN"),
            "OUT_END_ID": end_ids.astype(np.int32),
            "OUT_PAD_ID": pad_ids.astype(np.int32),
        }
        extra = given("PROMPT_TABLE_EXTRA_ID")
        if extra is not None:
            outputs["OUT_PROMPT_TABLE_EXTRA_IDS"] = extra_ids(tokens, extra, self._vocab)
        return {name: array for name, array in outputs.items() if array is not None}

    def _prompt(self, text: str, chat: bool) -> list[int]:
        if chat:
            return self._tokenizer.encode_chat([{"role": "user", "content": text}])
        ids = self._tokenizer.encode(text, add_special_tokens=self._add_special)
        if not ids:
            raise ValueError("text_input is empty: a model continues a text, and there is nothing to continue")
        return ids

    def _decoder_rows(self, queries: np.ndarray | None, fill: list[int]) -> list[list[int]]:
        if queries is None:
            return [[token] for token in fill]
        return [self._encode(row[0].decode("utf-8")) for row in queries]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _words(self, words: np.ndarray | None, batch: int, always: list[list[int]]) -> np.ndarray:
        if words is None and not always:
            return np.empty((batch, 2, 0), dtype=np.int32)
        texts: list[list[str]] = [[] for _ in range(batch)]
        if words is not None:
            texts = [[word.decode("utf-8") for word in row if word] for row in words.reshape(batch, -1)]
        return word_list([[*always, *(ids for word in row for ids in variants(word, self._encode))] for row in texts])

    def _bias(self, words: np.ndarray | None, weights: np.ndarray | None, batch: int) -> np.ndarray:
        if words is None and weights is None:
            return np.empty((batch, 0), dtype=np.float32)
        if words is None or weights is None:
            raise ValueError("embedding_bias_words and embedding_bias_weights come together")
        texts = [[word.decode("utf-8") for word in row] for row in words.reshape(batch, -1)]
        return embedding_bias(texts, weights.reshape(batch, -1).tolist(), self._encode, self._vocab)


def _text_of(error: Exception) -> str:
    if isinstance(error, ForgeError):
        return told(error.to_json())
    if isinstance(error, UnicodeDecodeError):
        return f"TF-TRI-075: text is not UTF-8: {error}"
    return f"TF-TRI-075: {error}" if isinstance(error, ValueError) else f"TF-TRI-075: {type(error).__name__}: {error}"

"""Stands in for TensorRT-LLM's C++ backend: a model that answers by the tensor contract, not a language model.

Served as the Python-based backend ``tensorrtllm``, so that an emitted configuration is loaded as it is. It
echoes the prompt's tokens up to ``request_output_len``; stop words, bad words, the end token, a bias and beams do what
the contract says of them; a request whose client has gone ends. ``cum_log_probs`` reports the seed and
``output_log_probs`` the temperature, so that a test sees what arrived.

With an engine folder ``languages`` or ``drafts`` it is a language of its own instead: each next token follows from all
before it (``stand_in_language``), it verifies ``draft_input_ids`` as the target does, and in ``drafts`` it guesses
wrong now and then. Both note every request in the file that ``STAND_IN_LOG`` names.
"""

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from stand_in_engine_words import words_of
from stand_in_language import next_token

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MAX_SEQ_LEN = 512
SLOW = 9.0  # a temperature that means: 20 ms a token


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config["model_transaction_policy"]["decoupled"]
        self.names = [tensor["name"] for tensor in config["input"]]
        self.folder = config["parameters"]["gpt_model_path"]["string_value"]
        assert self.folder

    def execute(self, requests):
        if not self.decoupled:
            return [self.whole(request, self.read(request)) for request in requests]
        for request in requests:
            work = (self.read(request), request.get_response_sender())
            threading.Thread(target=self.stream, args=work, daemon=True).start()
        return None

    def read(self, request):
        found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self.names}
        return {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}

    def tokens(self, inputs, row):
        """The answer's tokens, one by one."""
        length = int(inputs["input_lengths"].reshape(-1)[row])
        prompt = inputs["input_ids"][row][:length].tolist()
        end = int(inputs["end_id"].reshape(-1)[row])
        stops = words_of(inputs.get("stop_words_list"), row)
        bad = {word[0] for word in words_of(inputs.get("bad_words_list"), row) if len(word) == 1}
        bias = inputs.get("embedding_bias")
        made = []
        # TensorRT-LLM cuts what is asked for at the end of the context, and says so in its log alone
        most = min(int(inputs["request_output_len"].reshape(-1)[row]), MAX_SEQ_LEN - length)
        if self.folder in ("languages", "drafts"):
            yield from self.spoken(inputs, prompt, end, stops)
            return
        for token in [prompt[i % length] for i in range(10**6)]:
            if bias is not None and bias.shape[-1]:
                token = int(bias[row].argmax())
            if token in bad:
                continue
            if token == end or len(made) >= most:
                return
            made.append(token)
            yield token
            if any(made[-len(word) :] == word for word in stops):
                return

    def spoken(self, inputs, prompt, end, stops):
        """Tokens of a language; drafts are verified: they end with the first one that is not the language's own."""
        drafts = inputs["draft_input_ids"].reshape(-1).tolist() if "draft_input_ids" in inputs else []
        most = int(inputs["request_output_len"].reshape(-1)[0])
        least = int(inputs["min_tokens"].reshape(-1)[0]) if "min_tokens" in inputs else 0
        if "draft_logits" in inputs:
            assert inputs["draft_logits"].shape[1] == len(drafts)
        if os.environ.get("STAND_IN_LOG"):
            heat = float(inputs["temperature"].reshape(-1)[0]) if "temperature" in inputs else 1.0
            seed = int(inputs["seed"].reshape(-1)[0]) if "seed" in inputs else -1
            note = {"model": self.folder, "prompt": len(prompt), "drafts": len(drafts), "most": most, "seed": seed}
            with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
                log.write(json.dumps({**note, "temperature": heat}) + "\n")
        text, made = list(prompt), []
        while len(made) < most:
            slow = "temperature" in inputs and float(inputs["temperature"].reshape(-1)[0]) == SLOW
            time.sleep(0.02 if slow else 0)
            token = next_token(text, end, wrong=self.folder == "drafts", may_end=len(made) >= least)
            if token == end:
                return
            text.append(token)
            made.append(token)
            yield token
            if any(made[-len(word) :] == word for word in stops):
                return
            at = len(made) - 1
            if drafts and (at >= len(drafts) or drafts[at] != token):
                return  # the first token after the accepted drafts ends the step

    def response(self, inputs, row, ids, beams):
        seed = float(inputs["seed"].reshape(-1)[row]) if "seed" in inputs else 0.0
        heat = float(inputs["temperature"].reshape(-1)[row]) if "temperature" in inputs else 1.0
        tensors = {
            "output_ids": np.array([[ids] * beams], np.int32).reshape(1, beams, len(ids)),
            "sequence_length": np.array([[len(ids)] * beams], np.int32),
            "batch_index": np.array([[row]], np.int32),
            "sequence_index": np.array([[0]], np.int32),
            "cum_log_probs": np.array([[seed] * beams], np.float32),
            "output_log_probs": np.full((1, beams, len(ids)), heat, np.float32),
        }
        if "return_generation_logits" in inputs and inputs["return_generation_logits"].any():
            tensors["generation_logits"] = np.zeros((1, 1, len(ids), 512), np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])

    def whole(self, request, inputs):
        if "streaming" in inputs and inputs["streaming"].any():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("streaming needs decoupled mode"))
        beams = int(inputs["beam_width"].reshape(-1)[0]) if "beam_width" in inputs else 1
        return self.response(inputs, 0, list(self.tokens(inputs, 0)), beams)

    def stream(self, inputs, sender):
        try:
            beams = int(inputs["beam_width"].reshape(-1)[0]) if "beam_width" in inputs else 1
            rows = range(len(inputs["input_lengths"]))
            if "streaming" not in inputs or not inputs["streaming"].any():
                for row in rows:
                    sender.send(self.response(inputs, row, list(self.tokens(inputs, row)), beams))
                sender.send(flags=FINAL)
                return
            slow = "temperature" in inputs and float(inputs["temperature"].reshape(-1)[0]) == SLOW
            for row in rows:
                for token in self.tokens(inputs, row):
                    if sender.is_cancelled():
                        break
                    time.sleep(0.02 if slow else 0)
                    sender.send(self.response(inputs, row, [token], 1))
            sender.send(flags=FINAL)
        except Exception as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(error))), flags=FINAL)

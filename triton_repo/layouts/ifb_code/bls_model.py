"""Triton Python-backend model ``tensorrt_llm_bls``; copied into the repository as ``1/model.py``.

preprocessing → tensorrt_llm → text, with the detokenizer's state kept for every sequence, so that streaming is
exact: joined pieces are the whole answer, no half characters, no missing spaces, stop words found across token
borders. Each streamed response holds the *new* text. An instance serves one request at a time and the repository has
as many instances as requests run together: calls of other models from several threads of one process corrupt the
memory of Triton 2.51's Python stub.

A stop text or a client that has gone cancels the request in the engine where Triton can (``cancel`` of a response
iterator, which 2.51 has not). Where it cannot, the engine runs on to its own end and the instance waits for it: a
``stop`` request beside an open response iterator corrupts the memory of 2.51's stub too.

With a draft model a request runs in rounds of two short requests (``drafting``); what rounds cannot serve (rows, beams,
log-probabilities, logits, guides) runs on the target alone.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # provided by Triton

from runtime.frontend.names import refuse_contradictions, refuse_missing, refuse_timeout, refuse_unknown, told
from runtime.tokenizer import EngineTokenizer
from triton_repo.layouts.ifb_code.drafting import Rounds, drafts_wanted, words_of
from triton_repo.layouts.ifb_code.generation import Answer, end_early, refusal
from triton_repo.layouts.ifb_tensors import DIRECT, TO_ENGINE, TO_PREPROCESSING
from trtforge.ground.errors import ForgeError

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
#: what BLS makes itself; everything else that a client asks for goes through
OWN = {"text_output", "finish_reason", "num_output_tokens", "max_tokens_granted"}
#: goes with the last piece of a sequence too, beside the text
REPEATED = {"batch_index", "sequence_index", "cum_log_probs"}
#: what would cover one round only, or no drafts can be made for
NOT_IN_ROUNDS = (
    *("return_log_probs", "return_context_logits", "return_generation_logits"),
    *("guided_decoding_guide_type", "prompt_embedding_table", "decoder_text_input"),
)
#: a client's tensors that every round sets for itself
SET_BY_ROUND = {"seed", "min_tokens", "return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"}
#: inputs of which a whole request has one value
ONE_A_REQUEST = ("stream", "beam_width")
#: adapters are the target's
TARGET_ONLY = {"lora_task_id", "lora_weights", "lora_config"}


class Refused(Exception):
    """An error that is the client's answer."""


class TritonPythonModel:
    """Runs the three models behind one."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer; the other models are called by name."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._decoupled = bool(config["model_transaction_policy"]["decoupled"])
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._engine = parameters["tensorrt_llm_model_name"]
        self._draft = parameters["tensorrt_llm_draft_model_name"]
        self._drafts = int(parameters["num_draft_tokens"])
        # A thread of the stub gives up its hold on an iterator some time after the last response. Were ours gone by
        # then, it would free Python's objects without the interpreter's lock, which ended the process on 2.51.
        self._recent: deque[Any] = deque(maxlen=16)
        self._accumulate = parameters["accumulate_tokens"] == "true"
        self._skip = parameters["skip_special_tokens"] == "true"
        self._max_beam_width = int(parameters["max_beam_width"])
        self._max_seq_len = int(parameters["max_seq_len"] or 2**31)
        self._tokenizer = EngineTokenizer.load((Path(args["model_repository"]) / parameters["tokenizer_dir"]).resolve())

    def execute(self, requests: list[Any]) -> None:
        """Answer every request through its own response sender, one after the other."""
        for request in requests:
            self._serve(request, request.get_response_sender())

    def _serve(self, request: Any, sender: Any) -> None:
        held: Any = None
        try:
            job = _Job(request, self._inputs)
            for response in self._answers(job, sender):
                if held is not None:
                    sender.send(held)
                held = None if job.stream else response
                if job.stream:
                    sender.send(response)
            if held is None and not job.stream:
                raise Refused("TF-TRI-079: the engine returned nothing")
            if held is None:
                sender.send(flags=FINAL)
            else:
                sender.send(held, flags=FINAL)
        except Exception as error:  # whatever it is, the client must get an answer
            sender.send(_failure(error), flags=FINAL)

    def _answers(self, job: "_Job", sender: Any) -> Iterator[Any]:
        beams = int(job.value("beam_width", 1))
        fault = refusal(
            stream=job.stream, decoupled=self._decoupled, beam_width=beams, max_beam_width=self._max_beam_width
        )
        if fault is not None:
            raise Refused(fault)
        drafts = self._drafts_of(job)
        if drafts:
            yield from self._in_rounds(job, sender, drafts)
            return
        sequences = _Sequences(job, self._answer)
        responses = self._generate(job, self._prepare(job))
        ended = False
        # One loop over the iterator to its end: a second one, or a response that comes after the client's last one,
        # corrupts the memory of the stub.
        for response in responses:
            if ended:
                continue
            if response.has_error():
                raise Refused(response.error().message())
            tensors = {tensor.name(): tensor for tensor in response.output_tensors()}
            if "output_ids" in tensors:
                yield sequences.response(tensors)
            if sender.is_cancelled() or (job.stream and sequences.all_stopped()):
                ended = True
                end_early(responses)
                if job.stream:
                    yield from sequences.ends()
        if job.stream and not ended:
            yield from sequences.ends()

    def _answer(self, job: "_Job", row: int) -> Answer:
        apart = None
        if job.stream and not self._accumulate:

            def apart(tokens: Any) -> str:
                return self._tokenizer.decode(tokens, skip_special_tokens=self._skip)

        return Answer(
            self._tokenizer.detokenizer(skip_special_tokens=self._skip),
            job.texts("stop_words", row),
            min_tokens=int(job.at("min_tokens", row, 0)),
            apart=apart,
        )

    def _prepare(self, job: "_Job") -> dict[str, Any]:
        inputs = [_named(inner, job.tensors[name]) for name, inner in TO_PREPROCESSING.items() if name in job.tensors]
        request = pb_utils.InferenceRequest(
            model_name="preprocessing", inputs=inputs, requested_output_names=list(TO_ENGINE)
        )
        response = request.exec()
        if response.has_error():
            raise Refused(response.error().message())
        prepared = {tensor.name(): tensor for tensor in response.output_tensors()}
        job.rooms = [self._max_seq_len - int(n) for n in prepared["REQUEST_INPUT_LEN"].as_numpy().reshape(-1)]
        return prepared

    def _generate(self, job: "_Job", prepared: dict[str, Any]) -> Any:
        inputs = [_named(TO_ENGINE[name], tensor) for name, tensor in prepared.items()]
        inputs += [_named(inner, job.tensors[name]) for name, inner in DIRECT.items() if name in job.passed]
        if "seed" not in job.tensors and "random_seed" in job.tensors:
            inputs.append(_named("seed", job.tensors["random_seed"]))
        column = (job.batch, 1)
        # the prompt is put before the text here: token by token it could not be told from the answer
        inputs.append(pb_utils.Tensor("exclude_input_in_output", np.ones(column, dtype=np.bool_)))
        inputs.append(pb_utils.Tensor("streaming", np.full(column, job.stream, dtype=np.bool_)))
        outputs = ["output_ids", "sequence_length", "batch_index", "sequence_index"]
        request = pb_utils.InferenceRequest(
            model_name=self._engine,
            inputs=inputs,
            requested_output_names=[*outputs, *sorted(job.wanted - OWN - set(outputs))],
        )
        return request.exec(decoupled=True) if self._decoupled else [request.exec()]

    def _drafts_of(self, job: "_Job") -> int:
        obstacles = [name for name in NOT_IN_ROUNDS if name in job.tensors and job.tensors[name].as_numpy().any()]
        counts = {"beam_width": int(job.value("beam_width", 1)), "sequences and rows": job.sequences}
        obstacles += [f"{count} {name}" for name, count in counts.items() if count > 1]
        asked = int(job.value("num_draft_tokens", 0)) if "num_draft_tokens" in job.tensors else None
        try:
            drafts = drafts_wanted(asked, usual=self._drafts, model=self._draft, obstacles=obstacles)
        except ValueError as error:
            raise Refused(f"TF-TRI-089: {error}") from None
        if not drafts and job.value("use_draft_logits", False):
            why = ", ".join(obstacles) or "no draft model, or num_draft_tokens: 0"
            raise Refused(f"TF-TRI-089: use_draft_logits: this request runs without drafts ({why})")
        return drafts

    def _in_rounds(self, job: "_Job", sender: Any, drafts: int) -> Iterator[Any]:
        """Drafts of one model, verified by the other, until the answer ends or nobody wants it any more."""
        prepared = {name: np.array(tensor.as_numpy()) for name, tensor in self._prepare(job).items()}
        prompt = prepared["INPUT_ID"][0][: int(prepared["REQUEST_INPUT_LEN"].reshape(-1)[0])].tolist()
        end = int(prepared["OUT_END_ID"].reshape(-1)[0])
        stops = words_of(prepared["STOP_WORDS_IDS"][0].tolist())
        rounds = Rounds(drafts, job.granted(0), end if end >= 0 else None, stops)
        sequences = _Sequences(job, self._answer)
        while not rounds.ended and not sender.is_cancelled():
            tokens = [*prompt, *rounds.made]
            guess, more = self._guess(job, prepared, tokens, len(rounds.made), rounds.room)
            verified = self._ask(self._engine, job, prepared, tokens, len(rounds.made), len(guess) + 1, more)
            new = rounds.add(guess, verified["output_ids"])
            if job.stream and new:
                yield sequences.response(_counted(new, rounds, len(prompt)))
                if sequences.all_stopped():
                    break
        if not job.stream or not rounds.made:
            yield sequences.response(_counted([] if job.stream else rounds.made, rounds, len(prompt)))
        if job.stream:
            yield from sequences.ends()

    def _guess(self, job: "_Job", prepared: Any, tokens: list[int], made: int, count: int) -> tuple[list[int], Any]:
        """Drafts, and the tensors with which the target verifies them."""
        if not count:
            return [], {}
        logits = bool(job.value("use_draft_logits", False))
        asked = {"return_generation_logits": np.ones((1, 1), dtype=np.bool_)} if logits else {}
        answer = self._ask(self._draft, job, prepared, tokens, made, count, asked, logits=logits)
        guess = answer["output_ids"]
        if not guess:
            return [], {}
        more = {"draft_input_ids": np.array([guess], dtype=np.int32)}
        if logits:
            more["draft_logits"] = answer["generation_logits"].reshape(1, -1, answer["generation_logits"].shape[-1])
            more["draft_logits"] = np.ascontiguousarray(more["draft_logits"][:, : len(guess)])
        return guess, more

    def _ask(
        self,
        model: str,
        job: "_Job",
        prepared: dict[str, np.ndarray],
        tokens: list[int],
        made: int,
        count: int,
        more: dict[str, np.ndarray],
        *,
        logits: bool = False,
    ) -> dict[str, Any]:
        """At most ``count`` tokens after ``tokens``, of which ``made`` are the answer's, from one engine."""
        passed = {"BAD_WORDS_IDS", "STOP_WORDS_IDS", "EMBEDDING_BIAS", "OUT_END_ID", "OUT_PAD_ID"}
        values = {TO_ENGINE[name]: prepared[name] for name in sorted(passed & prepared.keys())}
        skipped = SET_BY_ROUND | (TARGET_ONLY if model == self._draft else set())
        for name in sorted(job.passed & DIRECT.keys() - skipped):
            values[DIRECT[name]] = job.tensors[name].as_numpy()
        seed = int(job.value("seed", job.value("random_seed", 0)))
        column = (1, 1)
        values |= {
            "input_ids": np.array([tokens], dtype=np.int32),
            "input_lengths": np.full(column, len(tokens), dtype=np.int32),
            "request_output_len": np.full(column, count, dtype=np.int32),
            # a request begins its random numbers anew: rounds of one seed would draw the same ones
            "seed": np.full(column, (seed + made) % 2**64, dtype=np.uint64),
            "min_tokens": np.full(column, max(0, int(job.value("min_tokens", 0)) - made), dtype=np.int32),
            "exclude_input_in_output": np.ones(column, dtype=np.bool_),
            "streaming": np.zeros(column, dtype=np.bool_),
            **more,
        }
        outputs = ["output_ids", "sequence_length", *(["generation_logits"] if logits else [])]
        request = pb_utils.InferenceRequest(
            model_name=model,
            inputs=[pb_utils.Tensor(name, value) for name, value in values.items()],
            requested_output_names=outputs,
        )
        found: dict[str, Any] = {}
        fault = None
        responses = request.exec(decoupled=True) if self._decoupled else [request.exec()]
        self._recent.append((request, responses))
        for response in responses:
            if response.has_error():
                fault = response.error().message()
            else:
                found |= {tensor.name(): np.array(tensor.as_numpy()) for tensor in response.output_tensors()}
        if fault is not None or "output_ids" not in found:
            raise Refused(fault or f"TF-TRI-079: {model} returned nothing")
        length = int(found["sequence_length"].reshape(-1)[0])
        return {**found, "output_ids": found["output_ids"].reshape(-1)[:length].tolist()}


class _Job:
    """What a client sent, read once."""

    def __init__(self, request: Any, inputs: list[str]) -> None:
        refuse_unknown(request.parameters(), inputs)
        found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in inputs}
        self.tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
        refuse_missing(self.tensors)
        refuse_timeout(request.timeout())
        #: tokens that the context has room for after each row's prompt, once they are known
        self.rooms: list[int] = []
        self.wanted = set(request.requested_output_names())
        self._text = self.tensors["text_input"].as_numpy()
        self.batch = len(self._text)
        self.stream = bool(self.value("stream", False))
        #: each response counts its own tokens, so that a stream's counts add up
        self.own_counts = bool(self.value("return_num_output_tokens", False))
        self._refuse_dropped()
        self.sequences = self.batch * int(self.value("num_return_sequences", 1))
        self.passed = self.tensors.keys() - {"exclude_input_in_output", "stream"}

    def _refuse_dropped(self) -> None:
        """Refuse what would be dropped in silence."""
        for name in ONE_A_REQUEST:
            if name in self.tensors and len(set(self.tensors[name].as_numpy().reshape(-1).tolist())) > 1:
                raise Refused(f"TF-TRI-092: {name} differs between the rows of one request; send requests of their own")
        names = ("seed", "random_seed", "chat", "stream", "exclude_input_in_output")
        for row in range(self.batch):
            refuse_contradictions({name: self.at(name, row, None) for name in names if name in self.tensors})

    def at(self, name: str, row: int, default: Any) -> Any:
        """A row's value of a tensor, or ``default`` when it was not sent."""
        if name not in self.tensors:
            return default
        values = self.tensors[name].as_numpy().reshape(-1)
        return values[row if row < len(values) else 0]

    def value(self, name: str, default: Any) -> Any:
        """The first value of a tensor, or ``default`` when it was not sent."""
        return self.tensors[name].as_numpy().reshape(-1)[0] if name in self.tensors else default

    def max_tokens(self, row: int) -> int:
        return int(self.tensors["max_tokens"].as_numpy().reshape(-1)[row])

    def granted(self, row: int) -> int:
        """Tokens that a row's answer may have: TensorRT-LLM cuts ``max_tokens`` at the end of the context."""
        return min([self.max_tokens(row), *self.rooms[row : row + 1]])

    def texts(self, name: str, row: int) -> list[str]:
        """Texts of one row of a STRING tensor."""
        if name not in self.tensors:
            return []
        return [item.decode("utf-8") for item in self.tensors[name].as_numpy().reshape(self.batch, -1)[row]]

    def echo(self, row: int) -> str:
        """The prompt, when the client asked to have it back; not in streams, and never a chat."""
        if self.stream or self.at("exclude_input_in_output", row, True) or self.at("chat", row, False):
            return ""
        return str(self._text[row][0].decode("utf-8"))


class _Sequences:
    """The texts of one request's sequences: one a row, a returned sequence and a beam."""

    def __init__(self, job: _Job, make: Callable[[_Job, int], Answer]) -> None:
        self._job = job
        self._make = make
        self._answers: dict[tuple[int, int, int], Answer] = {}
        self._last: dict[tuple[int, int, int], dict[str, np.ndarray]] = {}
        self._counted: dict[tuple[int, int, int], int] = {}

    def all_stopped(self) -> bool:
        """Whether every sequence has come to a stop text."""
        return len(self._answers) >= self._job.sequences and all(answer.stopped for answer in self._answers.values())

    def response(self, tensors: dict[str, Any]) -> Any:
        """The client's response to one of the engine's: output_ids [rows, beams, tokens]."""
        ids, lengths = tensors["output_ids"].as_numpy(), tensors["sequence_length"].as_numpy()
        first, sequence = (
            int(tensors[name].as_numpy().reshape(-1)[0]) if name in tensors else 0
            for name in ("batch_index", "sequence_index")
        )
        # copies: a tensor is not to be touched once its response has gone
        repeated = {name: np.array(tensors[name].as_numpy()) for name in sorted(REPEATED & tensors.keys())}
        texts: list[list[bytes]] = []
        reasons: list[list[bytes]] = []
        counts: list[list[int]] = []
        for row, (beams, beam_lengths) in enumerate(zip(ids, lengths, strict=True), start=first):
            keys = [(row, sequence, beam) for beam in range(len(beams))]
            pieces = [
                self._push(key, tokens[:length].tolist())
                for key, tokens, length in zip(keys, beams, beam_lengths, strict=True)
            ]
            self._last.update(dict.fromkeys(keys, repeated))
            texts.append([piece.encode("utf-8") for piece in pieces])
            reasons.append([b"" if self._job.stream else self._reason(key) for key in keys])
            counts.append([self._count(keys[0])])
        passed = [tensor for name, tensor in tensors.items() if name not in OWN]
        granted = [] if self._job.stream else [[self._job.granted(first + row)] for row in range(len(ids))]
        return _response(self._job, texts, reasons, counts, granted, passed)

    def ends(self) -> Iterator[Any]:
        """The last response of every streamed sequence: what was held back, and why it ended."""
        for key, answer in self._answers.items():
            text = answer.finish().encode("utf-8")
            repeated = [pb_utils.Tensor(name, array) for name, array in self._last[key].items()]
            granted = [[self._job.granted(key[0])]]
            yield _response(self._job, [[text]], [[self._reason(key)]], [[self._count(key)]], granted, repeated)

    def _count(self, key: tuple[int, int, int]) -> int:
        """Tokens of a sequence so far, or those that are new since the last count."""
        tokens = self._answers[key].tokens
        before = self._counted.get(key, 0) if self._job.own_counts else 0
        self._counted[key] = tokens
        return tokens - before

    def _push(self, key: tuple[int, int, int], tokens: list[int]) -> str:
        echo = ""
        if key not in self._answers:
            self._answers[key] = self._make(self._job, key[0])
            echo = self._job.echo(key[0])
        text = echo + self._answers[key].push(tokens)
        return text if self._job.stream else text + self._answers[key].finish()

    def _reason(self, key: tuple[int, int, int]) -> bytes:
        return self._answers[key].reason(self._job.granted(key[0])).encode()


def _named(name: str, tensor: Any) -> Any:
    return tensor if tensor.name() == name else pb_utils.Tensor(name, tensor.as_numpy())


def _counted(tokens: list[int], rounds: Rounds, prompt: int) -> dict[str, Any]:
    """New tokens as an engine's response has them, the prompt's length and the counts of all rounds so far."""
    arrays = {
        "output_ids": np.array([[tokens]], dtype=np.int32).reshape(1, 1, len(tokens)),
        "sequence_length": np.array([[len(tokens)]], dtype=np.int32),
        "batch_index": np.zeros((1, 1), dtype=np.int32),
        "sequence_index": np.zeros((1, 1), dtype=np.int32),
        "num_input_tokens": np.array([[prompt]], dtype=np.int32),
        "total_draft_tokens": np.array([[rounds.drafted]], dtype=np.int32),
        "total_accepted_draft_tokens": np.array([[rounds.accepted]], dtype=np.int32),
        "acceptance_rate": np.array([[rounds.accepted / max(1, rounds.drafted)]], dtype=np.float32),
    }
    return {name: pb_utils.Tensor(name, array) for name, array in arrays.items()}


def _response(
    job: _Job, texts: list[Any], reasons: list[Any], counts: list[Any], granted: list[Any], passed: list[Any]
) -> Any:
    own = {
        "text_output": np.array(texts, dtype=np.object_).reshape(-1),
        "finish_reason": np.array(reasons, dtype=np.object_),
        "num_output_tokens": np.array(counts, dtype=np.int32),
        **({"max_tokens_granted": np.array(granted, dtype=np.int32)} if granted else {}),
    }
    tensors = [pb_utils.Tensor(name, array) for name, array in own.items() if name in job.wanted]
    return pb_utils.InferenceResponse([*tensors, *(tensor for tensor in passed if tensor.name() in job.wanted)])


def _failure(error: Exception) -> Any:
    text = str(error) if isinstance(error, Refused) else f"TF-TRI-079: {type(error).__name__}: {error}"
    if isinstance(error, ForgeError):
        text = told(error.to_json())
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))

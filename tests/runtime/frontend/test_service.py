"""Requests through a real engine core with a simulated executor, and a backend that records what Triton would send."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from runtime import errors
from runtime.engine import EngineCore
from runtime.frontend.asking import Defaults
from runtime.frontend.service import Service
from runtime.serving import AsyncEngine
from tests.support.simulation import SimulatedExecutor
from triton_repo.layouts.native_tensors import INPUTS, OUTPUTS
from trtforge.ground.drain_notice import NOTICE, DrainNotice, leave_notice
from trtforge.ground.errors import ForgeError

FINAL = 1


class Tensor:
    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class Response:
    def __init__(self, output_tensors=(), error=None):
        self.arrays = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


BACKEND = SimpleNamespace(
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL, Tensor=Tensor, InferenceResponse=Response, TritonError=str
)


class Request:
    """One of Triton's requests, and the sender of its responses."""

    def __init__(self, arrays, parameters=None, request_id="", refuses=False, timeout=0):
        self.arrays = {name: np.array(value) for name, value in arrays.items()}
        self._parameters, self._id, self._refuses = parameters or {}, request_id, refuses
        self._timeout = timeout  # microseconds; 0: none
        self.sent, self.done, self.gone = [], threading.Event(), False

    def inputs(self):
        return [Tensor(name, array) for name, array in self.arrays.items()]

    def parameters(self):
        return json.dumps(self._parameters)

    def request_id(self):
        return self._id

    def timeout(self):
        return self._timeout

    def requested_output_names(self):
        return [row.name for row in OUTPUTS]

    def get_response_sender(self):
        return self

    def send(self, response=None, flags=0):
        assert not self.done.is_set(), "nothing comes after the final response"
        if self._refuses and not flags:
            raise RuntimeError("nobody is there")
        if response is not None:
            self.sent.append(response)
        if flags == FINAL:
            self.done.set()

    def is_cancelled(self):
        return self.gone

    def wait(self):
        assert self.done.wait(20), "no final response"
        return self.sent

    @property
    def error(self):
        return self.wait()[-1].error


class Slow(SimulatedExecutor):
    """Steps only while it may."""

    def __init__(self, **limits):
        super().__init__(**limits)
        self.may = threading.Event()
        self.may.set()

    def execute(self, batch):
        self.may.wait(20)
        return super().execute(batch)


@pytest.fixture
def executor():
    return Slow()


@pytest.fixture
def engine(executor):
    made = AsyncEngine(EngineCore(executor))
    yield made
    executor.may.set()
    made.shutdown(5)


def _service(engine, **options):
    return Service(engine, BACKEND, inputs=[row.name for row in INPUTS], **options)


@pytest.fixture
def service(engine):
    return _service(engine)


def _tokens(rows=1, max_tokens=4, **more):
    return {
        "input_ids": np.full((rows, 3), 5, np.int32),
        "max_tokens": np.full((rows, 1), max_tokens, np.int32),
        "exclude_input_in_output": np.full((rows, 1), True),
        **{name: np.full((rows, 1), value) for name, value in more.items()},
    }


def _whose(responses):
    return sorted((r.arrays["batch_index"].item(), r.arrays["sequence_index"].item()) for r in responses)


def test_rows_and_samples_each_get_a_response_and_one_end(service):
    request = Request(_tokens(rows=3, num_return_sequences=2))
    service.take(request)
    responses = request.wait()
    assert _whose(responses) == [(row, sample) for row in range(3) for sample in range(2)]
    assert all(r.arrays["output_ids"].shape == (1, 1, 4) for r in responses)
    assert all(r.arrays["max_tokens_granted"].item() == 4 for r in responses)


def test_streams_of_rows_join_to_their_whole_answers(service):
    whole, streamed = Request(_tokens(rows=2, max_tokens=6)), Request(_tokens(rows=2, max_tokens=6, stream=True))
    service.take(whole)
    service.take(streamed)
    joined = {0: [], 1: []}
    for response in streamed.wait():
        joined[response.arrays["batch_index"].item()] += response.arrays["output_ids"][0][0].tolist()
    for response in whole.wait():
        assert response.arrays["output_ids"][0][0].tolist() == joined[response.arrays["batch_index"].item()]


def test_one_bad_row_refuses_the_request_and_starts_none(service, engine):
    arrays = _tokens(rows=2)
    arrays["input_ids"][1] = 10**6
    request = Request(arrays)
    service.take(request)
    assert "TF-RUN-054" in request.error
    assert not engine.core.has_unfinished()


def test_too_much_asked_is_cut_and_said(service, executor):
    request = Request(_tokens(max_tokens=10**6))
    service.take(request)
    [response] = request.wait()
    room = executor.limits.max_seq_len - 3
    assert response.arrays["max_tokens_granted"].item() == room
    assert response.arrays["finish_reason"].item() == b"length"
    assert response.arrays["num_output_tokens"].item() == room


def test_tritons_own_timeout_is_a_deadline(service, executor):
    executor.may.clear()
    request = Request(_tokens(max_tokens=200), timeout=1000)
    service.take(request)
    time.sleep(0.01)
    executor.may.set()
    [response] = request.wait()
    assert response.arrays["finish_reason"].item() == b"timeout"


def test_refusals_are_counted_by_code_and_logged_with_their_id(service, engine, caplog):
    caplog.set_level("INFO", "trtforge.runtime")
    for name, arrays, parameters in (
        ("one\nERROR forged", _tokens(), {"temprature": 0.5}),
        ("two" * 100, _tokens(), {"temprature": 0.5}),
        ("", _tokens(max_tokens=0), {}),
    ):
        request = Request(arrays, parameters=parameters, request_id=name)
        service.take(request)
        assert request.error
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("request 'one?ERROR forged' refused: TF-RUN-106")
    assert len(lines[1]) < 300
    rejected = [(labels, count) for name, labels, count in engine.points() if name == "requests_rejected_total"]
    assert rejected == [({"code": "TF-RUN-070"}, 1), ({"code": "TF-RUN-106"}, 2)]


def test_a_requests_id_begins_its_ids_in_the_engine(service, engine, executor):
    executor.may.clear()
    same = [Request(_tokens(rows=2, max_tokens=3), request_id="job 7") for _ in range(2)]
    for request in same:
        service.take(request)
    names = list(engine._callbacks)
    assert len(names) == 4, "clients may give one id to several requests"
    assert all(name.startswith("job 7#") for name in names)
    executor.may.set()
    assert all(len(request.wait()) == 2 for request in same)


def test_a_way_back_that_takes_its_time_does_not_keep_the_engine_waiting(service, engine):
    """What it does not take yet waits as one response, of all the steps meanwhile."""
    go = threading.Event()
    slow, quick = Request(_tokens(max_tokens=100, stream=True)), Request(_tokens(max_tokens=100))
    send = slow.send

    def held(response=None, flags=0):
        assert go.wait(20)
        send(response, flags)

    slow.send = held
    service.take(slow)
    service.take(quick)
    _until(lambda: engine.core.metrics.finished["length"] == 2)
    assert not slow.sent
    go.set()
    quick.wait()
    responses = slow.wait()
    tokens = [token for response in responses for token in response.arrays["output_ids"][0][0].tolist()]
    assert tokens == quick.sent[0].arrays["output_ids"][0][0].tolist()
    assert len(responses) <= 3
    assert responses[-1].arrays["num_output_tokens"].item() == len(tokens) > 50
    service.flush()


def test_a_server_may_say_how_many_tokens(engine):
    arrays = _tokens()
    del arrays["max_tokens"]
    request = Request(arrays)
    _service(engine, defaults=Defaults(max_tokens=6)).take(request)
    [response] = request.wait()
    assert response.arrays["num_output_tokens"].item() == 6
    silent = Request(arrays)
    _service(engine).take(silent)
    assert "TF-RUN-117" in silent.error


def test_unknown_keys_are_refused(service):
    request = Request(_tokens(), parameters={"temprature": 0.5})
    service.take(request)
    assert "TF-RUN-106" in request.error
    assert "did you mean 'temperature'" in request.error


def test_the_token_clients_parameter_agrees_or_is_refused(service):
    agreeing = Request(_tokens(stream=True), parameters={"Streaming": True})
    service.take(agreeing)
    assert agreeing.error is None
    contradicting = Request(_tokens(), parameters={"Streaming": True})
    service.take(contradicting)
    assert "TF-RUN-108" in contradicting.error


def _until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_client_that_has_gone_frees_all_its_rows(service, engine, executor):
    executor.may.clear()
    request = Request(_tokens(rows=3, max_tokens=200))
    service.take(request)
    request.gone = True
    service.watch()
    executor.may.set()
    request.wait()
    _until(lambda: not engine.core.has_unfinished())


def test_a_client_that_takes_nothing_frees_all_its_rows(service, engine):
    request = Request(_tokens(rows=3, max_tokens=200, stream=True), refuses=True)
    service.take(request)
    request.wait()
    _until(lambda: not engine.core.has_unfinished())


def test_stop_ends_the_requests_of_that_id(service, executor):
    executor.may.clear()
    first, other = Request(_tokens(max_tokens=200), request_id="7"), Request(_tokens(), request_id="8")
    service.take(first)
    service.take(other)
    stop = Request({"stop": [[True]], "input_ids": [[0]]}, {"Streaming": True}, request_id="7")
    service.take(stop)
    assert [response.arrays for response in stop.wait()] == [{}], "a response without outputs"
    executor.may.set()
    assert first.wait()[-1].arrays["finish_reason"].item() == b"cancelled"
    assert other.wait()[-1].arrays["finish_reason"].item() == b"length"
    nameless = Request({"stop": [[True]]})
    service.take(nameless)
    assert "TF-RUN-119" in nameless.error


@pytest.mark.parametrize("more", [{"stream": True}, {"num_return_sequences": 2}, {"rows": 2}])
def test_what_needs_several_responses_is_refused_where_there_is_one(engine, more):
    request = Request(_tokens(**more))
    _service(engine, decoupled=False).take(request)
    assert "TF-RUN-120" in request.error
    fitting = Request(_tokens())
    _service(engine, decoupled=False).take(fitting)
    assert len(fitting.wait()) == 1


def test_a_drain_that_is_over_tells_running_and_waiting_requests(engine, executor, tmp_path, monkeypatch):
    monkeypatch.setenv(NOTICE, str(tmp_path / "drain"))
    service = _service(engine)
    executor.may.clear()
    requests = [Request(_tokens(max_tokens=200, stream=index % 2 == 0)) for index in range(40)]
    for request in requests:
        service.take(request)
    leave_notice(tmp_path / "drain", 60)
    service.watch()
    executor.may.set()
    time.sleep(0.05)
    assert not any(request.error for request in requests if request.done.is_set())
    leave_notice(tmp_path / "drain", 0)
    late = _service(engine)
    late._live = service._live
    late.watch()
    errors_told = [request.error for request in requests]
    told = [text for text in errors_told if text is not None]
    assert told
    assert all("TF-RUN-057" in text and "drain ended" in text for text in told)
    refused = Request(_tokens())
    service.take(refused)
    assert "TF-RUN-057" in refused.error


def test_a_drain_may_be_cut_short(tmp_path):
    leave_notice(tmp_path / "drain", 60)
    notice = DrainNotice(tmp_path / "drain")
    assert not notice.over()
    leave_notice(tmp_path / "drain", 0)
    assert notice.over()


def test_a_notice_needs_no_file_and_is_whole(tmp_path):
    assert not DrainNotice(tmp_path / "none").over()
    (tmp_path / "half").write_text("")
    assert not DrainNotice(tmp_path / "half").over()
    leave_notice(tmp_path / "past", -1)
    assert DrainNotice(tmp_path / "past").over()
    assert (tmp_path / "past").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "past.part").exists()


def test_an_engine_without_work_forgets_that_it_was_ended(engine):
    engine.end(errors.drain_ended())
    _until(lambda: engine._ending is None)
    with pytest.raises(Exception, match="TF-RUN-057"):
        engine.submit_all([])


def test_a_slow_template_keeps_nobody_else_waiting(engine, monkeypatch):
    go, submitted = threading.Event(), []
    submit = engine.submit_all

    def slow(pairs):
        messages = pairs[0][0].messages
        if messages is not None:
            assert go.wait(20)
            if messages[0]["content"] == "bad":
                raise ForgeError("TF-RUN-094", "the chat template takes more than 2 s of processor time")
        submitted.append(pairs[0][0].prompt_token_ids is None)
        return [] if messages is not None else submit(pairs)

    monkeypatch.setattr(engine, "submit_all", slow)
    service = Service(engine, BACKEND, inputs=[row.name for row in INPUTS])
    limit = np.array([[2]], np.int32)
    chats = [Request({"text_input": [[text]], "max_tokens": limit, "chat": [[True]]}) for text in (b"hello", b"bad")]
    plain = Request({"input_ids": np.array([[5, 6]], np.int32), "max_tokens": limit})
    for request in (*chats, plain):
        service.take(request)
    plain.wait()
    assert submitted == [False] and not chats[0].done.is_set()
    go.set()
    assert "TF-RUN-094" in str(chats[1].error)
    service.close()
    assert submitted == [False, True]

"""Triton Python-backend model of the ``llmapi`` layout; copied into the repository as ``1/model.py``.

``1/model.yaml`` holds ``triton_config`` and the arguments of TensorRT-LLM's ``LLM()``; relative paths in it are
relative to the model's own folder. ``LLM`` batches by itself: a Triton request carries one prompt, and requests
run side by side on one event loop. A streamed response holds the *new* text.

``tensorrt_llm`` is imported only once the instance's GPUs are set, because its import opens them.
"""

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # provided by Triton
import yaml

from runtime.frontend.names import REQUIRED, refuse_missing, refuse_unknown, told
from triton_repo.layouts.llmapi_code.request import (
    Refused,
    adapter,
    guide,
    instance_devices,
    performance,
    piece,
    sampling,
    scalar,
    texts,
)
from trtforge.ground.errors import ForgeError

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
#: for the requests of an engine that died
FAREWELL_SECONDS = 2.0
#: what TensorRT-LLM raises when its executor died (tensorrt_llm.executor); its own server ends on it
_EXECUTOR_DIED = "CppExecutorError"
#: variables of an MPI job that started the server; the ranks that LLM() starts are not part of it
_MPI_JOB = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_MCA_orte_", "ORTE_", "PMIX_", "PMI_")
#: keys of ``model.yaml`` that name a folder
_PATHS = (("model",), ("speculative_config", "speculative_model"), ("speculative_config", "speculative_model_dir"))


class TritonPythonModel:
    """One ``LLM`` behind one Triton instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model that ``model.yaml`` describes."""
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"])
        document = yaml.safe_load((folder / args["model_version"] / "model.yaml").read_text(encoding="utf-8"))
        settings = document.pop("triton_config")
        self._decoupled = bool(config["model_transaction_policy"]["decoupled"])
        self._check(config, settings)
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._period = int(settings.get("cancellation_check_period_ms", 100)) / 1000.0
        adapters = settings.get("lora_directory")
        self._adapters = None if adapters is None else (folder / adapters).resolve()
        parameters = config.get("parameters", {})
        devices = instance_devices(
            parameters.get("gpu_device_ids", {}).get("string_value", ""), args["model_instance_name"]
        )
        for name in [name for name in os.environ if name.startswith(_MPI_JOB)]:
            del os.environ[name]
        if devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["TRTLLM_VISIBLE_DEVICES"] = devices
            document["gpus_per_node"] = len(devices.split(","))
        for path in _PATHS:
            _resolve(document, path, folder)

        import tensorrt_llm

        self._library = tensorrt_llm
        self._llm = tensorrt_llm.LLM(**document)
        self._running: dict[str, set[Any]] = {}
        self._leaving = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-requests", daemon=True)
        self._thread.start()

    def _check(self, config: dict[str, Any], settings: dict[str, Any]) -> None:
        for name, here in (("decoupled", self._decoupled), ("max_batch_size", int(config["max_batch_size"]))):
            if settings[name] != here:
                raise pb_utils.TritonModelException(
                    f"TF-TRI-084: {name} is {here} in config.pbtxt and {settings[name]} in model.yaml; emit it again"
                )

    def execute(self, requests: list[Any]) -> None:
        """Put every request on the event loop; each answers through its own response sender."""
        for request in requests:
            found = {name: pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs}
            tensors = {name: tensor.as_numpy() for name, tensor in found.items() if tensor is not None}
            work = self._serve(
                tensors,
                request.parameters(),
                request.request_id(),
                request.timeout() / 1e6,
                request.get_response_sender(),
            )
            asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _serve(
        self, tensors: dict[str, np.ndarray], parameters: str, request_id: str, timeout: float, sender: Any
    ) -> None:
        try:
            refuse_unknown(parameters, self._inputs)
            if scalar(tensors, "stop", False):
                self._abort(request_id)
                sender.send(flags=FINAL)
                return
            refuse_missing(tensors, {"text_input": REQUIRED["text_input"]})
            await self._generate(tensors, request_id, timeout, sender)
        except ForgeError as error:
            fault = pb_utils.TritonError(told(error.to_json()))
            sender.send(pb_utils.InferenceResponse(error=fault), flags=FINAL)
        except Exception as error:  # whatever it is, the client must get an answer
            text = str(error) if isinstance(error, Refused) else f"TF-TRI-085: {type(error).__name__}: {error}"
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text)), flags=FINAL)
            if self._is_fatal(error):
                self._leave_with_the_engine(text)

    def _is_fatal(self, error: Exception) -> bool:
        """Whether ``LLM`` answers nobody any more: its executor failed, or it says so itself where it can be asked."""
        if any(kind.__name__ == _EXECUTOR_DIED for kind in type(error).__mro__):
            return True
        healthy = getattr(self._llm, "_check_health", None)
        return not isinstance(error, Refused) and healthy is not None and not healthy()

    def _leave_with_the_engine(self, why: str) -> None:
        """End this process, to which Triton would go on sending requests; others get a moment to hear why."""
        if not self._leaving:
            self._leaving = True
            pb_utils.Logger.log_error(f"the engine is dead, so its process ends: {why}")
            self._loop.call_later(FAREWELL_SECONDS, os._exit, 1)

    async def _generate(self, tensors: dict[str, np.ndarray], request_id: str, timeout: float, sender: Any) -> None:
        stream = bool(scalar(tensors, "streaming", False))
        if stream and not self._decoupled:
            raise Refused("TF-TRI-076: streaming asks for a decoupled repository; emit it with triton.decoupled: true")
        if "image_url" in tensors:
            raise Refused("TF-TRI-086: this model serves text; image_url is not read")
        prompt = scalar(tensors, "text_input")
        arguments: dict[str, Any] = {}
        lora = adapter(tensors, self._adapters)
        if lora is not None:
            from tensorrt_llm.executor.request import LoRARequest

            arguments["lora_request"] = LoRARequest(**lora)
        salt = scalar(tensors, "cache_salt", "")
        if salt:
            arguments["cache_salt"] = salt
        given = sampling(tensors)
        guided = guide(tensors)
        if guided is not None:
            from tensorrt_llm.llmapi import GuidedDecodingParams

            given["guided_decoding"] = GuidedDecodingParams(**guided)
        params = self._library.SamplingParams(**given)
        output = self._llm.generate_async(prompt, params, streaming=stream, **arguments)
        self._running.setdefault(request_id, set()).add(output)
        late = asyncio.Event()
        watcher = asyncio.ensure_future(self._watch(output, sender, timeout, late))
        shown: dict[int, str] = {}
        try:
            async for step in output:
                if not stream and not step.finished:
                    continue
                pieces = []
                for index, sequence in enumerate(step.outputs):
                    new = piece(shown.get(index, ""), sequence.text, step.finished)
                    shown[index] = shown.get(index, "") + new
                    pieces.append(new)
                sender.send(self._response(tensors, step, pieces, late.is_set()), flags=FINAL if step.finished else 0)
                if step.finished:
                    return
            why = f": its timeout of {timeout:g} s passed" if late.is_set() else ""
            raise Refused(f"TF-TRI-087: the request was ended before its answer was complete{why}")
        finally:
            watcher.cancel()
            self._running[request_id].discard(output)
            if not self._running[request_id]:
                del self._running[request_id]

    async def _watch(self, output: Any, sender: Any, timeout: float, late: asyncio.Event) -> None:
        """End a request whose client has gone, or whose ``timeout`` (seconds; 0: none) passed: ``late`` says so."""
        end = self._loop.time() + timeout if timeout else float("inf")
        while True:
            await asyncio.sleep(min(self._period, max(0.0, end - self._loop.time())))
            if self._loop.time() >= end:
                late.set()
                output.abort()
                return
            if sender.is_cancelled():
                output.abort()
                return

    def _abort(self, request_id: str) -> None:
        if not request_id:
            raise Refused("TF-TRI-088: stop needs the id of the request that it ends")
        for output in list(self._running.get(request_id, ())):
            output.abort()

    def _response(self, tensors: dict[str, np.ndarray], step: Any, pieces: list[str], late: bool) -> Any:
        outputs = step.outputs
        counts = [len(sequence.token_ids) for sequence in outputs]
        arrays = {"text_output": texts(pieces), "num_output_tokens": np.array(counts, dtype=np.int32)}
        if scalar(tensors, "return_finish_reason", False):
            reasons = [sequence.finish_reason for sequence in outputs]
            arrays["finish_reason"] = texts("timeout" if late and r == "cancelled" else r for r in reasons)
        if scalar(tensors, "return_stop_reason", False):
            arrays["stop_reason"] = texts(sequence.stop_reason for sequence in outputs)
        if scalar(tensors, "return_cumulative_logprob", False):
            sums = [sequence.cumulative_logprob for sequence in outputs]
            arrays["cumulative_logprob"] = np.array([np.nan if s is None else s for s in sums], dtype=np.float32)
        metrics = getattr(outputs[0], "request_perf_metrics", None)
        if metrics is not None:
            arrays.update(performance(metrics))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])

    def finalize(self) -> None:
        """End the event loop and the engine once Triton has drained."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._llm.shutdown()


def _resolve(document: dict[str, Any], path: tuple[str, ...], folder: Path) -> None:
    """Make a relative path of ``model.yaml`` absolute where it leads to a folder; other names are left to LLM()."""
    for key in path[:-1]:
        document = document.get(key) or {}
    value = document.get(path[-1])
    if value is not None and (folder / value).is_dir():
        document[path[-1]] = str((folder / value).resolve())

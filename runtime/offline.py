"""Generation in this process, without a server: what evaluations, benchmarks and scripts use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime import errors
from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import Executor
from runtime.request import GenerationResult, Request, RequestOutput
from runtime.sampling.params import SamplingParams
from runtime.tokenizer import EngineTokenizer
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.targets import TARGETS

ParamSet = SamplingParams | Mapping[str, Any]
Params = ParamSet | Sequence[ParamSet] | None
MAX_THREADS = 1024
Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


def _load_core(
    directory: Path, threads: int | None, device: str, num_blocks: int | None, config: EngineConfig
) -> EngineCore:
    """The engine over the executor of its target; each refuses what it cannot read."""
    executor: Executor
    try:
        target = read_json_file(directory / "engine.json")["target"]
    except (OSError, ValueError, KeyError, TypeError):
        target = None  # the torch executor's reader says what is wrong with the directory
    known = TARGETS.get(target) if isinstance(target, str) else None
    if known is not None and known.has_plan:
        from runtime.executors.tensorrt_executor import TensorrtExecutor

        device = device if device.startswith("cuda") else "cuda"
        planned = TensorrtExecutor.load(directory, device=device, num_blocks=num_blocks)
        executor, info = planned, planned.engine.info
    else:
        from runtime.executors.torch_executor import TorchExecutor

        lowered = TorchExecutor(directory, device=device, threads=threads, num_blocks=num_blocks)
        executor, info = lowered, lowered.info
    speculator = None
    if config.speculation and (info.speculation is not None or config.fixed_draft_len is not None):
        from runtime.speculation.opening import open_speculator

        speculator = open_speculator(
            directory, info, executor, device=device, threads=threads, fixed_draft_len=config.fixed_draft_len
        )
    return EngineCore(executor, EngineTokenizer.load(directory), config=config, speculator=speculator)


class Engine:
    """An engine directory, ready to generate. Not thread-safe; servers use :class:`~runtime.serving.AsyncEngine`.

    Example:
        >>> engine = Engine.load(Path("bundle/engine"))
        >>> engine.generate(["The capital of France is"], SamplingParams(max_tokens=8))[0].text
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._calls = itertools.count()

    @classmethod
    def load(
        cls,
        engine_dir: Path | str,
        threads: int | None = None,
        *,
        device: str = "cpu",
        num_blocks: int | None = None,
        config: EngineConfig | None = None,
    ) -> Engine:
        """Load an engine of target ``torch`` or ``tensorrt``.

        Args:
            engine_dir: directory with ``engine.json``.
            threads: CPU threads; None: all physical ones.
            device: ``cpu`` or ``cuda``; an engine of target ``tensorrt`` runs on ``cuda`` whatever is given.
            num_blocks: KV blocks; None: what the engine was planned with.
            config: runtime choices.

        Raises:
            ForgeError: ``TF-RUN-068`` for a number of threads or blocks that is none, ``TF-RUN-123`` for a draft length
                that the engine cannot draft; what the executors and the tokenizer raise for a directory that cannot be
                loaded.
        """
        errors.check_resource("threads", threads, MAX_THREADS)
        errors.check_resource("num_blocks", num_blocks, 2**31 - 1)  # block tables are int32
        directory = Path(engine_dir)
        return cls(_load_core(directory, threads, device, num_blocks, config or EngineConfig()))

    def close(self) -> None:
        """Release weights and pools: another process may want the memory. May be repeated."""
        self.core.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """What computes the logits."""
        return self.core.executor

    @property
    def repeats_exactly(self) -> bool:
        """Whether an answer is the same to the last bit whatever runs beside it, drafts included.

        A tree's nodes find the keys before them at other places of a sum than a chain's, so that trees may part at a
        near tie also where rows do not depend on the batch.
        """
        speculator = self.core.speculator
        trees = speculator is not None and speculator.tree_nodes > 0
        return bool(self.executor.describe()["row_invariant"]) and not trees

    @property
    def tokenizer(self) -> EngineTokenizer | None:
        """The engine's tokenizer, if it has one."""
        return self.core.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, *, speculate: bool = True
    ) -> list[GenerationResult]:
        """Run all prompts to their end, batched in flight; results in the order of the prompts.

        Args:
            prompts: texts, token id lists, or chats (lists of messages); a single one is taken as a list of one.
            params: for all prompts, or one each; a mapping is read by :meth:`SamplingParams.from_mapping`.
            speculate: whether an engine that speculates may draft; the answers are the same.

        Raises:
            ForgeError: a prompt that the engine cannot serve (nothing is generated then), or a failed step.
        """
        results: dict[str, GenerationResult] = {}
        for output in self.stream(prompts, params, speculate=speculate, _deltas=False):
            if output.error is not None:
                raise error_from_json(output.error)
            results.setdefault(output.request_id, GenerationResult()).add(output)
        return [results[name] for name in sorted(results, key=prompt_index)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        speculate: bool = True,
        _deltas: bool = True,
    ) -> Iterator[RequestOutput]:
        """Outputs as they come; :func:`prompt_index` of an output's id says which prompt it belongs to.

        Closing the iterator early cancels what still runs.

        Raises:
            ForgeError: a prompt that the engine cannot serve; raised before the first output.
        """
        many = _as_list(prompts)
        each = _params_for(many, params)
        call = next(self._calls)
        prepared = [
            self.core.prepare(replace(_request(f"generate-{call}-{i}", prompt, p, _deltas), speculate=speculate))
            for i, (prompt, p) in enumerate(zip(many, each, strict=True))
        ]
        return self._run(prepared)

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Teacher-forced logits of every position, float32 [S, V]; see :meth:`EngineCore.logits`."""
        return self.core.logits(token_ids)

    def stats(self) -> dict[str, Any]:
        """Metrics of everything generated so far."""
        return self.core.stats()

    def _run(self, prepared: list[Any]) -> Iterator[RequestOutput]:
        waiting = list(reversed(prepared))
        mine: set[str] = set()
        try:
            while waiting or mine:
                # The queue's bound is for servers; offline, a long list of prompts is fed as it drains.
                while waiting and len(self.core.scheduler.waiting) < self.core.config.max_waiting:
                    mine.add(self.core.add_request(waiting.pop()))
                for output in self.core.step():
                    if output.request_id in mine:
                        if output.finished:
                            mine.discard(output.request_id)
                        yield output
        finally:
            for request_id in mine:
                self.core.abort(request_id)


def prompt_index(request_id: str) -> int:
    """The place of a prompt in the list given to :meth:`Engine.generate` or :meth:`Engine.stream`."""
    return int(request_id.rsplit("-", 1)[1])


def _as_list(prompts: Any) -> list[Any]:
    if isinstance(prompts, str):
        return [prompts]
    if not _is_list(prompts):
        raise errors.bad_request(errors.short_repr(prompts), "prompts are texts, token id lists or chats")
    items = prompts.tolist() if isinstance(prompts, np.ndarray) else list(prompts)
    if not isinstance(items, list):  # an array without dimensions
        raise errors.bad_request(errors.short_repr(prompts), "prompts are texts, token id lists or chats")
    if items and isinstance(items[0], (int, np.integer, Mapping)):
        return [items]
    return items


def _params_for(prompts: list[Any], params: Any) -> list[SamplingParams]:
    if params is None or isinstance(params, (SamplingParams, Mapping)):
        return [_one_params(params)] * len(prompts)
    if isinstance(params, (str, bytes)) or not isinstance(params, Sequence):
        raise errors.bad_params(params)
    if len(params) != len(prompts):
        raise ForgeError(
            "TF-RUN-065",
            f"{len(params)} parameter sets for {len(prompts)} prompts",
            numbers={"params": len(params), "prompts": len(prompts)},
            why="each prompt needs its own parameters, or all share one set",
            remedies=["give one SamplingParams for all", "give exactly one per prompt"],
        )
    return [_one_params(p) for p in params]


def _one_params(params: Any) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if isinstance(params, Mapping):
        return SamplingParams.from_mapping(params)
    if not isinstance(params, SamplingParams):
        raise errors.bad_params(params)
    return params


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping))


def _request(request_id: str, prompt: Any, params: SamplingParams, stream: bool) -> Request:
    if isinstance(prompt, str):
        return Request(request_id, prompt=prompt, params=params, stream=stream)
    if not _is_list(prompt) or (isinstance(prompt, np.ndarray) and prompt.ndim == 0):
        raise errors.bad_request(errors.short_repr(prompt), "a prompt is a text, a list of token ids or a chat")
    items = list(prompt)
    if items and isinstance(items[0], Mapping):
        return Request(request_id, messages=items, params=params, stream=stream)
    return Request(request_id, prompt_token_ids=items, params=params, stream=stream)


def error_from_json(error: dict[str, Any]) -> ForgeError:
    """The refusal that an output's ``error`` holds."""
    return ForgeError(**error)

"""The ``trtllm-llmapi`` target: no engine. TensorRT-LLM from 1.3 runs the quantized checkpoint on PyTorch.

The artifact::

    engine.json        limits, stack, the arguments of ``LLM()`` and the command of ``trtllm-serve``
    checkpoint/        the quantized Hugging Face checkpoint, as it is
    draft/             the draft model, or the drafter in the dialect that this TensorRT-LLM loads
    extra-….yaml       what trtllm-serve has no option of its own for
    tokenizer.json …

The arguments are the layout's (``triton_repo.layouts.llmapi_settings``): server and artifact say the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.files import copy_directory
from builder.targets.record import write_engine
from builder.targets.trtllm.common import copy_tokenizer, describe_model, engine_stack
from builder.targets.trtllm.script import CHECKPOINT_DIR, DRAFT_DIR
from builder.targets.trtllm.settings import LlmSettings
from builder.targets.trtllm.source import Checkpoint
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.kinds import EAGLE3
from trtforge.drafting.trtllm_head import LoadedHead, head_for
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema import Build, Speculation
from trtforge.tables.decoders import decoders
from trtforge.targets import DEFAULT, names
from trtforge.targets.record import ENGINE_VERSION
from trtforge.targets.trtllm_llmapi import TRTLLM_LLMAPI

NAME = TRTLLM_LLMAPI.name


def build_engine(
    checkpoint: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    settings: LlmSettings,
    speculation: Speculation | None = None,
    stack: str | None = None,
    draft: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the artifact and return what engine.json holds.

    Args:
        checkpoint: the quantized Hugging Face checkpoint.
        settings: what server and ``LLM()`` are told.
        stack: a row of the stack table; default: the target's newest.
        draft: directory of the draft model's checkpoint.

    Raises:
        ForgeError: ``TF-BLD-043`` the stack, ``TF-BLD-044`` the draft model is missing, ``TF-BLD-069`` a sliding window
            that TensorRT-LLM's model does not read, ``TF-BLD-124`` it has no such class, ``TF-BLD-030`` and what
            :class:`Checkpoint` refuses; ``TF-DRF-…`` an EAGLE-3 drafter that this TensorRT-LLM does not load, and that
            no conversion makes loadable.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    progress = progress or SilentProgress()
    speculation = speculation or Speculation()
    row, version = engine_stack(NAME, stack)
    source = Checkpoint.open(checkpoint)
    known = decoders()[source.config.architecture].trtllm.llm_api
    source.require_class(known, "TensorRT-LLM's PyTorch backend", names(lambda target: target.from_graph))
    _require_windows(source, build.limits.max_seq_len)
    copy_directory(checkpoint, out / CHECKPOINT_DIR, progress=progress)
    drafter = None
    if any(key.startswith("speculative_model") for key in settings.arguments.get("speculative_config") or {}):
        drafter = _place_draft(_require_draft(draft, speculation), checkpoint, out / DRAFT_DIR, version, speculation)
    copy_tokenizer(checkpoint, out)
    (out / settings.file_name).write_text(settings.file_text, encoding="utf-8")
    limits, parallel = build.limits, build.parallel
    engine = {
        "version": ENGINE_VERSION,
        "target": NAME,
        "name": name,
        "compiled": False,
        "not_compiled": "this target has no engine: TensorRT-LLM loads the checkpoint when it starts",
        "checkpoint_dir": CHECKPOINT_DIR,
        "tokenizer_dir": ".",
        **describe_model(source, checkpoint, parallel.tp, parallel.pp),
        "limits": {
            **limits.model_dump(exclude={"max_input_len"}),
            "max_input_len": limits.max_input_len or limits.max_seq_len - 1,
            "max_beam_width": build.trtllm.max_beam_width,
        },
        "parallel": {"tp": parallel.tp, "pp": parallel.pp, "ep": parallel.ep, "world_size": parallel.tp * parallel.pp},
        "stack": row.name,
        "tensorrt_llm": version,
        "container": row.container,
        "llm_args": settings.arguments,
        "serve": list(settings.command),
        "speculation": speculation.model_dump(mode="json"),
        **({"drafter": drafter} if drafter is not None else {}),
    }
    engine["kv_cache"] |= {"block_size": build.kv_cache.block_size}
    return write_engine(out, engine)


def _require_windows(source: Checkpoint, max_seq_len: int) -> None:
    config = source.config
    window = config.sliding_window
    if not window or window >= max_seq_len or decoders()[config.architecture].trtllm.window:
        return
    others = [DEFAULT.name, *names(lambda target: target.trtllm_build)]
    raise ForgeError(
        "TF-BLD-069",
        f"TensorRT-LLM's PyTorch {config.architecture} does not read the sliding window of config.json",
        asked=f"sliding_window: {window}, build.limits.max_seq_len: {max_seq_len}",
        numbers={"sliding_window": window, "max_seq_len": max_seq_len},
        why="Every layer would look back over all of the sequence, which the model was not trained for.",
        remedies=[f"build.limits.max_seq_len: {window}", *(f"build.target: {other}" for other in others)],
    )


def served_head(
    draft: Path, checkpoint: Path, version: str, speculation: Speculation, *, whole: bool = True
) -> LoadedHead | None:
    """How the release ``version`` loads an EAGLE-3 drafter; None for another method.

    Raises:
        ForgeError: as :func:`~trtforge.drafting.trtllm_head.head_for`.
    """
    if speculation.method != EAGLE3.name:
        return None
    found = inspect_folder(draft, checkpoint)
    return head_for(found, version, asked=f"speculation.draft: {speculation.draft}", whole=whole)


def _place_draft(
    draft: Path, checkpoint: Path, out: Path, version: str, speculation: Speculation
) -> dict[str, Any] | None:
    """The draft model as it is, or an EAGLE-3 drafter as this TensorRT-LLM loads it, and where that came from."""
    head = served_head(draft, checkpoint, version, speculation)
    if head is None:
        copy_directory(draft, out)
        return None
    if head.conversion is not None:
        return head.to_json(head.convert(out))
    copy_directory(draft, out)
    return head.to_json()


def _require_draft(draft: Path | None, speculation: Speculation) -> Path:
    if draft is None or not (draft / "config.json").is_file():
        raise ForgeError(
            "TF-BLD-044",
            "The draft model is not a directory with a checkpoint",
            asked=f"speculation.draft: {speculation.draft}",
            why="The artifact carries every model that the server loads; nothing is fetched when it starts.",
            remedies=["speculation.draft: PATH of the draft's checkpoint, relative to the recipe"],
        )
    return draft

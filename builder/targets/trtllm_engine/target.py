"""The ``trtllm-engine`` target: TensorRT-LLM's checkpoint, and its engine where this machine can compile it.

The artifact::

    engine.json        what was asked, what was done; "compiled" says whether there is an engine
    checkpoint/        config.json and rank<N>.safetensors of TensorRT-LLM
    trtllm/            config.json and rank<N>.engine, when compiled (here, or later by the scripts)
    build.sh, container.sh
    tokenizer.json …   what the repository's pre- and postprocessing read
    draft/             the same again, of the engine that drafts (``speculation.method: draft_target``)
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder.files import copy_file
from builder.targets.record import write_engine
from builder.targets.trtllm import script
from builder.targets.trtllm.changes import settled
from builder.targets.trtllm.checkpoint import LOGITS_DTYPE, Drafting, convert_checkpoint
from builder.targets.trtllm.common import copy_tokenizer, describe_model, engine_stack
from builder.targets.trtllm.draft_engine import alone_on_one_gpu, check_pair
from builder.targets.trtllm.eagle import EagleDrafter, refuse_engine
from builder.targets.trtllm.flags import build_arguments, settings_of
from builder.targets.trtllm.medusa import MedusaHeads
from builder.targets.trtllm.runner import COMMAND, run_build, why_not_here
from builder.targets.trtllm.source import Checkpoint
from builder.targets.trtllm_engine.info import check_engine
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema import Build, Speculation
from trtforge.targets.record import ENGINE_VERSION
from trtforge.targets.trtllm_engine import TRTLLM_ENGINE

NAME = TRTLLM_ENGINE.name
LOG_FILE = "build.log"


def build_engine(
    checkpoint: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    speculation: Speculation | None = None,
    stack: str | None = None,
    timing_cache: Path | None = None,
    draft: Path | None = None,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the artifact and return what engine.json holds.

    Args:
        checkpoint: the quantized Hugging Face checkpoint.
        stack: a row of the stack table; default: the target's newest.
        timing_cache: kernel timings of earlier builds.
        draft: directory of the Medusa heads, of EAGLE's drafter, or of the model that drafts from an engine of its own.
        scratch: a folder that survives a kill: ranks that were converted there are not converted again.

    Raises:
        ForgeError: ``TF-BLD-013`` and ``TF-BLD-030`` … ``TF-BLD-042`` for what cannot be built, ``TF-BLD-050``
            and ``-051`` when the build in place fails, ``TF-BLD-052`` when its engine is not what was asked.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    progress = progress or SilentProgress()
    speculation = speculation or Speculation()
    parallel = build.parallel
    if parallel.ep != 1:
        raise ForgeError(
            "TF-BLD-036",
            f"The model has no experts to spread over ep {parallel.ep}",
            asked=f"build.parallel.ep: {parallel.ep}",
            why="Expert parallelism is of mixture-of-experts models; the converter writes dense ones.",
            remedies=["build.parallel.ep: 1"],
        )
    row, version = engine_stack(NAME, stack)
    cache = None
    if timing_cache is not None:
        copy_file(timing_cache, out / script.TIMING_CACHE)
        cache = f"{{here}}/{script.TIMING_CACHE}"
    source = Checkpoint.open(checkpoint)
    quantization = {"quant_algo": source.algorithm, "kv_cache_quant_algo": source.kv_algorithm}
    settings, changed = settled(
        settings_of(build, speculation, cache), {"quantization": quantization}, build.architectures
    )
    arguments = build_arguments(version, {**settings, "output_timing_cache": f"{{work}}/{script.OUTPUT_CACHE}"})
    drafting = _drafting(source, draft, build, speculation, settings["max_draft_len"])
    drafts_from = check_pair(source, draft, build) if speculation.method == "draft_target" else None
    place = out if scratch is None else scratch
    converted = convert_checkpoint(
        checkpoint,
        place / script.CHECKPOINT_DIR,
        tp=parallel.tp,
        pp=parallel.pp,
        drafting=drafting,
        progress=progress,
    )
    if scratch is not None:
        shutil.move(place / script.CHECKPOINT_DIR, out / script.CHECKPOINT_DIR)
    copy_tokenizer(checkpoint, out)
    scripts = script.write_scripts(out, version, arguments, row.container)
    for change in changed:
        progress.note(f"trtllm-build sets {change.setting} to {change.becomes} by itself: {change.why}")
    reason = why_not_here(version)
    if reason is None:
        _compile(out, version, settings, arguments, build, progress)
    else:
        progress.note(f"not compiled: {reason}; run {' or '.join(scripts)}")
    engine = {
        "version": ENGINE_VERSION,
        "target": NAME,
        "name": name,
        "compiled": reason is None,
        "not_compiled": reason,
        "engine_dir": script.ENGINE_DIR,
        "checkpoint_dir": script.CHECKPOINT_DIR,
        "tokenizer_dir": ".",
        **describe_model(source, checkpoint, parallel.tp, parallel.pp, layers_beside=_layers_beside(drafting)),
        "logits_dtype": LOGITS_DTYPE,
        "limits": {
            key: settings[key]
            for key in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len", "max_beam_width")
        },
        "parallel": {"tp": parallel.tp, "pp": parallel.pp, "ep": 1, "world_size": parallel.tp * parallel.pp},
        "stack": row.name,
        "tensorrt_llm": version,
        "container": row.container,
        "scripts": scripts,
        "architectures": list(build.architectures),
        "settings": settings,
        "changed_by_builder": [asdict(change) for change in changed],
        "arguments": arguments,
        "trtllm": build.trtllm.model_dump(mode="json", exclude={"timing_cache"}),
        "kv_memory": build.kv_cache.model_dump(mode="json"),
        "speculation": speculation.model_dump(mode="json"),
        "conversion": converted,
    }
    engine["kv_cache"] |= {"block_size": build.kv_cache.block_size}
    if drafts_from is not None:
        engine["draft"] = build_engine(
            drafts_from.directory,
            out / script.DRAFT_DIR,
            name=f"{name}-draft",
            build=alone_on_one_gpu(build),
            stack=stack,
            scratch=None if scratch is None else scratch / script.DRAFT_DIR,
            progress=progress,
        )
        engine["scripts"] = [*scripts, *(f"{script.DRAFT_DIR}/{name}" for name in engine["draft"]["scripts"])]
    return write_engine(out, engine)


def _drafting(
    source: Checkpoint, draft: Path | None, build: Build, speculation: Speculation, length: int | None
) -> Drafting | None:
    """What drafts inside the engine; None where nothing does."""
    tp = build.parallel.tp
    if speculation.method == "medusa":
        assert length is not None
        return MedusaHeads.open(draft, target=source, heads=speculation.heads, max_draft_len=length, tp=tp)
    if speculation.method == "eagle":
        assert length is not None
        refuse_engine(source, build)
        return EagleDrafter.open(draft, target=source, speculation=speculation, max_draft_len=length, tp=tp)
    return None


def _layers_beside(drafting: Drafting | None) -> int:
    """Layers of the drafter, whose keys and values lie in the target's pool."""
    return drafting.net.layers if isinstance(drafting, EagleDrafter) else 0


def _compile(
    out: Path, version: str, settings: dict[str, Any], arguments: list[str], build: Build, progress: Progress
) -> None:
    engine_dir = out / script.ENGINE_DIR
    places = {"{here}/": f"{out}/", "{work}/": f"{engine_dir}/"}
    words = []
    for word in arguments:
        for mark, place in places.items():
            if word.startswith(mark):
                word = place + word.removeprefix(mark)
        words.append(word)
    command = [
        COMMAND,
        "--checkpoint_dir",
        str(out / script.CHECKPOINT_DIR),
        "--output_dir",
        str(engine_dir),
        *words,
    ]
    ranks = build.parallel.tp * build.parallel.pp
    run_build(command, engine_dir, out / LOG_FILE, ranks=ranks, progress=progress)
    timings = engine_dir / script.OUTPUT_CACHE
    if timings.is_file():
        timings.replace(out / script.OUTPUT_CACHE)
    findings = check_engine(out, {"tensorrt_llm": version, "settings": settings, "architectures": build.architectures})
    if findings:
        raise ForgeError(
            "TF-BLD-052",
            f"The engine is not what was asked: {findings[0].message}",
            asked=str(engine_dir),
            numbers={"findings": [finding.to_json() for finding in findings]},
            why="trtllm-build changed or ignored a setting; serving it would not do what the recipe says.",
            remedies=["ask for what the engine has", "read build.log for the builder's warnings"],
        )

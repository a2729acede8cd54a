"""The engine that drafts for another: an artifact of its own below the target's, for one GPU, with the same limits."""

from __future__ import annotations

from pathlib import Path

from builder.targets.trtllm.source import Checkpoint
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Build, Parallel


def alone_on_one_gpu(build: Build) -> Build:
    """The target's build for the engine that drafts: no ranks, beams, adapters or kernel timings of the target's."""
    own = build.trtllm.model_copy(
        update={
            "max_beam_width": 1,
            "lora": None,
            "guided_decoding": "none",
            "fp8_context_attention": False,  # settled by what the draft is
            "gather_context_logits": False,
            "gather_generation_logits": False,
            "workers": 1,
            "timing_cache": None,
        }
    )
    return build.model_copy(update={"parallel": Parallel(), "trtllm": own})


def check_pair(target: Checkpoint, draft: Path | None, build: Build) -> Checkpoint:
    """The draft model, held against the target whose next tokens it guesses.

    Raises:
        ForgeError: ``TF-BLD-068`` it is no directory, has another vocabulary, or fewer positions than a request;
            and what :meth:`Checkpoint.open` refuses.
    """
    if draft is None or not (draft / "config.json").is_file():
        raise _refuse(
            "The draft model is read from a directory with config.json and safetensors",
            draft,
            "It is converted and compiled as an engine of its own.",
            "speculation.draft: PATH of the draft model, relative to the recipe",
        )
    found = Checkpoint.open(draft)
    if found.config.vocab != target.config.vocab:
        raise _refuse(
            f"The draft has {found.config.vocab} tokens, the target {target.config.vocab}",
            draft,
            "A draft token is an id of the target's vocabulary, and both engines get the same ids.",
            "speculation.draft: a model of the same family and tokenizer",
        )
    if found.config.max_positions < build.limits.max_seq_len:
        raise _refuse(
            f"The draft has {found.config.max_positions} positions, build.limits.max_seq_len is "
            f"{build.limits.max_seq_len}",
            draft,
            "It continues the whole text, prompt and answer.",
            f"build.limits.max_seq_len: {found.config.max_positions}",
        )
    return found


def _refuse(message: str, directory: Path | None, why: str, remedy: str) -> ForgeError:
    return ForgeError(
        "TF-BLD-068",
        message,
        asked=f"speculation.draft: {directory}",
        why=why,
        remedies=[remedy, "speculation.method: none"],
    )

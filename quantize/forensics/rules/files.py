"""Rules on weight files and their index."""

from __future__ import annotations

from collections.abc import Iterator

from quantize.forensics.checkpoint import Checkpoint
from quantize.forensics.hits import Hit, hit, rule, said
from trtforge.ground.safetensors_header import INDEX_NAME
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(100, "Files and index")

_AGAIN = "download index and shards of one revision again, or export again"


@rule("TF-AUD-101", "error", "a shard is missing", thread("RX!148"))
def missing_shards(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Each shard holds tensors that no other has; loaders stop at the first that they cannot open."""
    yield from hit("shards that the index names are not there", checkpoint.files.weights.missing, _AGAIN)


@rule("TF-AUD-102", "error", "the index names tensors that their file does not hold", thread("RX!148"))
def ghosts(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A loader looks a tensor up where the index says; with such an entry it stops, or leaves the weight as it was
    allocated.
    """
    weights = checkpoint.files.weights
    readable = set(weights.files) - set(weights.damaged)
    ghost = [
        name
        for name, file in (weights.index or {}).items()
        if file in readable and (name not in weights.tensors or file not in _files_of(checkpoint, name))
    ]
    yield from hit(f"entries of {INDEX_NAME} that are not in their file", ghost, _AGAIN, file=INDEX_NAME)


def _files_of(checkpoint: Checkpoint, name: str) -> list[str]:
    weights = checkpoint.files.weights
    return weights.twice.get(name, [weights.tensors[name].file])


@rule("TF-AUD-103", "error", "tensors that the index does not name", thread("MO!2427"))
def unnamed(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Loaders that go by the index never read them: scales that were written later are lost so, and the weights are
    then taken without them.
    """
    weights = checkpoint.files.weights
    if weights.index is not None:
        yield from hit(
            f"tensors of the shards are not in {INDEX_NAME}",
            set(weights.tensors) - set(weights.index),
            "write the index anew from the shards' headers",
            file=INDEX_NAME,
        )


@rule("TF-AUD-104", "error", "a tensor lies in two files", thread("MLX!1464"))
def twice(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Which of the two is loaded depends on the order in which a loader opens the files."""
    yield from hit("tensors lie in more than one file", checkpoint.files.weights.twice, _AGAIN)


@rule("TF-AUD-105", "warning", "a weight file that nothing names", thread("MLX!1464"))
def strays(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Loaders that take every safetensors file read it too, and mix its tensors with the model's."""
    yield from hit(
        "weight files belong to no index entry",
        checkpoint.files.weights.extra,
        "remove them, or name them in the index",
    )


@rule("TF-AUD-106", "error", "a weight file that cannot be read", "https://huggingface.co/docs/safetensors/index")
def damaged(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A safetensors header must account for every byte of its file; with another no weight can be trusted."""
    for name, error in checkpoint.files.weights.damaged.items():
        yield said(f"{error.message} ({error.code})", *error.remedies, file=name)
    if checkpoint.files.weights.bad_index is not None:
        yield said(f"{INDEX_NAME} is no index: {checkpoint.files.weights.bad_index}", _AGAIN, file=INDEX_NAME)


@rule("TF-AUD-107", "error", "ranks of a TensorRT-LLM checkpoint do not fit together", thread("TL#1677"))
def ranks(checkpoint: Checkpoint) -> Iterator[Hit]:
    """trtllm-build opens a file a rank; tensors that one rank has and another of the same stage has not end the
    build.
    """
    if not checkpoint.is_trtllm:
        return
    mapping = checkpoint.config.get("mapping")
    mapping = mapping if isinstance(mapping, dict) else {}
    world = mapping.get("world_size", checkpoint.config.get("world_size", 1))
    wanted = {
        f"rank{number}.safetensors" for number in range(world if isinstance(world, int) and 0 < world <= 4096 else 1)
    }
    yield from hit(
        "files of ranks are not there",
        wanted - set(checkpoint.files.names),
        "convert the checkpoint again",
        file="config.json",
    )
    if mapping.get("pp_size", 1) != 1:
        return  # stages hold different layers
    by_rank: dict[str, set[str]] = {}
    for name, info in checkpoint.tensors.items():
        by_rank.setdefault(info.file, set()).add(name.partition("@")[0])
    everywhere = set.intersection(*by_rank.values()) if by_rank else set()
    yield from hit(
        "tensors that not every rank has", set().union(*by_rank.values()) - everywhere, "convert the checkpoint again"
    )

"""``graph.json``: what a graph directory holds, readable without ``onnx``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.versions import is_version
from trtforge.models.kv import KvSizes

GRAPH_FILE = "model.onnx"
INFO_FILE = "graph.json"
PACKED_FILE = "packed.safetensors"
#: raised when a reader of an older graph.json could misread a newer one
INFO_VERSION = 1


@dataclass(frozen=True)
class LinearInfo:
    """One linear layer: module name, weight shape [N, K] (outputs, inputs), stored format and its block length, and
    whether its inputs are rounded where the format rounds inputs at all (files from before the key do not say less)."""

    name: str
    shape: tuple[int, int]
    format: str
    group_size: int | None = None
    rounds_input: bool = True


@dataclass(frozen=True)
class GraphInfo:
    """The contents of graph.json; ``kv_cache`` has format, block_size and scales (calibrated, unit or none).

    ``sliding_window`` (0: none) holds for every layer but ``full_attention_layers``. ``drafter`` has the facts of a
    head that drafts, and is left out of the file for other graphs.
    """

    architecture: str
    hf_architecture: str
    mode: str
    dtype: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    sliding_window: int
    kv_cache: dict[str, Any]
    quant_format: str
    group_size: int | None
    linears: tuple[LinearInfo, ...]
    ops: dict[str, int]
    hidden_states: tuple[int, ...] = ()
    full_attention_layers: tuple[int, ...] = ()
    tree_mask: bool = False
    accounted: dict[str, str] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)
    version: int = INFO_VERSION

    @property
    def kv(self) -> KvSizes:
        """What decides the bytes of its keys and values."""
        return KvSizes(self.num_layers, self.num_kv_heads, self.head_size)

    def to_json(self) -> dict[str, Any]:
        """The object that graph.json holds."""
        # not dataclasses.asdict, which copies thousands of names one by one
        plain = {**vars(self), "linears": [vars(linear) for linear in self.linears]}
        if not self.drafter:
            del plain["drafter"]
        value: dict[str, Any] = json.loads(json.dumps(plain))
        return value

    def write(self, directory: Path) -> None:
        text = json.dumps(self.to_json(), indent=1, sort_keys=True) + "\n"
        (directory / INFO_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> GraphInfo:
        """Read graph.json of ``directory``.

        Raises:
            ForgeError: ``TF-GRF-015`` it is missing, malformed or of a newer version.
        """
        path = Path(directory) / INFO_FILE
        try:
            raw = read_json_file(path)
            if not is_version(raw.get("version"), INFO_VERSION):
                raise ValueError(f"its version is {raw.get('version')}, this program reads {INFO_VERSION}")
            raw["linears"] = tuple(
                LinearInfo(
                    entry["name"],
                    (int(entry["shape"][0]), int(entry["shape"][1])),
                    entry["format"],
                    entry["group_size"],
                    bool(entry.get("rounds_input", True)),
                )
                for entry in raw["linears"]
            )
            for key in ("hidden_states", "full_attention_layers"):
                raw[key] = tuple(raw.get(key, ()))
            return cls(**raw)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForgeError(
                "TF-GRF-015",
                f"{path} is no graph description: {error}",
                asked=str(directory),
                why="The directory was not written by the graph stage, or by another version of it.",
                remedies=["Build the graph again: trtforge run RECIPE --until graph --force graph"],
            ) from error

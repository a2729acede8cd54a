"""Valid repositories for lint, built from settings that are published as working; each with its source.

The settings (names, types, shapes, parameters) are the published ones, the text is built here. Model files are
empty stand-ins, and Python models hold the least that the backend asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = "https://github.com/triton-inference-server/server/blob/main/docs"
TUTORIALS = "https://github.com/triton-inference-server/tutorials/blob/main"
PYTHON_EXAMPLES = "https://github.com/triton-inference-server/python_backend/blob/main/examples"
TRTLLM = "https://github.com/triton-inference-server/tensorrtllm_backend/blob"
TENSORRT_LLM = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/triton_backend"

#: code that asks for what NVIDIA's models ask for
ASKING = (
    "class TritonPythonModel:\n    needed = ('gpt_model_path', 'tokenizer_dir')\n\n"
    "    def execute(self, requests):\n        return []\n"
)
PYTHON = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
COMPLETING = (
    "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n        return config\n\n"
    "    def execute(self, requests):\n        return []\n"
)

Tensor = tuple[object, ...]  # name, type, dims, and more statements


@dataclass(frozen=True)
class Repository:
    """One repository of the corpus."""

    name: str
    source: str
    build: Callable[[Path], None]


CORPUS: list[Repository] = []


def published(source: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Add a builder to the corpus under its own name."""

    def register(build: Callable[[Path], None]) -> Callable[[Path], None]:
        CORPUS.append(Repository(build.__name__, source, build))
        return build

    return register


def tensors(side: str, rows: Iterable[Tensor]) -> str:
    """The ``input`` or ``output`` list: one tensor a line."""
    lines = []
    for name, dtype, dims, *more in rows:
        shape = ", ".join(str(dim) for dim in dims)
        extra = " ".join(str(item) for item in more)
        lines.append(f'  {{ name: "{name}" data_type: TYPE_{dtype} dims: [ {shape} ] {extra}'.rstrip() + " }")
    return f"{side} [\n" + ",\n".join(lines) + "\n]\n"


def parameters(values: Mapping[str, str]) -> str:
    """Parameters as NVIDIA's templates write them."""
    return "".join(
        f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'
        for key, value in values.items()
    )


def maps(side: str, pairs: Mapping[str, str]) -> str:
    return "".join(f'      {side} {{\n        key: "{k}"\n        value: "{v}"\n      }}\n' for k, v in pairs.items())


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str], version: int = -1) -> str:
    """One step of an ensemble."""
    body = maps("input_map", inputs) + maps("output_map", outputs)
    return f'    {{\n      model_name: "{model}"\n      model_version: {version}\n{body}    }}'


def steps(*parts: str) -> str:
    return "ensemble_scheduling {\n  step [\n" + ",\n".join(parts) + "\n  ]\n}\n"


def add(root: Path, name: str, config: str | None, files: Mapping[str, str] | None = None) -> Path:
    """A model folder; ``files`` maps paths below it to texts. The default is an empty version folder 1."""
    folder = root / name
    (folder / "1").mkdir(parents=True)
    if config is not None:
        (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    for path, text in (files or {}).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


CPU = "instance_group [ { kind: KIND_CPU } ]\n"
ONNX = {"1/model.onnx": ""}
PY = {"1/model.py": PYTHON}

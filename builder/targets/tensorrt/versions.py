"""What differs between TensorRT 10.14 and 11.x; every other module is written for the parts that they share.

Removed in 11 and never used here: precision flags of the builder, INT8 calibrators, precision setters of layers,
``dynamic_range``, ``get_plugin_creator``, ``plugin_creator_list``, ``supports_model``, ``device_memory_size``.
The tests hold every call against the recorded signatures of the real bindings.

Sources: https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md (parser operators by version),
https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md (10.15 has no Swish, 11.2 has).
"""

from __future__ import annotations

from typing import Any

from packaging.version import Version

#: ONNX operators of our graphs that the parser lacks before a version
_PARSER_GAINED = {
    "RMSNormalization": Version("10.15"),
    "RotaryEmbedding": Version("10.15"),
    "Swish": Version("11.2"),
}


def release(version: str) -> str:
    """The version of the libraries: pip's "10.14.1.48.post1" is another packaging of 10.14.1.48."""
    return Version(version).base_version


def missing_operators(version: str) -> frozenset[str]:
    """Operators that the parser of this version lacks and that the graph must spell out."""
    found = Version(version)
    return frozenset(name for name, since in _PARSER_GAINED.items() if found < since)


def network_flags(trt: Any) -> int:
    """Flags of ``create_network``: TensorRT 10 is asked for strong typing, 11 has nothing else."""
    if Version(str(trt.__version__)) >= Version("11"):
        return 0
    return 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)

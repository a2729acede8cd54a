"""Fields of the plugins as the graph has to state them; the plugin library's own table must agree.

Policy: a node is held against this table before TensorRT is asked, so that a head size without a kernel is a refusal
with numbers and not "could not create the plugin". The tests compare the table with ``trtforge_plugin_contract()``
of the built library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtforge.ground.errors import ForgeError

NAMESPACE = "trtforge"
BLOCK_SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class Field:
    """One scalar field: ``kind`` is int32 or float32; bounds are inclusive."""

    kind: str
    required: bool
    minimum: float
    maximum: float
    multiple: int = 1


_FLAG = Field("int32", False, 0, 1)
FIELDS: dict[str, dict[str, Field]] = {
    "PagedAttention": {
        "num_heads": Field("int32", True, 1, 1024),
        "num_kv_heads": Field("int32", True, 1, 1024),
        "head_size": Field("int32", True, 64, 256, 8),
        "scale": Field("float32", False, 0, 1e6),
        "sliding_window": Field("int32", False, 0, 2**31 - 1),
        "soft_cap": Field("float32", False, 0, 1e6),
        "has_scales": _FLAG,
        "has_tree_mask": _FLAG,
        "has_sinks": _FLAG,
        "aliased": _FLAG,
    }
}


def check_fields(op: str, node: str, values: Mapping[str, int | float]) -> None:
    """Refuse what the plugin's creator would refuse.

    Raises:
        ForgeError: ``TF-BLD-105`` with every misfit of the node.
    """
    table = FIELDS[op]
    faults = [f"{name} is no field" for name in values if name not in table]
    for name, field in table.items():
        if name not in values:
            if field.required:
                faults.append(f"{name} is missing")
            continue
        value = values[name]
        wanted = f"from {field.minimum:g} to {field.maximum:g}"
        if field.multiple > 1:
            wanted += f", a multiple of {field.multiple}"
        if isinstance(value, bool) or isinstance(value, float) != (field.kind == "float32"):
            faults.append(f"{name} is {value!r}, not a {field.kind}")
        elif not field.minimum <= value <= field.maximum or (field.multiple > 1 and int(value) % field.multiple):
            faults.append(f"{name} is {value:g}; it must be {wanted}")
    heads, kv_heads = values.get("num_heads"), values.get("num_kv_heads")
    if not faults and heads is not None and kv_heads is not None and int(heads) % int(kv_heads):
        faults.append(f"num_heads {heads} is no multiple of num_kv_heads {kv_heads}")
    if faults:
        raise ForgeError(
            "TF-BLD-105",
            f"The plugin {op} cannot be made for {node}: {faults[0]}",
            asked=node,
            numbers={"faults": faults, **values},
            why="The kernels are written for the values of this table, and the plugin's creator refuses others.",
            remedies=["build.target: torch runs other shapes", "docs/plugins.md lists the fields and their values"],
        )


__all__ = ["BLOCK_SIZES", "FIELDS", "NAMESPACE", "Field", "check_fields"]

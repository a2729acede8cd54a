"""Fields of the plugins as the graph has to state them, by the ops' table (:mod:`trtforge.native.ops`).

Policy: a node is held against this table before TensorRT is asked, so that a head size without a kernel is a refusal
with numbers and not "could not create the plugin".
"""

from __future__ import annotations

from collections.abc import Mapping

from trtforge.ground.errors import ForgeError
from trtforge.native import ops
from trtforge.native.ops import Attribute
from trtforge.targets import DEFAULT

NAMESPACE = "trtforge"
BLOCK_SIZES = (16, 32, 64, 128)


def _fields(op: ops.Op) -> dict[str, Attribute]:
    return {a.name: a for a in op.plugin_attributes} | {f: Attribute(f, standard=0, maximum=1) for f in op.flags}


#: of the ops that graphs hold, the fields of their plugins
FIELDS: dict[str, dict[str, Attribute]] = {"PagedAttention": _fields(ops.PAGED_ATTENTION)}


def check_fields(op: str, node: str, values: Mapping[str, int | float]) -> None:
    """Refuse what the plugin's creator would refuse.

    Raises:
        ForgeError: ``TF-BLD-105`` with every misfit of the node.
    """
    table = FIELDS[op]
    faults = [f"{name} is no field" for name in values if name not in table]
    for name, field in table.items():
        if name not in values:
            if field.standard is None:
                faults.append(f"{name} is missing")
            continue
        value = values[name]
        most = field.maximum or 0
        wanted = f"from {field.minimum:g} to {most:g}"
        if field.multiple > 1:
            wanted += f", a multiple of {field.multiple}"
        if isinstance(value, bool) or isinstance(value, float) != (field.kind == "float32"):
            faults.append(f"{name} is {value!r}, not a {field.kind}")
        elif not field.minimum <= value <= most or (field.multiple > 1 and int(value) % field.multiple):
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
            remedies=[
                f"build.target: {DEFAULT.name} runs other shapes",
                "docs/plugins.md lists the fields and their values",
            ],
        )

"""Writes what follows from ``trtforge/native/ops.py``: C structs, the TensorRT plugins' tables, tables of documents.

``python scripts/op_tables.py`` rewrites them; ``--check`` exits 1 when one is out of date.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from trtforge.native import ops  # noqa: E402
from trtforge.native.ops import Attribute, Op, Tensor  # noqa: E402

HEADER = ROOT / "plugins/include/trtforge/op_args.h"
PLUGINS = ROOT / "plugins/tensorrt/op_tables.inc"
CONTRACTS = ROOT / "docs/ops.md"
FIELDS = ROOT / "docs/plugins.md"
WIDTH = 120
NOTE = "Written by scripts/op_tables.py from trtforge/native/ops.py: change it there."
BEGIN, END = "<!-- {}: written by scripts/op_tables.py -->", "<!-- end -->"
C_TYPES = {"int32": "int32_t", "int64": "int64_t", "float32": "float", "byte": "uint8_t", "words": "uint32_t"}
TEXTS = {
    "A": "float32, bfloat16, float16",
    "P": "float32, bfloat16, float16, float8_e4m3fn",
    "byte": "bool or uint8",
}


def _lines(rows: list[tuple[str, str]]) -> list[str]:
    lines = []
    for code, said in rows:
        line = f"    {code};" + (f" //!< {said}" if said else "")
        above = [f"    //! {part}" for part in textwrap.wrap(said, WIDTH - 8)] if len(line) > WIDTH else []
        lines += [*above, f"    {code};"] if above else [line]
    return lines


def _pointer(tensor: Tensor) -> tuple[str, str]:
    const = " const" if tensor.use == "in" else ""
    kind = f"{C_TYPES.get(tensor.dtype, 'void')}{const}*"
    kind = "void* const*" if tensor.list_of else kind
    said = [f"{tensor.list_of} pools {tensor.shape}; the array lies on the host" if tensor.list_of else tensor.shape]
    said += [f"null: {tensor.optional}"] if tensor.optional else []
    said += [tensor.doc] if tensor.doc else []
    return f"{kind} {tensor.name}", "; ".join(said).replace("`", "")


def _struct(name: str, title: str, rows: list[tuple[str, str]]) -> list[str]:
    said = textwrap.wrap(f"\\brief {title}", WIDTH - 4)
    fields = _lines([("uint64_t struct_size", ""), *rows])
    return [*(f"//! {line}" for line in said), f"struct trtforge_{name}", "{", *fields, "};", ""]


def _fields(op: Op) -> list[tuple[str, str]]:
    said = {
        s.name: ", ".join(part for part in (s.letter if len(s.letter) == 1 else "", s.doc) if part) for s in op.sizes
    }
    said |= {number: f"dtype of {letter}" for letter, number in op.dtypes.items()}
    said |= {a.name: a.doc for a in op.attributes}
    rows = [_pointer(t) for t in op.tensors]
    return rows + [(f"{C_TYPES[kind]} {name}", said.get(name, "")) for name, kind in op.fields if kind != "pointer"]


def header() -> str:
    """The C structs."""
    out = [
        "//! \\file op_args.h", "//! \\brief Arguments of the ops. See docs/ops.md for the contracts.", "//!",
        f"//! {NOTE}", "#ifndef TRTFORGE_OP_ARGS_H", "#define TRTFORGE_OP_ARGS_H", "", "#include <stdint.h>", "",
        f"#define TRTFORGE_HOST_ABI {ops.ABI_VERSION}", f"#define TRTFORGE_CUDA_ABI {ops.CUDA_ABI_VERSION}", "",
        "enum trtforge_dtype", "{",
        *(f"    TRTFORGE_{name.upper().removesuffix('FN')} = {code}," for name, code in ops.DTYPES.items()), "};", "",
    ]  # fmt: skip
    for op in ops.OPS:
        version = f", version {op.plugin.version}" if op.plugin else ""
        out += _struct(f"{op.name}_args", f"{op.name}: {op.title}{version}", _fields(op))
    call = [
        (f"{C_TYPES.get(kind, 'void*' if kind == 'pointer' else kind)} {name}", said)
        for name, kind, said in ops.CUDA_CALL
    ]
    out += _struct("cuda_call", "What only a GPU needs beside an op's arguments.", call)
    return "\n".join([*out, "#endif // TRTFORGE_OP_ARGS_H", ""])


def _bound(value: float) -> str:
    return f"{value:.0f}" if (value == int(value) and value < 1e6) or value > 1e9 else f"{value:g}"


def _field(attribute: Attribute) -> str:
    least, most = _bound(attribute.minimum), _bound(attribute.maximum or 0)
    if attribute.kind == "float32":
        return f'optionalReal("{attribute.name}", {_bound(attribute.standard or 0)}, {least}, {most})'
    if attribute.standard is not None:
        return f'optionalWhole("{attribute.name}", {_bound(attribute.standard)}, {least}, {most})'
    multiple = f", {attribute.multiple}" if attribute.multiple > 1 else ""
    return f'whole("{attribute.name}", {least}, {most}{multiple})'


def _tensor(tensor: Tensor, name: str, output: bool = False) -> str:
    kind = {"A": "T", "byte": "int8" if output else "byte"}.get(tensor.dtype, tensor.dtype)
    times = f" times {tensor.list_of}" if tensor.list_of else ""
    given = f" if {tensor.flag}" if tensor.flag and not output else ""
    return f"{name} {kind} {tensor.shape.replace(' ', '')}{times}{given}"


def plugins() -> str:
    """The fields and tensors of the TensorRT plugins."""
    out = [f"// {NOTE}", ""]
    for op in ops.DEVICE_OPS:
        assert op.plugin is not None
        read = [t for t in op.tensors if t.use != "out"]
        if op.name == "kv_move":
            assert read[-1].list_of
        inputs = [_tensor(t, t.name) for t in read if not t.optional]
        inputs += op.plugin.inputs
        inputs += [_tensor(t, t.name) for t in read if t.optional]
        states = [_tensor(t, f"{t.name}_out", output=True) for t in op.tensors if t.use == "state"]
        made = [_tensor(t, op.plugin.renamed.get(t.name, t.name), output=True) for t in op.tensors if t.use == "out"]
        outputs = made + states if op.plugin.outputs_first else states + made
        fields = [*map(_field, op.plugin_attributes), *(f'flag("{name}")' for name in op.flags)]
        aliases = [f"{t.name}_out {t.name}" for t in op.tensors if t.use == "state"]
        function = op.title[0].lower() + op.title[1:]
        out += [f"Op const& {function}Op()", "{", f'    static Op const op{{"{op.title}", "{op.plugin.version}",']
        for block in (fields, *([f'"{line}"' for line in lines] for lines in (inputs, outputs))):
            out += ["        {", *(f"            {line}," for line in block), "        },"]
        out += ["        {" + ", ".join(f'"{line}"' for line in aliases) + "}};", "    return op;", "}", ""]
    return "\n".join(out)


def _contract_table(op: Op) -> str:
    rows = ["| Tensor | Shape | Type | |", "|---|---|---|---|"]
    for t in op.tensors:
        use = {"in": "", "out": "output", "state": "in place"}[t.use]
        said = [
            use,
            f"optional (without it: {t.optional})" if t.optional else "",
            "rows may be strided" if t.rows else "",
            t.doc,
        ]
        kind = TEXTS.get(t.dtype, t.dtype)
        shape = f"{t.list_of} × {t.shape}" if t.list_of else t.shape
        rows.append(f"| `{t.name}` | {shape.replace('*', '·')} | {kind} | {'; '.join(s for s in said if s)} |")
    rows += ["", "| Attribute | Type | Default | |", "|---|---|---|---|"]
    for a in op.attributes:
        bounds = "" if a.standard is not None or a.maximum is None else f"{a.minimum:g} to {a.maximum:g}"
        said = "; ".join(part for part in (a.doc, bounds) if part)
        rows.append(f"| `{a.name}` | {a.kind} | {'' if a.standard is None else f'{a.standard:g}'} | {said} |")
    return "\n".join(rows)


def _fields_table() -> str:
    rows = ["| Plugin | Version | Numbers | Flags | In place |", "|---|---|---|---|---|"]
    for op in ops.DEVICE_OPS:
        assert op.plugin is not None
        numbers = []
        for a in op.plugin_attributes:
            step = f", multiples of {a.multiple}" if a.multiple > 1 else ""
            text = f"{a.name} ({a.minimum:g} to {a.maximum:g}{step})"
            numbers.append(text if a.standard is None else f"{text} or left out")
        held = ", ".join(t.name for t in op.tensors if t.use == "state")
        rows.append(
            f"| `{op.title}` | {op.plugin.version} | {', '.join(numbers)} | {', '.join(op.flags)} | {held or '–'} |"
        )
    return "\n".join(rows)


def _between(path: Path, tables: dict[str, str]) -> str:
    """A document with each marked part replaced by its table."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin = BEGIN.format(name)
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(END)
        if not found or not closed:
            raise SystemExit(f"{path} has no part {begin} … {END}")
        text = f"{head}{begin}\n{table}\n{END}{tail}"
    return text


def contents() -> dict[Path, str]:
    """Each file that is written, with what it should hold."""
    return {
        HEADER: header(),
        PLUGINS: plugins(),
        CONTRACTS: _between(CONTRACTS, {op.title: _contract_table(op) for op in ops.DEVICE_OPS}),
        FIELDS: _between(FIELDS, {"fields": _fields_table()}),
    }


def main() -> int:
    stale = [p for p, text in contents().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python scripts/op_tables.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(contents()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

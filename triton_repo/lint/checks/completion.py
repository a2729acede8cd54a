"""Rules on ``auto_complete_config`` of a Python model, as far as its source says what it will do.

The code is parsed and never run: only dicts that are written out are judged, and only calls that are made in every
case are held against the configuration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from triton_repo.lint.checks.python import CLASS, code_path
from triton_repo.lint.hits import TRITON_PYTHON, Hit, each_model, hit_file, listed, rule
from triton_repo.lint.remedies import person
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.shapes import text
from trtforge.rules.tables import Section

SECTION = Section(180, "Models in Python: auto-complete")

_NAME = "auto_complete_config"
#: properties by method: those that a tensor needs, and those that it may have
_TENSORS = {
    "add_input": (("name", "data_type", "dims"), ("optional",)),
    "add_output": (("name", "data_type", "dims"), ()),
}


@rule("TF-TRI-158", "error", "auto_complete_config is refused", f"{TRITON_PYTHON}#auto_complete_config")
@each_model
def completion(model: Model, repository: Repository) -> Iterator[Hit]:
    """A server that completes configurations, as it does unless told otherwise, checks what the function returns and
    every dict that it adds, and lets nothing change that the configuration states."""
    tree = model.syntax
    function = _function(tree) if model.backend == "python" and isinstance(tree, ast.Module) else None
    if function is None:
        return
    nodes = list(ast.walk(function))
    returned = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
    if not returned and not any(isinstance(node, (ast.Raise, ast.Yield)) for node in nodes):
        yield _at(model, function.lineno, f"{_NAME} returns nothing", "return the configuration that it was given")
    written = _dicts(function)
    always = {id(statement.value) for statement in function.body if isinstance(statement, ast.Expr)}
    for call in nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) > 1:
            continue
        given = _given(call.args[0], written) if call.args else None
        if call.func.attr in _TENSORS and given is not None:
            yield from _tensor(model, call, given, id(call) in always)
        elif call.func.attr == "set_model_transaction_policy" and given is not None:
            yield from _policy(model, call, given, id(call) in always)
        elif id(call) in always:
            yield from _batching(model, call)


def _tensor(model: Model, call: ast.Call, given: dict[str, Any], always: bool) -> Iterator[Hit]:
    method = call.func.attr  # type: ignore[attr-defined]
    needed, more = _TENSORS[method]
    missing = [name for name in needed if name not in given]
    unknown = sorted(set(given) - {*needed, *more})
    named = f" of {given['name']!r}" if isinstance(given.get("name"), str) else ""
    if missing:
        yield _at(model, call.lineno, f"{method}{named} lacks {listed(missing)}", f"add {listed(missing)}")
    if unknown:
        message = f"{method}{named} has {listed(unknown)}; it takes {', '.join((*needed, *more))}"
        yield _at(model, call.lineno, message, f"leave {listed(unknown)} out")
    if not always or missing:
        return
    side = method.removeprefix("add_")
    for row in getattr(model.message, side):
        if row.name != given["name"]:
            continue
        stated = row.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[row.data_type].name
        if row.data_type and isinstance(given["data_type"], str) and given["data_type"] != stated:
            message = f"{side} {row.name!r} is {given['data_type']} here and {stated} in config.pbtxt"
            yield _at(model, call.lineno, message, "the same type in both, or none in config.pbtxt")
        if row.dims and isinstance(given["dims"], list) and given["dims"] != list(row.dims):
            message = f"{side} {row.name!r} has dims {given['dims']} here and {text(row.dims)} in config.pbtxt"
            yield _at(model, call.lineno, message, "the same dims in both, or none in config.pbtxt")


def _policy(model: Model, call: ast.Call, given: dict[str, Any], always: bool) -> Iterator[Hit]:
    unknown = sorted(set(given) - {"decoupled"})
    if unknown:
        message = f"set_model_transaction_policy has {listed(unknown)}; it takes decoupled"
        yield _at(model, call.lineno, message, '{"decoupled": …}')
    elif always and model.message.HasField("model_transaction_policy") and isinstance(given.get("decoupled"), bool):
        stated = model.message.model_transaction_policy.decoupled
        if stated != given["decoupled"] and model.knows("model_transaction_policy", "decoupled"):
            message = f"decoupled is {given['decoupled']} here and {stated} in config.pbtxt"
            yield _at(model, call.lineno, message, "the same in both, or no model_transaction_policy in config.pbtxt")


def _batching(model: Model, call: ast.Call) -> Iterator[Hit]:
    """Calls that the configuration may forbid whatever they are given."""
    message, method = model.message, call.func.attr  # type: ignore[attr-defined]
    if method == "set_dynamic_batching" and message.HasField("sequence_batching"):
        yield _at(model, call.lineno, "dynamic batching here and sequence_batching in config.pbtxt", "one of the two")
    if method == "set_max_batch_size" and call.args and isinstance(call.args[0], ast.Constant):
        size = call.args[0].value
        if isinstance(size, int) and message.max_batch_size > size and model.knows("max_batch_size"):
            said = f"max_batch_size is {size} here and {message.max_batch_size} in config.pbtxt"
            yield _at(model, call.lineno, said, f"max_batch_size: {size}")


def _function(tree: ast.Module) -> ast.FunctionDef | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == _NAME:
                    return part
    return None


def _dicts(function: ast.FunctionDef) -> dict[str, dict[str, Any]]:
    """Dicts that are written out and bound to a name once; nobody changes them afterwards."""
    bound: dict[str, list[ast.expr | None]] = {}
    changed: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            bound.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, [])
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.value, ast.Name):
            changed.add(node.value.id)
    found = {}
    for name, values in bound.items():
        literal = _literal(values[0]) if len(values) == 1 and values[0] is not None else None
        if literal is not None and name not in changed:
            found[name] = literal
    return found


def _given(argument: ast.expr, written: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    return written.get(argument.id) if isinstance(argument, ast.Name) else _literal(argument)


def _literal(node: ast.expr) -> dict[str, Any] | None:
    """A dict by its keys, with the values that are written out (None for others); None when keys are not."""
    pairs: list[tuple[object, ast.expr]]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        pairs = list(zip(keys, node.values, strict=True))
    else:
        return None
    if not all(isinstance(key, str) for key, _ in pairs):
        return None
    return {str(key): _value(value) for key, value in pairs}


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _at(model: Model, line: int, message: str, remedy: str) -> Hit:
    return hit_file(model, code_path(model), message, person(remedy), line)

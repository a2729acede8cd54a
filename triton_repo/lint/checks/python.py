"""Rules on models in Python: the class, its methods, and the environment that the code runs in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from triton_repo.lint.engine_models import at
from triton_repo.lint.hits import TRITON_PYTHON, Hit, each_model, hit, hit_file, rule
from triton_repo.lint.remedies import no_parameter, person
from triton_repo.lint.repository import HOLE, Model, Repository
from trtforge.ground.names import nearest
from trtforge.rules.tables import Section

SECTION = Section(160, "Models in Python")

CLASS = "TritonPythonModel"
#: what the Python backend puts in place of this text
_OWN_FOLDER = "$$TRITON_MODEL_DIRECTORY"


@rule("TF-TRI-127", "error", "model.py has no TritonPythonModel", TRITON_PYTHON)
def python_class(repository: Repository) -> Iterator[Hit]:
    """The Python backend makes an instance of the class TritonPythonModel and of no other, and calls its execute."""
    for model in repository.models.values():
        if model.backend != "python" or not model.readable or model.code is None:
            continue
        tree = model.syntax
        if CLASS not in model.code or (isinstance(tree, ast.Module) and not _binds(tree)):
            yield hit_file(model, code_path(model), f"the class {CLASS} is not in it", person(f"class {CLASS}:"), 1)
        elif isinstance(tree, ast.Module):
            yield from _no_execute(model, tree)


def _binds(tree: ast.Module) -> bool:
    """Whether a module can have the class: defined, imported (by name or with all of a module), or assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == CLASS:
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any(
            alias.name == "*" or (alias.asname or alias.name) == CLASS for alias in node.names
        ):
            return True
        if isinstance(node, ast.Name) and node.id == CLASS and isinstance(node.ctx, ast.Store):
            return True
    return False


def _no_execute(model: Model, tree: ast.Module) -> Iterator[Hit]:
    """A class that has no ``execute`` and inherits none."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != CLASS or node.bases or node.keywords:
            continue
        bound = {name for part in node.body for name in _bound(part)}
        if "execute" not in bound and not node.decorator_list:
            near = nearest("execute", bound)
            message = f"{CLASS} has no execute" + (f"; it has {near}" if near else "")
            yield hit_file(model, code_path(model), message, person("def execute(self, requests):"), node.lineno)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement of a class may bind."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | {node.name for node in nodes if isinstance(node, defined)}


@rule("TF-TRI-128", "error", "model.py is no Python", TRITON_PYTHON)
def python_syntax(repository: Repository) -> Iterator[Hit]:
    """The Python backend cannot import it."""
    for model in repository.models.values():
        if model.backend != "python" or not model.readable:
            continue
        error = model.syntax
        if isinstance(error, SyntaxError):
            yield hit_file(model, code_path(model), f"{error.msg}", person("correct this line"), error.lineno or 1)


def code_path(model: Model) -> Path:
    name = model.message.default_model_filename or "model.py"
    for version in model.versions:
        if version.names is not None and name in version.names:
            return version.folder / name
    return model.folder / "1" / name


@rule(
    "TF-TRI-157",
    "error",
    "the environment of a Python model is missing",
    f"{TRITON_PYTHON}#creating-custom-execution-environments",
)
@each_model
def environment(model: Model, repository: Repository) -> Iterator[Hit]:
    """EXECUTION_ENV_PATH names a packed conda environment that the backend unpacks before it starts the model."""
    stated = model.parameter("EXECUTION_ENV_PATH")
    if model.backend != "python" or stated is None or not stated.startswith(_OWN_FOLDER) or HOLE.search(stated):
        return
    inner = stated.removeprefix(_OWN_FOLDER).lstrip("/")
    if not model.has(inner):
        message = f"EXECUTION_ENV_PATH {stated!r}: {model.name}/ has no {inner}"
        remedies = [person("conda-pack, and the archive there"), no_parameter(model, "EXECUTION_ENV_PATH")]
        yield hit(model, message, remedies, *at(model, "EXECUTION_ENV_PATH"))

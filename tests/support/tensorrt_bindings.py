"""TensorRT's Python bindings as recorded from the real wheels: a stand-in that checks every call's signature.

Nothing of TensorRT runs. A call with a wrong name, number, keyword or type of arguments, a property that does not
exist or cannot be set, and an enum member that the version lacks are errors, as they are in the real module. What a
call answers is the test's: ``answers["Class.method"]`` is called with the object and the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "tensorrt_signatures"
VERSIONS = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
_BUFFERS = ("buffer", "typing_extensions.Buffer")
_INTEGERS = ("int", "typing.SupportsInt")


class _Member:
    """A member of an enum: equal to itself, an int, and of its enum's type."""

    def __init__(self, enum: str, name: str, value: int) -> None:
        self.enum, self.name, self.value = enum, name, value

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"{self.enum}.{self.name}"


class _Enum:
    def __init__(self, name: str, members: dict[str, int]) -> None:
        self._name = name
        self.__dict__.update({key: _Member(name, key, value) for key, value in members.items()})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"TensorRT has no {self._name}.{name}")


class HostMemory(bytes):
    """What the builder hands out; the real ``IHostMemory`` is a buffer with ``nbytes`` too."""

    @property
    def nbytes(self) -> int:
        return len(self)


class Bindings:
    """The module of one version.

    Attributes:
        calls: every call and property assignment as ``("Class.method", arguments)``, in order.
        answers: what methods and properties return, by ``"Class.name"``; ``"Class.name="`` is called with an object and
            the value before a property is set, and may raise.
    """

    def __init__(self, version: str, answers: dict[str, Callable[..., Any]] | None = None) -> None:
        self._recorded = json.loads((FOLDER / f"{version}.json").read_text())
        self.__version__ = self._recorded["version"]
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers = dict(answers or {})
        for name, members in self._recorded["enums"].items():
            if "." not in name:
                setattr(self, name, _Enum(name, members))
        for name, described in self._recorded["classes"].items():
            setattr(self, name, self._class(name, described))
        severity = _Enum("ILogger.Severity", self._recorded["enums"]["ILogger.Severity"])
        self.ILogger.Severity = severity
        for name, overloads in self._recorded["functions"].items():
            setattr(self, name, self._function(name, overloads))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"TensorRT {self.__version__} has no {name}")

    def named(self, name: str) -> list[tuple[Any, ...]]:
        """Arguments of every call of ``name``."""
        return [arguments for called, arguments in self.calls if called == name]

    def order(self) -> list[str]:
        """Names of the calls, in order."""
        return [name for name, _ in self.calls]

    def make(self, cls: str, /, **attributes: Any) -> Any:
        """An object of a class, as TensorRT hands them out."""
        made = object.__new__(getattr(self, cls))
        made.__dict__.update(attributes)
        return made

    def _function(self, name: str, overloads: list[dict[str, Any]]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self._answer(name, overloads, None, arguments, keywords)

        return call

    def _answer(self, name: str, overloads: list[dict[str, Any]], this: Any, arguments: Any, keywords: Any) -> Any:
        chosen = [o for o in overloads if self._fits(o["arguments"], arguments, keywords)]
        if not chosen:
            wanted = [[(a["name"], a["type"]) for a in o["arguments"]] for o in overloads]
            raise TypeError(f"{name}{arguments} {keywords}: the bindings take {wanted}")
        self.calls.append((name, (*arguments, *keywords.values())))
        if name in self.answers:
            return self.answers[name](this, *arguments, **keywords)
        returned = chosen[0]["returns"]
        return self.make(returned) if returned in self._recorded["classes"] else {"bool": True}.get(returned)

    def _fits(self, wanted: list[dict[str, Any]], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        names = [argument["name"] for argument in wanted]
        if len(arguments) > len(wanted) or any(name not in names[len(arguments) :] for name in keywords):
            return False
        given = {**dict(zip(names, arguments, strict=False)), **keywords}
        for argument in wanted:
            if argument["name"] not in given:
                if not argument["optional"]:
                    return False
            elif not self._is(given[argument["name"]], argument["type"]):
                return False
        return True

    def _is(self, value: Any, kind: str) -> bool:
        if kind in _BUFFERS:
            return isinstance(value, bytes | bytearray | memoryview)
        if kind in _INTEGERS:
            return isinstance(value, int) and not isinstance(value, bool)
        if kind in ("str", "bool", "tuple", "list"):
            return isinstance(value, {"str": str, "bool": bool, "tuple": tuple, "list": list}[kind])
        if kind == "Dims":
            return isinstance(value, tuple | list) and all(isinstance(size, int) for size in value)
        if kind in self._recorded["enums"]:
            return isinstance(value, _Member) and value.enum == kind
        if kind in self._recorded["classes"]:
            return isinstance(value, getattr(self, kind))
        return False

    def _class(self, name: str, described: dict[str, Any]) -> type:
        bindings = self
        methods, properties = described["methods"], described["properties"]

        def initialize(this: Any, *arguments: Any, **keywords: Any) -> None:
            bindings._answer(f"{name}.__init__", methods["__init__"], this, arguments, keywords)

        def get(this: Any, attribute: str) -> Any:
            if attribute in methods:
                return lambda *a, **k: bindings._answer(f"{name}.{attribute}", methods[attribute], this, a, k)
            if attribute in properties:
                answer = bindings.answers.get(f"{name}.{attribute}")
                return None if answer is None else answer(this)
            raise AttributeError(f"TensorRT {bindings.__version__}: {name} has no {attribute}")

        def set_(this: Any, attribute: str, value: Any) -> None:
            if attribute in properties and properties[attribute]["settable"]:
                bindings.calls.append((f"{name}.{attribute}", (value,)))
                refuse = bindings.answers.get(f"{name}.{attribute}=")
                if refuse is not None:
                    refuse(this, value)
                this.__dict__[attribute] = value
            elif type(this).__name__ == name:
                raise AttributeError(f"TensorRT {bindings.__version__}: {name}.{attribute} cannot be set")
            else:  # a subclass's own
                this.__dict__[attribute] = value

        body = {"__getattr__": get, "__setattr__": set_}
        if "__init__" in methods:
            body["__init__"] = initialize
        return type(name, (), body)

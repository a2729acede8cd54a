"""A process that renders chat templates within limits; run as a file, with a socket as its standard input.

Policy: a template is code of strangers, and no check of a program bounds what it does. So the system bounds it:
processor seconds a job, address space, and size of the text; past the first the kernel ends the process, past the
others it answers so. It imports nothing of ours, has no environment but what Python needs, and ends with its
parent: at the end of the socket, or, when a fork of the parent still holds that, once the parent's id has changed.

Nothing of a template is computed while it is compiled: jinja2 folds constants in three places (its optimizer, output
statements and ``autoescape``), and ``'a' * 10**9`` is one.

Messages on the socket: eight bytes of length, then JSON. First ``{"path": […], "bytes": …, "seconds": …,
"characters": …}``, answered by ``{"ready": version}`` or ``{"missing": why}``; then jobs
``{"template": …, "variables": …}`` (``variables`` null: compile only), each answered by ``{"text": …}``,
``{"syntax": why}``, ``{"failed": why}`` or ``{"limit": "memory" | "output"}``.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this file's folder: its modules are not the standard library's

import importlib
import json
import os
import resource
import select
import signal
from datetime import datetime
from functools import lru_cache
from typing import Any

#: seconds between two looks at the parent while nothing is to be done
WATCH_SECONDS = 5.0
#: characters of an error's text that are passed on
MESSAGE_CHARACTERS = 500


def environment() -> Any:
    """The sandbox that ``apply_chat_template`` of Hugging Face's tokenizers defines, without constant folding."""
    import jinja2
    import jinja2.compiler
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Unfolded(jinja2.compiler.CodeGenerator):
        """Writes expressions out where jinja2 would compute them."""

        def _output_child_to_const(self, node: Any, frame: Any, finalize: Any) -> str:
            if not isinstance(node, (jinja2.nodes.TemplateData, jinja2.nodes.Const)):
                raise jinja2.nodes.Impossible()
            return super()._output_child_to_const(node, frame, finalize)

        def visit_EvalContextModifier(self, node: Any, frame: Any) -> None:
            for option in node.options:
                if not isinstance(option.value, jinja2.nodes.Const):
                    self.fail(f"{option.key} takes true or false here", node.lineno)
            super().visit_EvalContextModifier(node, frame)

    class GenerationBlock(jinja2.ext.Extension):
        """``{% generation %}`` marks assistant text for training; here it only renders its body."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller: Any) -> str:
            return str(caller())

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(pattern: str) -> str:
        return datetime.now().strftime(pattern)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols],
    )
    made.code_generator_class = Unfolded
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


class TooLong(Exception):
    """The text passes its limit."""


class Renderer:
    """Compiles and renders; keeps the newest templates.

    Args:
        characters: most characters of a text.
    """

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._compile = lru_cache(maxsize=16)(environment().from_string)

    def answer(self, job: dict[str, Any]) -> dict[str, str]:
        """The answer to one job; ``MemoryError`` is the caller's."""
        import jinja2

        try:
            template = self._compile(job["template"])
        except jinja2.TemplateSyntaxError as error:
            return {"syntax": f"line {error.lineno}: {_short(error.message)}"}
        # of the Python code that jinja2 makes of it, and numbers that Python does not read
        except (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, OverflowError) as error:
            return {"syntax": _named(error)}
        if job["variables"] is None:
            return {"text": ""}
        try:
            return {"text": self._text(template, job["variables"])}
        except MemoryError:
            raise
        except TooLong:
            return {"limit": "output"}
        except jinja2.TemplateError as error:
            return {"failed": _short(str(error))}
        # a template can fail like any program
        except Exception as error:
            return {"failed": _named(error)}

    def _text(self, template: Any, variables: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in template.generate(**variables):
            size += len(piece)
            if size > self._characters:
                raise TooLong
            pieces.append(piece)
        return "".join(pieces)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_short(str(error))}"


def _short(text: Any) -> str:
    text = str(text)
    return text if len(text) <= MESSAGE_CHARACTERS else text[:MESSAGE_CHARACTERS] + "…"


def _receive(parent: int) -> dict[str, Any] | None:
    """The next message, or None when the parent is gone."""
    while not select.select([0], [], [], WATCH_SECONDS)[0]:
        if os.getppid() != parent:
            return None
    size = _exactly(8)
    body = None if size is None else _exactly(int.from_bytes(size, "little"))
    return None if body is None else json.loads(body)


def _exactly(count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _send(message: dict[str, str]) -> None:
    body = json.dumps(message).encode()
    data = memoryview(len(body).to_bytes(8, "little") + body)
    while data:
        data = data[os.write(0, data) :]


def _bound(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value, value) if hard == resource.RLIM_INFINITY else (min(value, hard),) * 2)


def main() -> int:
    """Serve jobs until the parent is gone."""
    parent = os.getppid()
    start = _receive(parent)
    if start is None:
        return 0
    sys.path[:] = start["path"]
    try:
        for late in ("jinja2.debug", "pprint"):  # imported within a job, they would count as its own
            importlib.import_module(late)
    except ImportError as error:
        _send({"missing": str(error)})
        return 1
    renderer = Renderer(start["characters"])
    for which, value in (
        (resource.RLIMIT_AS, start["bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        _bound(which, value)
    _send({"ready": sys.version})
    while True:
        try:
            # processor time, not time on the clock: a busy machine makes nobody's template slow
            signal.setitimer(signal.ITIMER_PROF, 0)
            job = _receive(parent)
            if job is None:
                return 0
            signal.setitimer(signal.ITIMER_PROF, start["seconds"])
            _send(renderer.answer(job))
        except MemoryError:
            job = None
            _send({"limit": "memory"})
            return 0  # what is left of it stays in this process


if __name__ == "__main__":
    sys.exit(main())

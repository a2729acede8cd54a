"""The one place that writes to the terminal: for people, as JSON, or hardly at all.

Policy: in human mode results go to stdout, progress and errors to stderr. Colour and live bars appear only
on a terminal (not with ``NO_COLOR`` or ``TERM=dumb``); elsewhere progress is plain lines, a few a
minute. With ``--json`` stdout carries exactly one JSON document, errors too, and stderr progress and, with
``--debug``, tracebacks. Quiet mode prints errors and the one line that scripts need. Every text passes the
redaction, and control characters of files and arguments are shown, not obeyed. rich is imported when something is
drawn, not before. A reader of stdout that goes away (``| head``) is no error: the command goes on in silence and its
exit code is its own. Output that is lost otherwise is one.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Literal

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.redaction import redact_value
from trtforge.ground.terminal import one_line, printable, visible

Mode = Literal["human", "json", "quiet"]
#: how often a plain progress line may appear, in seconds
PLAIN_INTERVAL = 5.0


def is_live(stream: IO[str]) -> bool:
    """Whether colour and moving bars are welcome on ``stream``."""
    if os.environ.get("TERM") == "dumb" or os.environ.get("NO_COLOR"):
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _json_default(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    item = getattr(value, "item", None)  # numpy scalars
    if callable(item):
        return item()
    return str(value)


class Console:
    """Output of one command.

    Args:
        mode: ``human``, ``json`` or ``quiet``.
        debug: print tracebacks with errors.
        out, err: the streams; the process's own when not given. They are kept, so that the log may
            capture ``sys.stdout`` while a stage runs and the console still reaches the terminal.
    """

    def __init__(
        self, mode: Mode = "human", debug: bool = False, *, out: IO[str] | None = None, err: IO[str] | None = None
    ) -> None:
        self.mode: Mode = mode
        self.debug = debug
        # a process may be started with a stream closed; then what it prints goes nowhere
        self.out: IO[str] = out if out is not None else sys.stdout or _Nowhere()
        self.err: IO[str] = err if err is not None else sys.stderr or _Nowhere()
        self._document_written = False

    # results -----------------------------------------------------------------------------------
    def result(self, document: Any) -> None:
        """The command's result: the JSON document in ``json`` mode, nothing otherwise."""
        if self.mode != "json" or self._document_written:
            return
        self._document_written = True
        text = json.dumps(redact_value(_plain(document)), indent=2, ensure_ascii=False, default=_json_default)
        self._write(self.out, visible(text) + "\n")

    def value(self, text: str) -> None:
        """The one line that a script wants (a path, a verdict): printed in human and quiet mode."""
        if self.mode != "json":
            self._write(self.out, printable(text) + "\n")

    def print(self, text: str = "") -> None:
        """A line of prose in human mode."""
        if self.mode == "human":
            self._write(self.out, printable(text) + "\n")

    def heading(self, text: str) -> None:
        """A line that opens a part of the output in human mode."""
        if self.mode != "human":
            return
        if is_live(self.out):
            with self._kept(self.out):
                self._rich(self.out).print(_escaped(printable(text)), style="bold")
        else:
            self._write(self.out, printable(text) + "\n")

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table in human mode; cells are turned into text, numbers stand right."""
        if self.mode != "human":
            return
        title, columns = one_line(title), [one_line(column) for column in columns]
        cells = [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
        if is_live(self.out):
            self._rich_table(title, columns, cells)
        else:
            self._write(self.out, _plain_table(title, columns, cells))

    def warning(self, text: str) -> None:
        """A line on stderr in human mode."""
        if self.mode == "human":
            self._write(self.err, f"warning: {printable(text)}\n")

    # errors ------------------------------------------------------------------------------------
    def error(self, error: BaseException, *, log: str | None = None) -> None:
        """Say what went wrong: the JSON document, or a panel with code, numbers, reason and ways out."""
        document = error_document(error)
        if log:
            document["log"] = log
        if self.mode == "json" and not self._document_written:
            self.result({"error": document})
        else:
            lines = _error_lines(document)
            if is_live(self.err):
                self._error_panel(document, lines)
            else:
                self._write(
                    self.err, printable("\n".join([f"error {document['code']}: {document['message']}", *lines]) + "\n")
                )
        if self.debug:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._write(self.err, printable(text))

    # progress ----------------------------------------------------------------------------------
    def progress(self, stage: str = "") -> StageProgress:
        """Progress of one stage, on stderr: a live bar on a terminal, plain lines elsewhere, silent in quiet mode."""
        if self.mode == "quiet":
            return StageProgress(self, stage)
        return LiveProgress(self, stage) if is_live(self.err) else PlainProgress(self, stage)

    # helpers -----------------------------------------------------------------------------------
    def _write(self, stream: IO[str], text: str) -> None:
        with self._kept(stream):
            try:
                stream.write(text)
                stream.flush()
            except UnicodeEncodeError:
                encoding = getattr(stream, "encoding", None) or "ascii"
                stream.write(text.encode(encoding, "replace").decode(encoding))
                stream.flush()

    @contextlib.contextmanager
    def _kept(self, stream: IO[str]) -> Iterator[None]:
        """Write to ``stream`` inside; one that takes no more is not written to again.

        Raises:
            EnvironmentLacks: ``TF-CLI-015`` stdout lost output for another reason than a reader that went away.
        """
        try:
            yield
        except OSError as error:
            if stream is not self.out:
                self.err = _Nowhere()
                return
            self.out = _Nowhere()
            if error.errno != errno.EPIPE:
                raise output_lost(error) from error

    @staticmethod
    def _rich(stream: IO[str]) -> Any:
        from rich.console import Console as RichConsole

        return RichConsole(file=stream, highlight=False, soft_wrap=False)

    def _rich_table(self, title: str, columns: Sequence[str], cells: list[list[str]]) -> None:
        from rich import box
        from rich.table import Table

        table = Table(title=_escaped(title) or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for index, column in enumerate(columns):
            numeric = bool(cells) and all(_is_number(row[index]) for row in cells if row[index])
            table.add_column(_escaped(column), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(_escaped(cell) for cell in row))
        with self._kept(self.out):
            self._rich(self.out).print(table)

    def _error_panel(self, document: Mapping[str, Any], lines: list[str]) -> None:
        from rich import box
        from rich.panel import Panel
        from rich.text import Text

        body = Text(printable("\n".join([document["message"], *lines])))
        self._rich(self.err).print(
            Panel(body, title=f"error {document['code']}", title_align="left", border_style="red", box=box.ROUNDED)
        )


class _Nowhere(io.StringIO):
    """A stream that takes everything and keeps nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


def output_lost(error: OSError) -> EnvironmentLacks:
    """What is said, on stderr, when stdout does not take the output."""
    return EnvironmentLacks(
        "TF-CLI-015",
        f"the output could not be written: {error.strerror or error}",
        asked="output on stdout",
        numbers={"errno": error.errno},
        why="What is behind stdout takes no more: a full disk, or a device that is gone.",
        remedies=["free space where the output goes", "send the output somewhere else"],
    )


class StageProgress:
    """Progress that shows nothing; the base of those that do. Used as a context manager by the pipeline."""

    def __init__(self, console: Console, stage: str) -> None:
        self._console = console
        self.stage = stage
        self.started = time.monotonic()
        self.description = ""
        self.total: float | None = None
        self.done = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self.started

    def start(self, description: str, total: float | None = None) -> None:
        self.description, self.total, self.done = printable(description), total, 0.0
        self._changed(new_step=True)

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount
        self._changed(new_step=False)

    def note(self, text: str) -> None:
        """A line that the pipeline keeps in the run's log; the terminal shows it with --debug only."""
        if self._console.debug and self._console.mode != "quiet":
            self._line(f"[{self.stage}] {text}")

    def say(self, text: str) -> None:
        """A sentence that the user should see while the stage goes on."""
        if self._console.mode != "quiet":
            self._line(f"[{self.stage}] {text}")

    def close(self, outcome: str = "done") -> None:
        """End the stage; ``outcome`` is what stays on the screen (``done``, ``cached``, ``failed`` …)."""
        self._closed(outcome)

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("done" if kind is None else "interrupted" if kind is KeyboardInterrupt else "failed")

    def _changed(self, *, new_step: bool) -> None:
        return None

    def _closed(self, outcome: str) -> None:
        return None

    def _line(self, text: str) -> None:
        self._console._write(self._console.err, printable(text) + "\n")


class PlainProgress(StageProgress):
    """Progress as lines: each new step, then at most one line in five seconds."""

    def __init__(self, console: Console, stage: str) -> None:
        super().__init__(console, stage)
        self._last_line = float("-inf")
        self._open = True

    def _changed(self, *, new_step: bool) -> None:
        now = time.monotonic()
        # many tiny steps in a row are as noisy as many advances: both share the clock, steps with a shorter wait
        if now - self._last_line < (PLAIN_INTERVAL / 10 if new_step else PLAIN_INTERVAL):
            return
        self._last_line = now
        share = (
            f" {_amount(self.done)}/{_amount(self.total)} ({min(self.done / self.total, 1):.0%})"
            if self.total and self.done
            else ""
        )
        self._line(f"[{self.stage}] {self.description}{share}, {_clock(self.elapsed)}")

    def _closed(self, outcome: str) -> None:
        if self._open:
            self._open = False
            self._line(f"[{self.stage}] {outcome}, {_clock(self.elapsed)}")


class LiveProgress(StageProgress):
    """A moving bar on a terminal: stage, what it is doing, bar, share, elapsed."""

    def __init__(self, console: Console, stage: str) -> None:
        super().__init__(console, stage)
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._rich_console = console._rich(console.err)
        self._bar = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("[bold]{task.fields[stage]:<10}", table_column=None),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._rich_console,
            transient=True,
            refresh_per_second=8,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("starting", total=None, stage=stage)
        self._bar.start()
        self._open = True

    def _changed(self, *, new_step: bool) -> None:
        if new_step:
            self._bar.update(self._task, description=self.description, total=self.total, completed=0)
        else:
            self._bar.update(self._task, completed=self.done)

    def _line(self, text: str) -> None:
        self._bar.console.print(printable(text), markup=False)

    def _closed(self, outcome: str) -> None:
        if not self._open:
            return
        self._open = False
        self._bar.stop()
        from rich.text import Text

        marks = {"done": ("✓", "green"), "cached": ("=", "cyan"), "left": ("-", "yellow")}
        mark, style = marks.get(outcome.split(" ")[0], ("✗", "red"))
        line = Text.assemble(
            (f"{mark} ", style), (f"{self.stage:<10} ", "bold"), outcome, (f"  {_clock(self.elapsed)}", "dim")
        )
        self._rich_console.print(line)


def error_document(error: BaseException) -> dict[str, Any]:
    """An exception as the JSON-able object that ``--json`` prints below ``error``."""
    if isinstance(error, ForgeError):
        return error.to_json()
    return {
        "code": "TF-INTERNAL",
        "message": f"unexpected {type(error).__name__}: {error}",
        "asked": None,
        "numbers": {},
        "why": "This is a fault of trtforge, not of the recipe.",
        "remedies": ["run it again with --debug for the traceback, and report it with the run's log"],
        "exit_code": 4,
    }


def _error_lines(document: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if document.get("asked"):
        lines.append(f"  asked:   {document['asked']}")
    offenders = document["numbers"].get("offenders")
    if isinstance(offenders, list):
        lines += [
            f"  {item.get('where')}: {item.get('key')}: {item.get('problem')}"
            for item in offenders
            if isinstance(item, Mapping)
        ]
    numbers = {key: value for key, value in document["numbers"].items() if key != "offenders"}
    if numbers:
        lines.append("  numbers: " + ", ".join(f"{key} = {_short(value)}" for key, value in numbers.items()))
    if document.get("why"):
        lines.append(f"  why:     {document['why']}")
    for index, remedy in enumerate(document.get("remedies") or ()):
        lines.append(f"  {'works:  ' if index == 0 else '        '} - {remedy}")
    if document.get("log"):
        lines.append(f"  log:     {document['log']}")
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (dict, list, tuple)) else str(value)
    return text if len(text) <= 300 else text[:297] + "..."


def _plain(document: Any) -> Any:
    """``document`` as plain containers, so that redaction sees every text in it."""
    if isinstance(document, Mapping):
        return {str(key): _plain(value) for key, value in document.items()}
    if isinstance(document, (list, tuple, set, frozenset)):
        return [_plain(item) for item in document]
    if document is None or isinstance(document, (str, int, bool)):
        return document
    if isinstance(document, float):
        # JSON has no NaN or infinity
        return document if document == document and abs(document) != float("inf") else None
    return _plain(_json_default(document))


#: characters that a column of a plain table is padded to at most
_WIDEST = 120


def _plain_table(title: str, columns: Sequence[str], cells: list[list[str]]) -> str:
    grid = [list(columns), *cells]
    # a longer cell is written whole and breaks its own row's order, not the width of every other row
    widths = [max(min(len(row[index]), _WIDEST) for row in grid) for index in range(len(columns))]
    right = [
        bool(cells) and all(_is_number(row[index]) for row in cells if row[index]) for index in range(len(columns))
    ]

    def line(row: list[str]) -> str:
        parts = [cell.rjust(widths[i]) if right[i] else cell.ljust(widths[i]) for i, cell in enumerate(row)]
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * width for width in widths)
    body = [line(list(columns)), rule, *(line(row) for row in cells)]
    return "\n".join([*([title] if title else []), *body]) + "\n"


def _is_number(text: str) -> bool:
    head = text.split(" ")[0].replace(",", "").rstrip("%×x")
    try:
        float(head)
    except ValueError:
        return text in ("-", "–")
    return True


def _amount(value: float) -> str:
    """A count or a number of bytes, in full and with separators."""
    return f"{round(value, 1):,.12g}" if value < 1000 else f"{round(value):,}"


def _clock(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)

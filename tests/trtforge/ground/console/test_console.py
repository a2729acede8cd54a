"""The console: what goes where in each mode, and that secrets and colour stay out."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtforge.ground import console as module
from trtforge.ground.console import Console, LiveProgress, PlainProgress, StageProgress
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.ground.terminal import visible


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make(
    mode: module.Mode = "human", *, terminal: bool = False, debug: bool = False
) -> tuple[Console, io.StringIO, io.StringIO]:
    kind = Terminal if terminal else io.StringIO
    out, err = kind(), kind()
    return Console(mode, debug, out=out, err=err), out, err


REFUSAL = ForgeError(
    "TF-K4-001",
    "group 128 does not divide 576",
    asked="quantize.group_size: 128",
    numbers={"width": 576, "group": 128},
    why="a partial group has no scale",
    remedies=["quantize.group_size: 64", "quantize.format: fp8"],
)


class TestModes:
    def test_json_is_one_document_and_stderr_has_the_progress(self) -> None:
        console, out, err = make("json")
        console.print("prose")
        console.value("path")
        console.heading("title")
        console.table("t", ["a"], [["b"]])
        console.warning("careful")
        with console.progress("stage") as progress:
            progress.start("working", 3)
            progress.advance()
            progress.note("detail")
        console.result({"a": 1, "b": [1.5, None]})
        assert json.loads(out.getvalue()) == {"a": 1, "b": [1.5, None]}
        assert err.getvalue().splitlines()[0].startswith("[stage] working") and "careful" not in err.getvalue()

    def test_only_the_first_document_is_printed(self) -> None:
        console, out, err = make("json")
        console.result({"a": 1})
        console.result({"a": 2})
        console.error(REFUSAL)
        assert json.loads(out.getvalue()) == {"a": 1}
        assert "TF-K4-001" in err.getvalue()

    def test_json_holds_values_that_json_has_not(self) -> None:
        import numpy as np

        console, out, _ = make("json")
        console.result({"nan": float("nan"), "inf": float("inf"), "np": np.float32(1.5), "set": {1}, 3: "key"})
        assert json.loads(out.getvalue()) == {"nan": None, "inf": None, "np": 1.5, "set": [1], "3": "key"}

    def test_quiet_prints_values_and_errors_only(self) -> None:
        console, out, err = make("quiet")
        console.print("prose")
        console.table("t", ["a"], [["b"]])
        console.result({"a": 1})
        console.value("/path")
        console.warning("careful")
        console.error(REFUSAL)
        assert out.getvalue() == "/path\n"
        assert err.getvalue().startswith("error TF-K4-001")

    def test_human_results_go_to_stdout_and_the_rest_to_stderr(self) -> None:
        console, out, err = make()
        console.print("prose")
        console.warning("careful")
        assert out.getvalue() == "prose\n"
        assert err.getvalue() == "warning: careful\n"


class TestErrors:
    def test_the_text_has_code_numbers_reason_and_ways_out(self) -> None:
        console, _, err = make()
        console.error(REFUSAL, log="/store/logs/x.log")
        text = err.getvalue()
        for part in (
            "TF-K4-001",
            "group 128",
            "width = 576",
            "partial group",
            "group_size: 64",
            "format: fp8",
            "x.log",
        ):
            assert part in text
        assert "Traceback" not in text

    def test_the_panel_on_a_terminal_says_the_same(self) -> None:
        console, _, err = make(terminal=True)
        console.error(REFUSAL)
        for part in ("TF-K4-001", "width = 576", "quantize.group_size: 64"):
            assert part in err.getvalue()

    def test_json_errors(self) -> None:
        console, out, _ = make("json")
        console.error(REFUSAL)
        document = json.loads(out.getvalue())["error"]
        assert document["code"] == "TF-K4-001"
        assert document["exit_code"] == ExitCode.BAD_INPUT
        assert document["remedies"][0] == "quantize.group_size: 64"

    def test_unexpected_errors_show_no_traceback_unless_asked(self) -> None:
        def fail(debug: bool) -> str:
            console, _, err = make(debug=debug)
            try:
                raise ZeroDivisionError("oops")
            except ZeroDivisionError as error:
                console.error(error)
            return err.getvalue()

        assert "unexpected ZeroDivisionError: oops" in fail(False)
        assert "Traceback" not in fail(False)
        assert "Traceback" in fail(True)

    def test_every_offender_is_listed(self) -> None:
        console, _, err = make()
        offenders = [{"key": "a.b", "where": "r.yaml:3", "problem": "unknown key"}]
        console.error(ForgeError("TF-RCP-011", "bad", numbers={"offenders": offenders}))
        assert "r.yaml:3: a.b: unknown key" in err.getvalue()


class TestPlain:
    @pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
    def test_no_escape_sequences_where_they_are_unwanted(
        self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
    ) -> None:
        monkeypatch.setenv(variable, value)
        console, out, err = make(terminal=True)
        console.table("t", ["a", "b"], [["x", 1]])
        console.heading("h")
        console.error(REFUSAL)
        with console.progress("stage") as progress:
            assert isinstance(progress, PlainProgress)
            progress.start("working", 2)
        assert "\x1b" not in out.getvalue() + err.getvalue()

    def test_no_escape_sequences_in_a_pipe(self) -> None:
        console, out, err = make()
        console.table("t", ["a", "b"], [["x", 1]])
        console.error(REFUSAL)
        console.progress("stage").close()
        assert "\x1b" not in out.getvalue() + err.getvalue()

    def test_tables_line_up_and_numbers_stand_right(self) -> None:
        console, out, _ = make()
        console.table("Sizes", ["what", "size"], [["a", "1.00 MiB"], ["longer", "123.00 MiB"], ["none", None]])
        assert out.getvalue().splitlines() == [
            "Sizes",
            "what          size",
            "------  ----------",
            "a         1.00 MiB",
            "longer  123.00 MiB",
            "none",
        ]

    def test_one_long_cell_is_whole_and_widens_no_other_row(self) -> None:
        console, out, _ = make()
        console.table("", ["old", "new"], [["x" * 2000, "y"], ["a", "b"]])
        lines = out.getvalue().splitlines()
        assert f"{'x' * 2000}  y" in lines
        assert max(len(line) for line in lines if "x" not in line) < 200

    def test_markup_in_text_is_not_interpreted(self) -> None:
        console, out, _ = make(terminal=True)
        console.table("[bold]t[/bold]", ["[red]a"], [["[/nothing] [lm_head]"]])
        assert "[/nothing] [lm_head]" in out.getvalue()

    def test_a_stream_that_cannot_encode_gets_replacements(self) -> None:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        console = Console("human", out=stream, err=stream)
        console.print("σ ≤ 1")
        assert raw.getvalue() == b"? ? 1\n"


class TestProgress:
    def test_plain_lines_are_limited(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        console, _, err = make()
        progress = console.progress("quantize")
        progress.start("calibrating", 1000)
        for _ in range(1000):
            now[0] += 0.05
            progress.advance()
        progress.close("done")
        lines = err.getvalue().splitlines()
        assert lines[0] == "[quantize] calibrating, 0.0 s"
        assert lines[-1] == "[quantize] done, 50.0 s"
        assert 8 <= len(lines) <= 13
        assert "/1,000 (" in lines[1]

    def test_many_small_steps_do_not_flood(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        console, _, err = make()
        progress = console.progress("s")
        for index in range(1000):
            now[0] += 0.001
            progress.start(f"step {index}")
        assert len(err.getvalue().splitlines()) <= 3

    def test_a_live_bar_ends_with_one_line(self) -> None:
        console, _, err = make(terminal=True)
        with console.progress("build") as progress:
            assert isinstance(progress, LiveProgress)
            progress.start("packing weights", 4)
            progress.advance(2)
        assert "build" in err.getvalue()
        assert "done" in err.getvalue()

    def test_outcomes(self) -> None:
        console, _, err = make()
        with pytest.raises(ValueError), console.progress("a"):
            raise ValueError
        with pytest.raises(KeyboardInterrupt), console.progress("b"):
            raise KeyboardInterrupt
        assert "[a] failed" in err.getvalue()
        assert "[b] interrupted" in err.getvalue()

    def test_closing_twice_says_it_once(self) -> None:
        console, _, err = make()
        progress = console.progress("a")
        progress.close()
        progress.close("failed")
        assert len(err.getvalue().splitlines()) == 1

    def test_large_numbers_are_written_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [0.0]
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        console, _, err = make("json")
        progress = console.progress("publish")
        progress.start("hashing", 2.5e9)
        now[0] = 10.0
        progress.advance(970_473_000.0)
        assert "970,473,000/2,500,000,000 (39%)" in err.getvalue()

    def test_silent_modes(self) -> None:
        assert type(make("quiet")[0].progress("x")) is StageProgress


class TestSecrets:
    def test_everything_printed_is_redacted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        secret = "hf_ABCDEFGHIJKLMNOP"
        monkeypatch.setenv("HF_TOKEN", "some-opaque-credential")
        console, out, err = make()
        console.print(f"using {secret}")
        console.table("t", ["a"], [[f"token={secret}"]])
        console.warning("got some-opaque-credential")
        console.error(ForgeError("TF-SRC-019", f"denied {secret}", why="some-opaque-credential"))
        with console.progress("x") as progress:
            progress.start(f"fetching with {secret}")
        text = out.getvalue() + err.getvalue()
        assert secret not in text
        assert "some-opaque-credential" not in text
        assert "***" in text

    def test_json_documents_are_redacted(self) -> None:
        console, out, _ = make("json")
        console.result({"api_key": "abc", "nested": [{"Password": "p"}], "max_num_tokens": 5, "token": ""})
        assert json.loads(out.getvalue()) == {
            "api_key": "***",
            "nested": [{"Password": "***"}],
            "max_num_tokens": 5,
            "token": "",
        }


#: clear the screen, a window title, a C1 introducer, a bell, a return over the line, text from right to left
STEERING = "a\x1b[2Jb\x1b]0;owned\x07c\x9b31md\re\u202ef"


class TestSteering:
    @pytest.mark.parametrize("terminal", [False, True])
    def test_control_characters_are_shown_and_not_sent(self, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        console, out, err = make(terminal=terminal)
        console.print(STEERING)
        console.value(STEERING)
        console.heading(STEERING)
        console.table(STEERING, [STEERING], [[STEERING]])
        console.warning(STEERING)
        console.error(
            ForgeError("TF-X-001", STEERING, asked=STEERING, numbers={STEERING: STEERING}, remedies=[STEERING])
        )
        with console.progress("x") as progress:
            progress.start(STEERING)
            progress.say(STEERING)
        text = out.getvalue() + err.getvalue()
        assert not set("\x07\x9b\u202e") & set(text)
        assert "md\re" not in text  # a live bar returns over its own line
        assert "\x1b[2J" not in text and "\x1b]0" not in text
        assert "\\u001b[2J" in text and "\\u202e" in text

    def test_json_keeps_the_text_and_sends_no_control_character(self) -> None:
        console, out, _ = make("json")
        console.result({"name": STEERING})
        assert json.loads(out.getvalue()) == {"name": STEERING}
        assert not set(STEERING) & set(out.getvalue()) & set("\x1b\x07\x9b\r\u202e")

    def test_a_cell_stays_in_its_line(self) -> None:
        console, out, _ = make()
        console.table("t", ["a", "b"], [["one\nverified", "x"]])
        assert "one\\nverified" in out.getvalue()

    @given(st.text())
    def test_what_is_printable_steers_nothing(self, text: str) -> None:
        shown = visible(text)
        assert not [mark for mark in shown if unicodedata.category(mark) == "Cc" and mark not in "\n\t"]
        assert visible(shown) == shown
        assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text

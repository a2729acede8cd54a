"""Tasks: what is right, what is lost, and that code runs where it can do little."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.custom import load_items
from evals.long_context import TAIL, needle_figures, needles, tail_plan
from evals.samples import Samples
from evals.sandbox import network_isolation, run_python
from evals.scorers import Scorer, is_right, last_number
from evals.suite import TASKS, suite_items
from evals.tasks import Item, answer_items, compare_tasks, drop_gate, judge_answers
from tests.support.refusals import refusal
from trtforge.recipe.schema_evals import Evals


def test_the_suite_is_the_same_everywhere_and_grows_at_its_end() -> None:
    items = suite_items(16)
    assert len(items) == 64 == len({item.name for item in items}) and {item.task for item in items} == set(TASKS)
    first = [item.name for item in suite_items(4, ["recall"])]
    assert first == [item.name for item in suite_items(16, ["recall"])][:4]
    assert suite_items(1, ["recall"])[0].prompt.count("\n") == 8
    # pinned: another generator would make every stored answer another item's
    assert suite_items(1, ["arithmetic"])[0].prompt.endswith("=")
    assert [suite_items(1, [task])[0].name for task in TASKS] == [item.name for item in items[::16]]


@pytest.mark.parametrize("task", TASKS)
def test_every_answer_follows_from_its_prompt(task: str) -> None:
    for item in suite_items(24, [task]):
        lines, answer = item.prompt.split("\n"), item.answer.removeprefix(r"^\s*").removesuffix(r"\b")
        if task == "recall":
            assert f"{lines[-1]} {answer}" in lines[:5] and f"{lines[-1]} {answer}" not in lines[5:]
        elif task == "arithmetic":
            assert eval(lines[-1].removesuffix(" =")) == int(answer)
        elif task == "format":
            word = lines[-2].removeprefix("Input: ")
            assert word in answer and answer != word
        else:
            seen = item.prompt.rstrip(",").split(", ")
            step = int(seen[1]) - int(seen[0]) if seen[0].isdigit() else 0
            assert answer in seen if not step else int(answer) == int(seen[-1]) + step
        assert is_right(item.scorer, item.answer, f" {answer}")
        assert not is_right(item.scorer, item.answer, " nothing")


@pytest.mark.parametrize(
    ("scorer", "answer", "text", "right"),
    [
        (Scorer("exact"), "Paris", " Paris\n", True),
        (Scorer("exact"), "Paris", "Paris.", False),
        (Scorer("exact", ignore_case=True), "PARIS", "paris", True),
        (Scorer("numeric"), "1234", "first 5, then 1,234", True),
        (Scorer("numeric"), "1234", "1,234 of 5", False),
        (Scorer("numeric", tolerance=0.01), "100", "about 100.9", True),
        (Scorer("numeric"), "3", "none", False),
        (Scorer("regex"), r"^\s*4\d$", "42", True),
        (Scorer("regex"), r"b+", "aaa", False),
    ],
)
def test_scorers(scorer: Scorer, answer: str, text: str, right: bool) -> None:
    assert is_right(scorer, answer, text) is right


def test_a_pattern_that_does_not_come_to_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evals.scorers.PATTERN_SECONDS", 0.2)
    alarms = signal.getsignal(signal.SIGALRM)
    started = time.monotonic()
    assert refusal(is_right, Scorer("regex"), r"(a+)+$", "a" * 60 + "b").code == "TF-EVL-030"
    assert time.monotonic() - started < 30 and signal.getsignal(signal.SIGALRM) is alarms
    time.sleep(0.3)  # nothing is left that would ring
    assert is_right(Scorer("regex"), r"(a+)+$", "aaa")


def test_a_pattern_has_its_time_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*arguments: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(is_right, *arguments).result()

    assert elsewhere(Scorer("regex"), r"^Wi\w+\.$", "Wien.\udc80\n\0") is False
    assert elsewhere(Scorer("regex"), r"^Wi\w+\.$", "Wien.") is True
    assert elsewhere(Scorer("regex", ignore_case=True), "WIEN", "ä wien") is True
    monkeypatch.setattr("evals.scorers.PATTERN_SECONDS", 1.0)
    assert refusal(elsewhere, Scorer("regex"), r"(a+)+$", "a" * 60 + "b").code == "TF-EVL-030"


def test_numbers_as_people_write_them() -> None:
    assert [last_number(text) for text in ("-3.5", "1e3", "x12y", "1,000,000 in all", "")] == [-3.5, 1e3, 12, 1e6, None]


def test_code_is_right_when_its_tests_pass() -> None:
    tests = "assert add(2, 3) == 5"
    assert is_right(Scorer("code"), tests, "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.")
    assert not is_right(Scorer("code"), tests, "def add(a, b):\n    return a - b\n")


def test_code_that_ends_early_prints_the_word_or_never_ends_has_not_passed() -> None:
    assert run_python("x = 1", "assert x == 1").passed
    assert not run_python("import os; os._exit(0)", "assert False").passed
    assert not run_python("raise SystemExit(0)", "assert False").passed
    begin = time.monotonic()
    late = run_python("while True: pass", "", seconds=1.0)
    assert not late.passed and "1 s" in late.detail and time.monotonic() - begin < 30


def test_code_has_little_memory_no_files_of_size_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTFORGE_TEST_SECRET", "s3cret")
    assert run_python("import os", "assert 'TRTFORGE_TEST_SECRET' not in os.environ").passed
    assert not run_python("b = bytearray(2 * 2**30)", "").passed
    assert not run_python("open('big', 'wb').write(b'x' * (2 * 2**20))", "").passed


@pytest.mark.skipif(not network_isolation(), reason="unshare makes no network namespace here")
def test_code_has_no_network() -> None:
    connect = "import socket\ns = socket.socket()\ns.settimeout(2)\ns.connect(('127.0.0.1', 9))"
    ran = run_python(connect, "")
    assert ran.isolated and not ran.passed and ("unreachable" in ran.detail or "refused" in ran.detail)
    listed = run_python("import socket", "assert [n for _, n in socket.if_nameindex()] in (['lo'], [])")
    assert listed.passed, listed.detail


def items(count: int = 8, task: str = "t") -> list[Item]:
    return [Item(task, f"{task} {i}", str(i), Scorer("exact"), 4) for i in range(count)]


DETACHED = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
"""


@pytest.mark.skipif("--pid" not in network_isolation(), reason="no process namespaces here")
def test_no_process_outlives_the_code() -> None:
    def running() -> set[str]:
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if b"trtforge-code-" in (folder / "cmdline").read_bytes():
                    found.add(folder.name)
            except OSError:  # it ended meanwhile
                continue
        return found

    before = running()
    assert run_python(DETACHED, "assert True").passed
    assert not run_python(DETACHED + "time.sleep(60)", "assert True", seconds=1).passed
    deadline = time.monotonic() + 10
    while running() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running() - before


def test_answers_are_written_once_and_cut_at_their_line(tmp_path: Path) -> None:
    asked: list[str] = []

    def write(batch: Sequence[Item]) -> list[str]:
        asked.extend(item.prompt for item in batch)
        return [f" {item.answer}\nand more" for item in batch]

    first = Samples("tasks", {"m": 1}, out=tmp_path / "a", scratch=tmp_path / "s")
    found = answer_items(write, items(), samples=first)
    assert all(answered.right for answered in found) and found[3].text == " 3"
    again = Samples("tasks", {"m": 1}, out=tmp_path / "b", scratch=tmp_path / "t", earlier=[tmp_path / "a"])
    answer_items(write, items(12), samples=again)
    assert len(asked) == 12, "what was answered is not asked again"


def test_the_gate_counts_what_is_lost_net_of_what_is_gained() -> None:
    right = answer_items(lambda batch: [item.answer for item in batch], items(40))
    some = answer_items(lambda batch: ["" if int(i.answer) < 12 else i.answer for i in batch], items(40))
    found = compare_tasks(right, some).overall
    assert (found.lost, found.gained) == (12, 0)
    gate = drop_gate("task_suite", found, 0.15)
    assert not gate.passed and gate.baseline == 1 and gate.candidate == pytest.approx(0.7)
    assert gate.measured == pytest.approx(0.3) and gate.low < 0.3 < gate.high == gate.bound
    assert "12 answers lost and 0 gained of 40" in gate.detail and "limit 0.15" in gate.detail
    assert drop_gate("task_suite", compare_tasks(some, some).overall, 0.15).passed
    none = answer_items(lambda batch: ["" for _ in batch], items(40))
    nothing = drop_gate("task_suite", compare_tasks(none, none).overall, 0.15)
    assert not nothing.passed and "right on none" in nothing.detail, "0 of 0 is no proof"
    few = answer_items(lambda batch: [item.answer if item.answer == "3" else "" for item in batch], items(40))
    assert "1 only: losing all of them would pass" in drop_gate("t", compare_tasks(few, few).overall, 0.15).detail
    assert "losing all" not in gate.detail
    assert drop_gate("task_suite", compare_tasks(some, right).overall, 0.0).passed


def test_other_items_are_no_pairs() -> None:
    def write(batch: Sequence[Item]) -> list[str]:
        return ["" for _ in batch]

    one, other = answer_items(write, items(3)), answer_items(write, items(4))
    assert refusal(compare_tasks, one, other).code == "TF-EVL-013"


def test_a_task_that_one_side_never_answered_is_named_and_its_gate_is_missed() -> None:
    custom = [
        {"name": "own", "path": "file:own.jsonl", "gate": {"max_drop": "20%"}},
        {"name": "free", "path": "file:f"},
    ]
    asked = Evals.model_validate({"custom": custom, "suite": {"samples": 1}})
    suite = answer_items(lambda batch: [item.answer for item in batch], items(40))
    own = [replace(answer, name=f"own-{answer.name}", task="own") for answer in suite]
    free = [replace(answer, name=f"free-{answer.name}", task="free") for answer in suite]
    figures, gates = judge_answers(suite, [*suite, *own, *free], asked)
    assert figures["not_compared"] == dict.fromkeys(("own", "free"), "the baseline did not answer it")
    assert {gate.name: gate.passed for gate in gates} == {"task_suite": True, "custom:own": False}
    assert "the baseline did not answer it" in gates[1].detail and "custom" not in figures
    figures, gates = judge_answers([], suite, asked, "engine_")
    assert list(figures) == ["not_compared"] and [(gate.name, gate.passed) for gate in gates] == [
        ("engine_task_suite", False)]  # fmt: skip
    figures, gates = judge_answers([*suite, *own], suite, asked)
    assert figures["not_compared"] == {"own": "the candidate did not answer it"}
    assert refusal(judge_answers, [*suite, *own], [*suite, *own[:3]], asked).code == "TF-EVL-013"


def load(folder: Path, text: str, **more: object) -> list[Item]:
    (folder / "items.jsonl").write_text(text)
    options = {"name": "own", "scorer": Scorer("exact"), "max_tokens": 4, "chat": False, "one_line": True} | more
    return load_items("file:items.jsonl", folder, **options)


def test_own_items_are_read(tmp_path: Path) -> None:
    found = load(tmp_path, '{"prompt": "a", "answer": 4}\n\n{"id": "x", "prompt": "b \u2028", "answer": "c"}\n')
    assert [(item.prompt, item.answer) for item in found] == [("a", "4"), ("b \u2028", "c")]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"prompt": "a"}', '{"prompt": "", "answer": 1}', '{"prompt": "a", "answer": true}',
             '{"prompt": "a", "answer": 1, "anwser": 2}', '{"prompt": "a", "prompt": "b", "answer": 1}',
             '{"prompt": "a", "answer": NaN}', "[" * 100_000, '{"prompt": "a", "answer": 1, "id": ' + "[" * 100_000,
             '{"prompt": "\\ud800", "answer": 1}', '{"prompt": "a", "answer": 1, "id": {}}', "",
             '{"prompt":"a","answer":1}\n{"prompt":"a","answer":1}']
)  # fmt: skip
def test_lines_that_are_no_items_are_refused(tmp_path: Path, line: str) -> None:
    assert refusal(load, tmp_path, line).code == "TF-EVL-016"


@pytest.mark.parametrize(
    ("kind", "answer"), [
        ("numeric", "four"), ("numeric", "nan"), ("numeric", "1e999"), ("regex", "("), ("regex", ""), ("regex", " "),
        ("regex", "(" * 5000 + ")" * 5000), ("regex", "a{99999999999999999999}"), ("code", "assert ("), ("code", "\n"),
        ("code", "-" * 200_000 + "1"),
    ],
)  # fmt: skip
def test_answers_that_the_scorer_cannot_use_are_refused(tmp_path: Path, kind: str, answer: str) -> None:
    line = json.dumps({"prompt": "a", "answer": answer})
    assert refusal(load, tmp_path, line, scorer=Scorer(kind)).code == "TF-EVL-014"


@pytest.mark.parametrize(
    "spec", ["items.jsonl", "file:../items.jsonl", "file:/etc/passwd", "file:none.jsonl", "file:", f"file:{'x' * 300}"]
)
def test_items_lie_below_the_recipe(tmp_path: Path, spec: str) -> None:
    (tmp_path / "items.jsonl").write_text('{"prompt": "a", "answer": "b"}')
    (tmp_path / "below").mkdir()
    given = {"name": "own", "scorer": Scorer("exact"), "max_tokens": 4, "chat": False, "one_line": True}
    assert refusal(load_items, spec, tmp_path / "below", **given).code == "TF-EVL-015"


def words(tokens: Sequence[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def test_needles_lie_where_they_are_said_to() -> None:
    made = needles(range(4000), words, str.split, lengths=[300, 600], depths=[0.0, 0.5, 1.0], samples=2)
    assert len(made) == 12 == len({needle.item.name for needle in made})
    for needle in made:
        before, _, after = needle.item.prompt.partition("The secret number")
        assert len(needle.item.prompt.split()) < needle.length
        share = len(before.split()) / (len(before.split()) + len(after.split()))
        assert abs(share - needle.depth) < 0.15
        secret = needle.item.prompt.split(" is ")[1].split(".")[0]
        assert is_right(needle.item.scorer, needle.item.answer, f" {secret}.")
        assert not is_right(needle.item.scorer, needle.item.answer, f" 1{secret}")
    placed = [{"name": n.item.name, "length": n.length, "depth": n.depth} for n in made]
    cells = needle_figures(placed, {n.item.name: n.depth > 0 for n in made})
    assert [cell["right"] for cell in cells] == [0, 2, 2, 0, 2, 2]


def test_a_prompt_that_becomes_more_tokens_still_fits_its_length() -> None:
    """Text that is cut and read again may be other tokens than it was; an engine refuses what is too long."""

    def encode(text: str) -> list[str]:
        return [part for word in text.split() for part in (word, "+")[: 1 + word.endswith("7")]]

    made = needles(range(4000), words, encode, lengths=[300], depths=[0.0, 1.0], samples=2)
    sizes = [1 + len(encode(needle.item.prompt)) + needle.item.max_tokens for needle in made]
    assert all(290 <= size <= 300 for size in sizes), sizes


def test_the_same_tokens_are_scored_under_every_context() -> None:
    text, plan = tail_plan(list(range(1000)), [512, 256, 768])
    assert len(text) == 768 and [(w.end - w.begin, w.end - w.score_from) for w in plan] == [
        (256, TAIL), (512, TAIL), (768, TAIL)]  # fmt: skip
    assert refusal(tail_plan, [1, 2], [256]).code == "TF-EVL-017"

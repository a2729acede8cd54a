"""Chat templates within limits: whatever a template does, one chat is refused by code and nothing else waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trtforge.ground.errors import ForgeError
from trtforge.templates import chat_template, chat_workers
from trtforge.templates.chat_process import environment
from trtforge.templates.chat_template import render_chat, syntax_error

ROOT = Path(__file__).resolve().parents[3]
CHAT = [{"role": "user", "content": "hello"}]
ORDINARY = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[chat_workers.Workers]:
    """Processes of this test alone, with little time."""
    monkeypatch.setattr(chat_workers, "SECONDS", 0.4)
    chat_workers.WORKERS.close()
    made = chat_workers.Workers()
    monkeypatch.setattr(chat_template, "WORKERS", made)
    yield made
    made.close()


def refused(template: str) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        render_chat(template, CHAT)
    return caught.value


def mine() -> list[psutil.Process]:
    return [p for p in psutil.Process().children() if "chat_process.py" in " ".join(p.cmdline())]


@pytest.mark.parametrize(
    ("template", "limit"),
    [
        (LOOP, "processor time"),
        ("{{ lipsum(n=100000) }}", "processor time"),
        ("{{ (10 ** (10 ** 8)) % 7 }}", "processor time"),
        ("{{ 'a' * 10 ** 9 }}", "memory"),
        ("{{ 'x' | center(10 ** 9) }}", "memory"),
        ("{{ '%999999999d' | format(1) }}", "memory"),
        ("{{ '{:>999999999}'.format(1) }}", "memory"),
        ("{% set l = ['a' * 1000] * 1000 %}{% for i in range(9999) %}{% set _ = l * 1000 %}{{ _ | join | length }}"
         "{% endfor %}", "memory"),
        ("{% for i in range(99999) %}{{ messages[0].content * 999 }}{% endfor %}", "characters"),
        ("{% set x = 'a' * 10 ** 8 %}{{ x }}", "characters"),
    ],
)  # fmt: skip
def test_limits(workers: chat_workers.Workers, template: str, limit: str) -> None:
    error = refused(template)
    # a process that a busy machine gives less than a fifth of a core meets the clock first
    told = limit in error.message or (limit == "processor time" and "on the clock" in error.message)
    assert (error.code, told) == ("TF-RUN-094", True), error
    assert render_chat(ORDINARY, CHAT) == "[user] hello"  # what died is replaced


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 / 0 }}",
        "{{ 1 % 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 10.0 ** 400 }}",
        "{% include 'x' %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception('x' * 100000) }}",
        "{{ messages[0].content.encode('nothing') }}",
    ],
)
def test_whatever_a_template_raises_is_coded(template: str) -> None:
    error = refused(template)
    assert error.code == "TF-RUN-093" and len(error.message) < 700


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 10 ** 8 }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{% if 10 ** 10 ** 9 %}{% endif %}",
        "{% set x = 'a' * 10 ** 9 %}",
        "{% for i in [1] * 10 ** 9 %}{% endfor %}",
        "{{ ('a' * 10 ** 9)[0] }}",
        "{{ {'k': 'a' * 10 ** 9} }}",
        "{{ 'a' ~ 'b' * 10 ** 9 }}",
        "{{ 1 if 10 ** 10 ** 8 else 2 }}",
        "{{ '%d' | format(10 ** 10 ** 8) }}",
        "{% macro f(x='a' * 10 ** 9) %}{% endmacro %}",
    ],
)
def test_nothing_is_computed_while_a_template_compiles(template: str) -> None:
    made = environment()
    code = made.compile(template, raw=True)
    assert "10 ** 9" in code or "10 ** 10" in code
    assert len(code) < 3000
    assert syntax_error(template) is None


@pytest.mark.parametrize(
    "template",
    [
        "{% autoescape 'a' * 10 ** 9 %}{% endautoescape %}",
        "{{ " + "1" * 5000 + " }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "-" * 50000 + "1 }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% if %}",
        "{% nothing %}",
        "{{ 'a' | nothing }}",
        "{% extends %}",
    ],
)
def test_what_does_not_compile_says_why(template: str) -> None:
    why = syntax_error(template)
    assert why and len(why) < 700
    assert refused(template).code == "TF-RUN-093"


def test_other_chats_do_not_wait(workers: chat_workers.Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more slow chats than processes: those that ordinary ones would wait for are set aside, or end."""
    monkeypatch.setattr(chat_workers, "SECONDS", 3.0)
    render_chat(ORDINARY, CHAT)
    ended: list[ForgeError] = []

    def hostile() -> None:
        ended.append(refused(LOOP))

    threads = [threading.Thread(target=hostile) for _ in range(3 * chat_workers.MOST)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert render_chat(ORDINARY, CHAT) == "[user] hello"
    assert len(ended) <= len(threads) - chat_workers.MOST_SLOW  # those that were set aside still run
    assert len(mine()) <= chat_workers.MOST + chat_workers.MOST_SLOW
    for thread in threads:
        thread.join()
    assert [error.code for error in ended] == ["TF-RUN-094"] * len(threads)
    said = [str(error.numbers["limit"]) for error in ended]
    assert sum("other slow chats run" in text for text in said) >= chat_workers.MOST
    assert sum(text.startswith("3 s of processor time") or "other" not in text for text in said) >= 1
    assert not workers._slow and not workers._busy


def test_a_slow_chat_that_has_a_place_gets_its_text(workers: chat_workers.Workers) -> None:
    """Over the ordinary time and under the limit: it is set aside, done, and its process is not used again."""
    slow = "{% for a in range(20) %}{% for b in range(50000) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
    assert render_chat(slow, CHAT) == "hello"
    assert not workers._slow
    assert render_chat(ORDINARY, CHAT) == "[user] hello"


def test_more_chats_than_processes_all_get_their_text(workers: chat_workers.Workers) -> None:
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: texts.append(render_chat(ORDINARY, [{"role": "user", "content": str(n)}])))
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(f"[user] {n}" for n in range(24))
    assert len(workers._idle) <= chat_workers.MOST


def test_a_process_that_was_killed_is_replaced(workers: chat_workers.Workers) -> None:
    render_chat(ORDINARY, CHAT)
    for process in mine():
        process.kill()
        process.wait()
    assert render_chat(ORDINARY, CHAT) == "[user] hello"


def test_a_process_knows_no_secret_and_may_not_write_or_start_others(
    workers: chat_workers.Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    before = {process.pid for process in mine()}
    render_chat(ORDINARY, CHAT)
    (process,) = [process for process in mine() if process.pid not in before]
    assert "HF_TOKEN" not in process.environ()
    assert process.rlimit(psutil.RLIMIT_AS)[0] == chat_workers.BYTES
    assert process.rlimit(psutil.RLIMIT_FSIZE) == process.rlimit(psutil.RLIMIT_NPROC) == (0, 0)


def test_a_forked_child_leaves_the_processes_alone(workers: chat_workers.Workers) -> None:
    render_chat(ORDINARY, CHAT)
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if render_chat(ORDINARY, CHAT) == "[user] hello" and len(mine()) == 1 else 2
            chat_template.WORKERS.close()
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert render_chat(ORDINARY, CHAT) == "[user] hello"


KILLED = """
import os, psutil, sys, time
from trtforge.templates.chat_template import render_chat
render_chat("x", [{"role": "user", "content": ""}])
print(*[child.pid for child in psutil.Process().children()], flush=True)
if sys.argv[1] == "fork" and not os.fork():
    time.sleep(60)
print("ready", flush=True)
if sys.argv[1] == "busy":
    render_chat(%r, [{"role": "user", "content": ""}])
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["idle", "busy", "fork"])
def test_no_process_outlives_its_parent(how: str) -> None:
    """Whatever it does at that moment, and although a fork of the parent still holds the socket."""
    parent = subprocess.Popen([sys.executable, "-c", KILLED % LOOP, how], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert parent.stdout.readline() == "ready\n"
    others = [child for child in psutil.Process(parent.pid).children() if child.pid not in pids]
    assert (len(pids), len(others)) == (1, how == "fork")
    process = psutil.Process(pids[0])
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    try:
        process.wait(timeout=30)
    finally:
        for other in others:
            other.kill()
        parent.stdout.close()
    assert not process.is_running()


@pytest.mark.parametrize(
    "content", [object(), float, {1, 2}, b"bytes", [[]]], ids=["object", "class", "set", "bytes", "circular"]
)
def test_what_json_does_not_have_is_refused(content: object) -> None:
    if isinstance(content, list):
        content.append(content)
    with pytest.raises(ForgeError, match="TF-RUN-092"):
        render_chat(ORDINARY, [{"role": "user", "content": content}])


@pytest.mark.parametrize("tools", ["name", b"name", 7, {"name": "f"}])
def test_tools_are_a_list(tools: object) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-092"):
        render_chat(ORDINARY, CHAT, tools=tools)


def test_text_of_any_kind_comes_back_whole() -> None:
    text = "é\0\ud800\U0001f600\n" * 50000
    assert render_chat("{{ messages[0].content }}", [{"role": "user", "content": text}]) == text


def test_without_jinja2_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "can_render", lambda: False)
    error = refused(ORDINARY)
    assert error.code == "TF-RUN-095" and "trtforge[run]" in error.remedies[0]


def test_a_process_that_cannot_start_is_said(workers: chat_workers.Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_workers, "_SCRIPT", Path("/nowhere/chat_process.py"))
    assert refused(ORDINARY).code == "TF-RUN-095"
    monkeypatch.setattr(chat_workers, "_interpreter", lambda: "/nowhere/python3")
    assert refused(ORDINARY).code == "TF-RUN-095"


def test_a_program_is_found_where_python_is_inside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    found = chat_workers._interpreter()
    monkeypatch.setattr(sys, "executable", "/opt/tritonserver/backends/python/triton_python_backend_stub")
    inside = chat_workers._interpreter()
    done = subprocess.run([inside, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    assert done.stdout.strip() == str(sys.version_info[:2])
    assert Path(found).is_file()


def test_an_ordinary_chat_is_quick() -> None:
    """Not a benchmark: a process started for every chat would take a hundred times this."""
    render_chat(ORDINARY, CHAT)
    started = time.process_time()
    for _ in range(50):
        render_chat(ORDINARY, CHAT)
    assert time.process_time() - started < 1.0
    assert len(mine()) <= chat_workers.MOST

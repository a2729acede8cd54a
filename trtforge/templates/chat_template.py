"""Chat templates: Jinja in a sandbox, rendered as Hugging Face's tokenizers render them.

Policy: a template comes with a checkpoint and is therefore untrusted code: immutable sandbox, no loader, no
access to the file system, and a process of its own with limits of time, memory and output
(:mod:`trtforge.templates.chat_workers`). The environment (trimmed blocks, loop controls, ``generation`` blocks,
``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes) is the one that
``apply_chat_template`` defines, so the same template gives the same text.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.templates.chat_workers import (
    BYTES,
    CHARACTERS,
    CLOCK_SECONDS,
    MOST_SLOW,
    ORDINARY_SECONDS,
    SECONDS,
    WORKERS,
    NoRenderer,
    PastLimit,
)

_LIMITS = {
    "processor time": f"{SECONDS:g} s of processor time",
    "time": f"{CLOCK_SECONDS:g} s on the clock",
    "memory": f"{BYTES // 2**20} MiB of memory",
    "output": f"{CHARACTERS} characters of text",
    "a place beside slow ones": f"{ORDINARY_SECONDS:g} s of processor time while {MOST_SLOW} other slow chats run",
}


def can_render() -> bool:
    return importlib.util.find_spec("jinja2") is not None


def syntax_error(source: str) -> str | None:
    """Why a template does not compile, None when it does.

    Raises:
        ForgeError: ``TF-RUN-095`` without jinja2, or when no process can be started.
    """
    try:
        return _run(source, None).get("syntax")
    except PastLimit as error:
        return f"it takes more than {_LIMITS[str(error)]}"


def start_rendering() -> None:
    """Have the process that renders ready, so that the first chat does not wait for its start.

    Raises:
        ForgeError: ``TF-RUN-095``.
    """
    try:
        WORKERS.start()
    except NoRenderer as error:
        _cannot_render(str(error))


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The text of a chat. Any number of threads may ask; none waits for another's template.

    Args:
        template: Jinja source.
        messages: ``{"role": …, "content": …}`` mappings of what JSON has.
        add_generation_prompt: end with the opening of the assistant's turn.
        tools: JSON schemas of tools, as the template expects them.
        variables: everything else a template may use (``bos_token`` …).

    Raises:
        ForgeError: ``TF-RUN-092`` for malformed messages, ``TF-RUN-093`` when the template fails or refuses,
            ``TF-RUN-094`` when it passes a limit, ``TF-RUN-095`` when nothing can be rendered here.
    """
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise _bad_messages(repr(messages)[:80])
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _bad_messages(repr(message)[:80])
    if tools is not None and (isinstance(tools, (str, bytes)) or not isinstance(tools, Sequence)):
        raise _bad_messages(f"tools: {repr(tools)[:80]}")
    given = {
        **variables,
        "messages": [dict(message) for message in messages],
        "tools": list(tools) if tools is not None else None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    # a chat may have thousands of turns
    asked = f"a chat with roles {[message['role'] for message in messages[:16]]}"
    try:
        answer = _run(template, given)
    except (TypeError, ValueError, RecursionError) as error:
        raise _bad_messages(f"what JSON does not have: {error}"[:200]) from None
    except PastLimit as error:
        raise ForgeError(
            "TF-RUN-094",
            f"the chat template takes more than {_LIMITS[str(error)]}",
            asked=asked,
            numbers={"messages": len(messages), "limit": _LIMITS[str(error)]},
            why="a template is code of the checkpoint; without limits one chat could stop the server",
            remedies=["a shorter chat", "send the rendered text as a plain prompt"],
        ) from None
    if "text" in answer:
        return str(answer["text"])
    raise ForgeError(
        "TF-RUN-093",
        f"the chat template refused the conversation: {answer.get('failed') or answer.get('syntax')}",
        asked=asked,
        why="the model's own template decides which conversations it accepts",
        remedies=["order the roles as the model expects", "send the rendered text as a plain prompt"],
    )


def _run(template: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if not can_render():
        _cannot_render("jinja2 is not installed")
    try:
        return WORKERS.run(template, variables)
    except NoRenderer as error:
        _cannot_render(str(error))


def _cannot_render(why: str) -> NoReturn:
    raise EnvironmentLacks(
        "TF-RUN-095",
        f"chat templates cannot be rendered here: {why}",
        asked="a chat template",
        why="A template is rendered by jinja2, in a process of its own with limits of time and memory.",
        remedies=["pip install 'trtforge[run]'", "leave room for one more process (ulimit -u, pids.max)"],
    )


def _bad_messages(asked: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-092",
        "a chat is a non-empty list of messages with a role and a content, and its tools are a list",
        asked=asked,
        why="the chat template reads role and content of every message",
        remedies=['send [{"role": "user", "content": "…"}]'],
    )

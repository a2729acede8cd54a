"""Chat templates: Jinja in a sandbox, rendered as Hugging Face's tokenizers render them.

Policy: a template comes with a checkpoint and is therefore untrusted code: immutable sandbox, no loader, no
access to the file system. The environment (trimmed blocks, loop controls, ``generation`` blocks,
``raise_exception``, ``strftime_now``, ``tojson`` without HTML escapes) is the one that
``apply_chat_template`` defines, so the same template gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from trtforge.errors import ForgeError


@lru_cache(maxsize=16)
def _compile(source: str) -> Any:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

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

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


def syntax_error(source: str) -> str | None:
    """Why a template does not compile, None when it does; ``ImportError`` without jinja2."""
    import jinja2

    try:
        _compile(source)
    except jinja2.TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except (SyntaxError, RecursionError, MemoryError) as error:  # of the Python code that jinja2 makes of it
        return f"{type(error).__name__}: {error}"
    return None


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """The text of a chat.

    Args:
        template: Jinja source.
        messages: ``{"role": …, "content": …}`` mappings.
        add_generation_prompt: end with the opening of the assistant's turn.
        tools: JSON schemas of tools, as the template expects them.
        variables: everything else a template may use (``bos_token`` …).

    Raises:
        ForgeError: ``TF-RUN-092`` for malformed messages, ``TF-RUN-093`` when the template fails or refuses.
    """
    import jinja2

    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence) or not messages:
        raise _bad_messages(repr(messages)[:80])
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise _bad_messages(repr(message)[:80])
    try:
        return str(
            _compile(template).render(
                messages=[dict(m) for m in messages],
                tools=list(tools) if tools is not None else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        )
    # A template can fail like any program: wrong types, missing keys, endless ranges the sandbox stops.
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise ForgeError(
            "TF-RUN-093",
            f"the chat template refused the conversation: {error}",
            asked=f"a chat with roles {[m['role'] for m in messages]}",
            why="the model's own template decides which conversations it accepts",
            remedies=["order the roles as the model expects", "send the rendered text as a plain prompt"],
        ) from error


def _bad_messages(asked: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-092",
        "a chat is a non-empty list of messages with a role and a content",
        asked=asked,
        why="the chat template reads role and content of every message",
        remedies=['send [{"role": "user", "content": "…"}]'],
    )

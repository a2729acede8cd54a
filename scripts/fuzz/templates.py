"""Chat templates made of pieces, compiled and rendered; and chats of any shape for an ordinary one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Target
from tests.support.tiny import CHAT_TEMPLATE
from trtforge.templates.chat_template import render_chat, syntax_error

VALUES = (
    "messages", "messages[0].content", "'a'", "10", "0", "9.5e300", "none", "true", "[1, 2]", "{'a': 1}", "x", "loop",
    "self", "cycler", "namespace(a=1)", "range(99999)", "joiner", "dict", "lipsum(n=9)", "messages|length",
    "''.__class__", "1_0", "'\\ud800'", "bos_token", "tools", "strftime_now('%Y')", "raise_exception('no')",
    "caller()",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "is", "|", ".", "not in",
)  # fmt: skip
FILTERS = (
    "length", "tojson", "center(99999999)", "join", "replace('a', 'b' * 9999)", "list", "batch(3)", "string", "int",
    "float", "first", "xmlattr", "attr('__class__')", "map('upper')", "sort", "unique", "groupby('a')", "format(1)",
    "indent(9999999)", "wordwrap(1)", "urlize", "pprint", "random", "round(999)", "slice(3)", "sum", "truncate(3)",
    "nothing", "tojson(indent=99999999)",
)  # fmt: skip
PIECES = (
    "{{", "}}", "{%", "%}", "{#", "#}", "-", "(", ")", "[", "]", "'", '"', "{% raw %}", "{% endfor %}", "{% endif %}",
    "{% break %}", "{% set x = 1 %}", "{% include 'x' %}", "{% extends x %}", "{% block a %}{% endblock %}",
    "{% generation %}", "{{ 'a' * 10**9 }}", "{% for i in range(99999) %}" * 3,
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "(" * 3000, "\0", "\ud7ff",
)  # fmt: skip


def _expression(draw: random.Random, depth: int = 3) -> str:
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(VALUES)
    kind = draw.randrange(5)
    if kind <= 1:
        return f"({_expression(draw, depth - 1)} {draw.choice(OPERATORS)} {_expression(draw, depth - 1)})"
    if kind == 2:
        return f"{_expression(draw, depth - 1)} | {draw.choice(FILTERS)}"
    if kind == 3:
        return f"{draw.choice(VALUES)}[{_expression(draw, depth - 1)}]"
    return f"({_expression(draw, depth - 1)} if {_expression(draw, depth - 1)} else {_expression(draw, depth - 1)})"


def _statement(draw: random.Random) -> str:
    value = _expression(draw)
    return draw.choice(
        (
            f"{{{{ {value} }}}}",
            f"{{% set x = {value} %}}",
            f"{{% for i in {value} %}}{{{{ {_expression(draw)} }}}}{{% endfor %}}",
            f"{{% if {value} %}}a{{% else %}}b{{% endif %}}",
            f"{{% for i in range(9999) %}}{{% for j in {value} %}}{{{{ i }}}}{{% endfor %}}{{% endfor %}}",
            f"{{% macro f(a={value}) %}}{{{{ {_expression(draw)} }}}}{{% endmacro %}}{{{{ f() }}}}",
            f"{{% filter {draw.choice(FILTERS)} %}}{{{{ {value} }}}}{{% endfilter %}}",
            f"{{% autoescape {value} %}}{{{{ 1 }}}}{{% endautoescape %}}",
        )
    )


def make(pristine: Path) -> Attempt:
    """Nothing has to be written."""
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "text"}]},
    ]

    def attempt(draw: random.Random, folder: Path) -> None:
        kind = draw.random()
        if kind < 0.15:
            render_chat(CHAT_TEMPLATE, mutate.document(draw, chat), tools=mutate.document(draw, [{"name": "f"}]))
            return
        template = "".join(_statement(draw) for _ in range(draw.randint(1, 4)))
        if kind < 0.5:
            template = mutate.text(draw, CHAT_TEMPLATE if draw.random() < 0.5 else template, PIECES)
        syntax_error(template)
        render_chat(template, chat, bos_token="<s>")

    return attempt


TEMPLATES = Target("templates", "chat templates and chats: compiled and rendered", make, cases=60)

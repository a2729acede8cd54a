"""Grammars of answers that are words or calls, the calls held to their tools' schemas: ``strict`` with ``auto``.

Written in Lark as llguidance reads it: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.openai_front.names import COMPACT
from launcher.openai_front.schema import Function

#: the grammar of an answer with these functions; True: one call at most
Grammar = Callable[[Sequence[Function], bool], str]
_HEAD = "%llguidance {}\n"
#: what a function takes that is not strict
_ANY: Mapping[str, Any] = {"type": "object"}


def hermes(functions: Sequence[Function], one: bool) -> str:
    """Words with calls between marks."""
    calls = "\n".join(
        f"call_{number}_mark[lazy]: WORDS {json.dumps('<tool_call>')}\n"
        f"call_{number}: call_{number}_mark {_object(function, 'arguments', before=chr(10))} "
        f"{json.dumps(chr(10) + '</tool_call>')}"
        for number, function in enumerate(functions)
    )
    return f"{_HEAD}start: ({_each(functions)}){'?' if one else '*'} words\nwords: WORDS\nWORDS: /(.|\\n)*/\n{calls}\n"


def llama3(functions: Sequence[Function], one: bool) -> str:
    """Words that begin with no brace, or calls parted by semicolons."""
    calls = "\n".join(f"call_{number}: {_object(function, 'parameters')}" for number, function in enumerate(functions))
    more = "" if one else " (NEXT call)*"
    words = "WORDS: /[^{\\s](.|\\n)*/\nNEXT: /; ?/\n"
    return f"{_HEAD}start: WORDS | call{more} |\n{words}call: {_each(functions)}\n{calls}\n"


def _each(functions: Sequence[Function]) -> str:
    return " | ".join(f"call_{number}" for number in range(len(functions)))


def _object(function: Function, key: str, before: str = "") -> str:
    """A call's object."""
    schema = function.parameters if function.strict and function.parameters else _ANY
    opening = f'{before}{{"name": {json.dumps(function.name)}, "{key}": '
    return f"{json.dumps(opening)} %json {json.dumps({**COMPACT, **schema})} {json.dumps('}')}"

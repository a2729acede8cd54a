"""Which format a model's calls have: what its chat template writes, unless whoever serves it says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from launcher.openai_front.tools import strict
from launcher.openai_front.tools.events import Numbering, Parser, long_id, short_id
from launcher.openai_front.tools.hermes import HermesParser
from launcher.openai_front.tools.llama3 import Llama3Parser
from launcher.openai_front.tools.mistral import MistralParser
from launcher.openai_front.tools.pythonic import PythonicParser
from launcher.openai_front.tools.strict import Grammar
from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest


@dataclass(frozen=True)
class Format:
    """A format of calls.

    Args:
        marks: what a template of the format says, each of them enough.
        make_id: identifiers that the template takes back.
        grammar: makes the grammar that holds calls to their schemas; None: there is none.
    """

    parser: Callable[[Numbering], Parser]
    marks: tuple[str, ...]
    make_id: Callable[[], str] = long_id
    grammar: Grammar | None = None

    def numbering(self, names: Collection[str]) -> Numbering:
        return Numbering(names, self.make_id)


#: by name; a template that has marks of several is of the first
FORMATS: Mapping[str, Format] = {
    "hermes": Format(HermesParser, ("<tool_call>",), grammar=strict.hermes),
    "mistral": Format(MistralParser, ("[TOOL_CALLS]",), short_id),
    "pythonic": Format(PythonicParser, ("[func_name1(", "<|python_start|>")),
    "llama3": Format(Llama3Parser, ("<|python_tag|>", '{"name": function name, "parameters":'), grammar=strict.llama3),
}


def format_of(template: str, named: str | None = None) -> Format | None:
    """The format of a model; None when its template tells of none.

    Args:
        named: the format's name where whoever serves the model gives it.

    Raises:
        ForgeError: TF-OAI-026 when there is no format of that name.
    """
    if named is None:
        return next((row for row in FORMATS.values() if any(mark in template for mark in row.marks)), None)
    if named not in FORMATS:
        near = nearest(named, FORMATS)
        raise ForgeError(
            "TF-OAI-026",
            f"{named} is no format of tool calls",
            asked=f"--tool-parser {named}",
            numbers={"known": list(FORMATS)},
            remedies=[f"--tool-parser {near}"] if near else [f"--tool-parser {name}" for name in FORMATS],
        )
    return FORMATS[named]

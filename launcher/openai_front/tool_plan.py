"""What a chat's tools mean for its template, for the grammar of its answer, and for how the answer is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.openai_front.errors import ApiError, bad_value, not_offered
from launcher.openai_front.job import Guide
from launcher.openai_front.schema import ChatRequest, Function, NamedTool
from launcher.openai_front.tools.choose import FORMATS, Format
from launcher.openai_front.tools.events import Parser
from launcher.openai_front.tools.guided import GuidedParser, schema_of

MOST_TOOLS = 128
_ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class ToolPlan:
    """How tools are offered.

    Attributes:
        tools: what the template gets; None: none are offered.
        guide: what the answer is held to.
        parser: makes what reads one answer; None: an answer is text.
        one: a single call at most is wanted.
        named: the client chose the tool, and ``finish_reason`` is ``stop``.
    """

    tools: list[dict[str, Any]] | None = None
    guide: Guide | None = None
    parser: Callable[[], Parser] | None = None
    one: bool = False
    named: bool = False


def plan_of(request: ChatRequest, template: str, form: Format | None, *, lark: bool = True) -> ToolPlan:
    """The plan of a chat.

    Args:
        template: the model's chat template.
        form: the format of its calls; None: not known.
        lark: the server takes grammars in Lark.

    Raises:
        ApiError: ``TF-OAI-002``, ``TF-OAI-003``, ``TF-OAI-015``, ``TF-OAI-016``.
    """
    answer = _answer_guide(request)
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise _no_such_tool("tool_choice asks for a tool, and there are no tools")
        if request.parallel_tool_calls is not None:
            raise bad_value("parallel_tool_calls", "it goes with tools")
        return ToolPlan(guide=answer)
    functions = _functions(request)
    if choice == "none":
        return ToolPlan(guide=answer)
    if "tools" not in template:
        raise _no_place("the model's chat template has no place for tools, and would drop them in silence")
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    one = request.parallel_tool_calls is False
    names = [function.name for function in functions]
    if choice in (None, "auto"):
        return _freely(functions, form, tools, answer, one, lark)
    if answer is not None:
        raise bad_value("response_format", "the answer cannot be a call that is required and JSON of its own")
    wanted = functions
    if isinstance(choice, NamedTool):
        wanted = [function for function in functions if function.name == choice.function.name]
        if not wanted:
            raise _no_such_tool(f"tool_choice names {choice.function.name}, which is none of the tools")
    known = form or FORMATS["hermes"]  # its identifiers; the calls have a format of their own
    single = one or isinstance(choice, NamedTool)
    return ToolPlan(
        tools=tools,
        guide=Guide(schema_of(wanted, one=single)),
        parser=lambda: GuidedParser(known.numbering(names)),
        one=single,
        named=isinstance(choice, NamedTool),
    )


def _freely(
    functions: list[Function],
    form: Format | None,
    tools: list[dict[str, Any]],
    answer: Guide | None,
    one: bool,
    lark: bool,
) -> ToolPlan:
    """The model decides: its answer is read by its format, and its calls held to the schemas of strict tools."""
    if form is None:
        raise _no_place(
            "the model's chat template does not tell how it calls tools; serve it with --tool-parser, or "
            'send tool_choice: "required"'
        )
    if answer is not None:
        raise bad_value("response_format", "an answer that is held to JSON cannot call tools; tool_choice: none")
    guide = None
    strict = [function.name for function in functions if function.strict]
    if strict:
        if form.grammar is None or not lark:
            raise not_offered(
                "tools.function.strict",
                f"while the model may answer in words, nothing holds a call of {strict[0]} to its schema here",
                'leave strict out, or send tool_choice: "required"',
            )
        guide = Guide(grammar=form.grammar(functions, one))
    names = [function.name for function in functions]
    return ToolPlan(tools=tools, guide=guide, parser=lambda: form.parser(form.numbering(names)), one=one)


def _functions(request: ChatRequest) -> list[Function]:
    tools = request.tools or []
    if len(tools) > MOST_TOOLS:
        raise bad_value("tools", f"{len(tools)} tools; at most {MOST_TOOLS} are taken")
    found = []
    for at, tool in enumerate(tools):
        if tool.type != "function" or tool.model_extra:
            kind = tool.type if tool.type != "function" else ", ".join(tool.model_extra or {})
            raise not_offered(f"tools.{at}", f"tools are functions here, and {kind[:60]} is none", "send functions")
        if tool.function is None:
            raise bad_value(f"tools.{at}.function", "it is missing")
        found.append(tool.function)
    names = [function.name for function in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise bad_value("tools", f"two functions are called {twice}")
    return found


def _answer_guide(request: ChatRequest) -> Guide | None:
    """What ``response_format`` holds an answer to."""
    form = request.response_format
    if form is None or form.type == "text":
        if form is not None and form.json_schema is not None:
            raise bad_value("response_format.json_schema", "it goes with type json_schema")
        return None
    if form.type == "json_object":
        return Guide(_ANY_OBJECT)
    if form.json_schema is None:
        raise bad_value("response_format.json_schema", "it is missing, and type json_schema needs it")
    return Guide(form.json_schema.schema_)


def _no_place(why: str) -> ApiError:
    return ApiError(400, "TF-OAI-015", f"tools cannot be offered to this model: {why}", param="tools")


def _no_such_tool(why: str) -> ApiError:
    return ApiError(400, "TF-OAI-016", f"no such tool: {why}", param="tool_choice")

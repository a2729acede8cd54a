"""What clients may send, as pydantic models; every unknown name is an error with the nearest known one.

Parameters that OpenAI has and this server has not are fields too, so that they are refused by name where they ask for
something (:mod:`.parameters`); values that ask for nothing pass, for clients send them always.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.openai_front.errors import ApiError
from trtforge.ground.names import nearest

Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
#: answers that one request may ask for, to all of its prompts
MOST_ANSWERS = 128
#: characters of a name that an error repeats: a client's own name may be as long as a body
_NAMED = 120


class Strict(BaseModel):
    """No unknown names, and no values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool = False


class Generation(Strict):
    """What chats and completions share; the second half is not OpenAI's but of the servers that speak its language."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = None


class Part(BaseModel):
    """A part of a message's content; only text is served, and whatever else is named when it is refused."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None


class CalledFunction(Strict):
    name: str
    arguments: str


class CalledTool(Strict):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    function_call: Any = None
    audio: Any = None
    annotations: list[Any] | None = None


class Function(Strict):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool; other kinds than functions are refused by name."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    function: Function | None = None


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    # "schema" is a method of pydantic's models
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(Generation):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None

    # not served: refused by name where they ask for something
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    metadata: Any = None
    modalities: Any = None
    moderation: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    service_tier: Any = None
    store: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionRequest(Generation):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None

    best_of: int | None = None
    suffix: str | None = None


_R = TypeVar("_R", bound=BaseModel)


def parsed(kind: type[_R], body: bytes) -> _R:
    """A request.

    Raises:
        ApiError: ``TF-OAI-004`` for what is no JSON object, ``TF-OAI-001`` for an unknown parameter, ``TF-OAI-003``
            for a value that cannot be.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(kind, error) from None


def _refusal(kind: type[BaseModel], error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False, include_input=False)
    # of a union each branch complains: the one that got farthest knows best
    unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
    fault = (unknown or sorted(faults, key=lambda one: -len(one["loc"])))[0]
    if not fault["loc"]:
        return ApiError(400, "TF-OAI-004", f"the body is no JSON object: {fault['msg']}")
    *way, last = fault["loc"]
    stranger = fault["type"] == "extra_forbidden"  # its last step is the client's own word, whatever it looks like
    place = [str(step) for step in way if not _branch(step)] + ([str(last)] if stranger or not _branch(last) else [])
    name = ".".join(place)[:_NAMED] or "''"
    if fault["type"] == "extra_forbidden":
        near = nearest(place[-1], sorted(kind.model_fields)) if len(place) == 1 else None
        hint = f"did you mean {near}?" if near else "leave it out"
        return ApiError(
            400,
            "TF-OAI-001",
            f"{name} is no parameter of this request, and none is dropped in silence; {hint}",
            param=name,
        )
    said = "it is missing" if fault["type"] == "missing" else fault["msg"]
    return ApiError(400, "TF-OAI-003", f"{name}: {said}", param=name)


def _branch(step: Any) -> bool:
    """Whether a step of a place is pydantic's name of a union's branch, not the client's."""
    text = str(step)
    return "[" in text or text in ("str", "int", "NamedTool", "constrained-str") or text.startswith("literal")

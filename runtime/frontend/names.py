"""Request parameters that no model reads, and inputs that are missing: refused with the name that was meant.

Triton hands JSON keys of ``generate`` that are no input on as request *parameters*, and gRPC and HTTP requests may
carry parameters of their own. A model that does not look at them drops a misspelt key in silence. Of required inputs
Triton 2.51 checks the number, not which they are. Only the standard library and our errors, so that repositories for
servers without trtforge can take a copy along.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from trtforge.ground.errors import ForgeError

#: what Triton keeps for itself and may hand on:
#: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_parameters.md; ``id`` is the
#: request's id in the body of ``generate`` (extension_generate.md)
RESERVED = frozenset({"id", "headers", "sequence_id", "sequence_start", "sequence_end"})
RESERVED_PREFIX = "triton_"


#: what every request needs, and why
REQUIRED: Mapping[str, str] = {
    "text_input": "there is nothing to continue",
    "max_tokens": "how much to generate is the client's to say; there is no default",
}


#: code -> the runtime's name of a parameter, and the input that a client knows it by
_CLIENTS_NAMES: Mapping[str, Mapping[str, str]] = {
    "TF-RUN-054": {
        "stop_token_ids": "end_id",
        "logit_bias": "embedding_bias",
        "stop_token_sequences": "stop_words_list",
        "bad_token_sequences": "bad_words_list",
    },
    "TF-RUN-055": {"n": "num_return_sequences"},
    "TF-RUN-079": {"stop": "stop_words"},
    "TF-RUN-080": {"stop_token_ids": "end_id", "stop_token_sequences": "stop_words_list"},
    "TF-RUN-081": {"bad_token_sequences": "bad_words_list"},
    "TF-RUN-084": {"n": "num_return_sequences"},
    "TF-RUN-118": {"logit_bias": "embedding_bias"},
}


def in_clients_words(error: Mapping[str, Any]) -> dict[str, Any]:
    """An error (:meth:`ForgeError.to_json`) that names a parameter as the client sent it.

    Only the first mention in each sentence is the name; what follows may be the client's own value.
    """
    names = _CLIENTS_NAMES.get(error["code"], {})

    def renamed(sentence: str) -> str:
        for inner, outer in names.items():
            sentence, changed = re.subn(rf"\b{inner}\b", outer, sentence, count=1)
            if changed:
                break
        return sentence

    remedies = [renamed(remedy) for remedy in error.get("remedies") or []]
    return {**error, "message": renamed(error["message"]), "remedies": remedies}


def refuse_missing(given: Collection[str], required: Mapping[str, str] = REQUIRED) -> None:
    """Refuse a request without an input that it needs.

    Args:
        given: names of the inputs that came.
        required: names of those that must come, and why.

    Raises:
        ForgeError: ``TF-RUN-117`` naming the first that is missing.
    """
    for name, why in required.items():
        if name not in given:
            raise ForgeError("TF-RUN-117", f"{name} is missing", asked="a request", why=why, remedies=[f"send {name}"])


def refuse_timeout(microseconds: int) -> None:
    """Refuse the ``timeout`` of Triton's own protocol, for models that cannot end a request at a time.

    Args:
        microseconds: as Triton gives it; 0: the client sent none.

    Raises:
        ForgeError: ``TF-RUN-135``.
    """
    if microseconds:
        raise ForgeError(
            "TF-RUN-135",
            "a request's timeout is not offered by this model",
            asked=f"timeout: {microseconds} microseconds",
            why="the engine behind it is another model, which Triton does not let this one end in time",
            remedies=["leave timeout out, and cancel the request when its time is over"],
        )


def refuse_contradictions(given: Mapping[str, Any]) -> None:
    """Refuse inputs of which one would be dropped in silence.

    Args:
        given: by name, those inputs of one row that came: ``seed``, ``random_seed``, ``chat``, ``stream``,
            ``exclude_input_in_output``.

    Raises:
        ForgeError: ``TF-RUN-108``.
    """
    seeds = {name: int(given[name]) for name in ("seed", "random_seed") if name in given}
    if len(set(seeds.values())) > 1:
        raise ForgeError(
            "TF-RUN-108",
            "seed and random_seed came with different values",
            asked=", ".join(f"{name}: {seed}" for name, seed in seeds.items()),
            why="both are names of one thing",
            remedies=["send seed alone"],
        )
    echo = not given.get("stream", False) and not given.get("exclude_input_in_output", True)
    if echo and given.get("chat", False):
        raise ForgeError(
            "TF-RUN-108",
            "exclude_input_in_output: false came with a chat",
            why="a chat's text is its template's and nothing that the client sent; it is not repeated",
            remedies=["leave exclude_input_in_output out"],
        )


def told(error: Mapping[str, Any]) -> str:
    """An error (:meth:`ForgeError.to_json`) as the one line that a client gets."""
    error = in_clients_words(error)
    details = [error.get("why"), *(error.get("remedies") or [])[:2]]
    return "; ".join([f"{error['code']}: {error['message']}", *(detail for detail in details if detail)])


def refuse_unknown(parameters: str, inputs: Collection[str], *, also: Collection[str] = ()) -> None:
    """Refuse request parameters that nothing reads.

    Args:
        parameters: the request's parameters as a JSON object, as Triton's Python backend gives them.
        inputs: names of the model's input tensors.
        also: parameters that the model does read.

    Raises:
        ForgeError: ``TF-RUN-106`` with the nearest known names.
    """
    if parameters in ("", "{}"):
        return
    given = json.loads(parameters)
    unknown = [
        name for name in given if name not in RESERVED and name not in also and not name.startswith(RESERVED_PREFIX)
    ]
    if not unknown:
        return
    remedies = []
    for name in unknown:
        if name in inputs:
            remedies.append(f"{name} is an input tensor, not a parameter")
            continue
        near = difflib.get_close_matches(name.lower(), inputs, n=1)
        if near:
            remedies.append(f"{name}: did you mean {near[0]!r}?")
        else:
            remedies.append(f"{name}: no input has a name like it; known: {', '.join(sorted(inputs))}")
    listed = ", ".join(repr(name) for name in unknown)
    raise ForgeError(
        "TF-RUN-106",
        f"unknown request {'keys' if len(unknown) > 1 else 'key'} {listed}",
        asked=", ".join(f"{name}={given[name]!r}" for name in unknown)[:200],
        why="a key that is dropped in silence changes the answer without a trace",
        remedies=remedies[:4],
    )

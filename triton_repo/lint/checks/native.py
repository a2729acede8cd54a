"""Rules on the ``native`` layout: the repository against the engine that it serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from triton_repo.layouts.native import LIMITS, read_engine
from triton_repo.lint.engine_models import at
from triton_repo.lint.files import Unreadable, read_text
from triton_repo.lint.hits import TRITON_PYTHON, Hit, each_model, hit, rule
from triton_repo.lint.remedies import parameter, person, put
from triton_repo.lint.repository import HOLE, Model, Repository
from trtforge.drafting.record import read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import real_path
from trtforge.rules.tables import Section

SECTION = Section(190, "The native layout")


def _engine(model: Model, repository: Repository) -> tuple[dict[str, Any] | None, Hit | None]:
    """The engine of a native model, or the finding that there is none."""
    reference = model.raw_parameter("engine_dir") or ""
    if HOLE.search(reference) or not reference.strip():
        return None, hit(
            model,
            f"engine_dir is {reference!r}: not filled in",
            parameter(model, "engine_dir", "../../engine"),
            *at(model, "engine_dir"),
        )
    try:
        folder = repository.engine_dir if repository.engine_dir is not None else real_path(model.folder / reference)
        read_text(folder / "engine.json", real_path(folder))  # a FIFO of that name must not hold lint up
        return read_engine(folder), None
    except Unreadable as fault:
        place = at(model, "engine_dir")
        return None, hit(
            model, f"engine_dir {reference!r}: engine.json: {fault.reason}", person("put the engine there"), *place
        )
    except (OSError, ValueError) as fault:  # a text that no path can be
        return None, hit(
            model,
            f"engine_dir {reference!r}: {fault}",
            parameter(model, "engine_dir", "../../engine"),
            *at(model, "engine_dir"),
        )
    except ForgeError as fault:
        return None, hit(
            model, f"engine_dir {reference!r}: {fault.why}", person("put the engine there"), *at(model, "engine_dir")
        )


def _always_streams(model: Model) -> bool:
    """Whether the model's code is of the kind that does not look at the flag."""
    try:
        return "runtime.triton_frontend" in read_text(model.folder / "1" / "model.py", real_path(model.folder))
    except Unreadable:
        return False


def _is_native(model: Model) -> bool:
    """The native layout's model; others have an engine_dir too (TensorRT-LLM's whisper_bls), but none of the limits."""
    parameters = model.message.parameters
    return model.backend == "python" and "engine_dir" in parameters and any(name in parameters for name in LIMITS)


@rule("TF-TRI-027", "error", "the engine of a native model cannot be read", TRITON_PYTHON)
@each_model
def engine_missing(model: Model, repository: Repository) -> Iterator[Hit]:
    """The model loads the engine that engine_dir names, relative to its own folder."""
    if _is_native(model):
        found = _engine(model, repository)[1]
        if found is not None:
            yield found


@rule("TF-TRI-028", "error", "a limit differs from the engine's", TRITON_PYTHON)
@each_model
def limits(model: Model, repository: Repository) -> Iterator[Hit]:
    """The runtime refuses to serve an engine under other limits than it was built for."""
    engine = _engine(model, repository)[0] if _is_native(model) else None
    if engine is None:
        return
    for name in LIMITS:
        stated = model.raw_parameter(name) or "missing"
        if stated != str(engine["limits"][name]):
            message = f"{name} is {stated} here and {engine['limits'][name]} in the engine"
            remedy = parameter(model, name, str(engine["limits"][name]))
            yield hit(model, message, remedy, *(at(model, name) if name in model.message.parameters else ("name",)))


@rule("TF-TRI-030", "error", "the repository says another speculation than the engine has", TRITON_PYTHON)
@each_model
def speculation(model: Model, repository: Repository) -> Iterator[Hit]:
    """The model refuses to load: clients and load tests tell by the parameter whether answers count drafts."""
    engine = _engine(model, repository)[0] if _is_native(model) else None
    stands = "speculation" in model.message.parameters
    # the code of earlier repositories does not look at it
    if engine is None or not (stands or "runtime.speculation" in (model.code or "")):
        return
    record = read_speculation(engine)
    stated, found = model.raw_parameter("speculation") or "none", "none" if record is None else record.method
    if stated != found:
        message = f"speculation is {stated} here and {found} in the engine"
        remedy = parameter(model, "speculation", found)
        yield hit(model, message, remedy, *(at(model, "speculation") if stands else ("name",)))


@rule("TF-TRI-029", "error", "a native model streams and is not decoupled", TRITON_PYTHON)
@each_model
def not_decoupled(model: Model, repository: Repository) -> Iterator[Hit]:
    """Code written before the native layout could choose sends a response for each piece of text, which only a
    decoupled model may."""
    if (
        _is_native(model)
        and _always_streams(model)
        and _engine(model, repository)[0] is not None
        and model.knows("model_transaction_policy", "decoupled")
    ) and not model.message.model_transaction_policy.decoupled:
        message = "the model streams and is not decoupled"
        remedy = put(
            model, "true", "model_transaction_policy", "decoupled", text="model_transaction_policy { decoupled: true }"
        )
        yield hit(model, message, remedy, "model_transaction_policy")

"""What the native model's parameters say of serving (the recipe's ``serving``), read at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.engine_config import EngineConfig
from runtime.frontend.asking import Defaults
from trtforge.ground.errors import ForgeError

_MOST = 2**31 - 1


@dataclass(frozen=True)
class Settings:
    """Choices for the engine, what holds for clients that do not say, and where a request's line goes."""

    engine: EngineConfig
    defaults: Defaults
    request_log: str | None = None

    @classmethod
    def read(cls, parameters: Mapping[str, str]) -> Settings:
        """The settings of a model's parameters; what is missing is as by default.

        Raises:
            ForgeError: ``TF-RUN-134`` naming a parameter that has no usable value.
        """
        usual = EngineConfig()
        engine = EngineConfig(
            max_waiting=_whole(parameters, "max_waiting") or usual.max_waiting,
            prefix_cache=_flag(parameters, "prefix_cache", usual.prefix_cache),
            aging_seconds=_seconds(parameters, "aging_ms") or usual.aging_seconds,
            max_prefill_tokens=_whole(parameters, "max_prefill_tokens"),
            salt=parameters.get("salt", "").encode(),
            stream_interval=_whole(parameters, "stream_interval") or usual.stream_interval,
            max_output_tokens=_whole(parameters, "max_output_tokens"),
            queue_timeout=_seconds(parameters, "queue_timeout_ms"),
            coalesce=_flag(parameters, "coalesce", usual.coalesce),
            cleanse=_flag(parameters, "cleanse", usual.cleanse),
        )
        defaults = Defaults(
            exclude_input=_flag(parameters, "exclude_input_in_output", True),
            max_tokens=_whole(parameters, "default_max_tokens"),
            timeout=_seconds(parameters, "default_timeout_ms"),
        )
        return cls(engine, defaults, parameters.get("request_log") or None)


def _whole(parameters: Mapping[str, str], name: str) -> int | None:
    value = parameters.get(name, "")
    if value == "":
        return None
    if not (value.isascii() and value.isdecimal() and len(value) < 12 and 1 <= int(value) <= _MOST):
        raise _bad(name, value, f"a whole number from 1 to {_MOST}")
    return int(value)


def _seconds(parameters: Mapping[str, str], name: str) -> float | None:
    whole = _whole(parameters, name)
    return None if whole is None else whole / 1000.0


def _flag(parameters: Mapping[str, str], name: str, default: bool) -> bool:
    value = parameters.get(name, "")
    if value not in ("", "true", "false"):
        raise _bad(name, value, "true or false")
    return default if value == "" else value == "true"


def _bad(name: str, value: str, allowed: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-134",
        f"the parameter {name} is {value[:40]!r}; it must be {allowed}",
        asked=f"{name}: {value[:40]}",
        why="the model's config.pbtxt says how requests are served, and this cannot be read",
        remedies=["emit the repository again from its recipe", f"leave {name} out for its default"],
    )

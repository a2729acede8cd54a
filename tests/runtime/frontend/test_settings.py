"""The recipe's ``serving`` arrives in the engine: written by the layout, read at start."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.engine import EngineConfig
from runtime.frontend.asking import Defaults
from runtime.frontend.settings import Settings
from triton_repo.layouts.native_serving import parameters_of
from triton_repo.parameters import load_parameters
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema_serving import Serving

#: key → a value that is not its default, and where it arrives
KEYS: dict[str, tuple[Any, Any]] = {
    "max_waiting": (3, lambda s: s.engine.max_waiting),
    "queue_timeout": (1.5, lambda s: s.engine.queue_timeout),
    "aging": (2.5, lambda s: s.engine.aging_seconds),
    "default_max_tokens": (7, lambda s: s.defaults.max_tokens),
    "max_output_tokens": (9, lambda s: s.engine.max_output_tokens),
    "default_timeout": (0.25, lambda s: s.defaults.timeout),
    "max_prefill_tokens": (128, lambda s: s.engine.max_prefill_tokens),
    "stream_interval": (4, lambda s: s.engine.stream_interval),
    "prefix_cache": (False, lambda s: s.engine.prefix_cache),
    "salt": ("ä", lambda s: s.engine.salt.decode()),
    "coalesce": (True, lambda s: s.engine.coalesce),
    "cleanse": (True, lambda s: s.engine.cleanse),
    "request_log": ("/var/log/requests", lambda s: s.request_log),
}


def test_every_key_has_its_row_here() -> None:
    assert set(KEYS) == set(Serving.model_fields)


def test_nothing_said_is_nothing_written_and_the_usual() -> None:
    assert parameters_of(Serving()) == {}
    assert Settings.read({}) == Settings(EngineConfig(), Defaults())


@pytest.mark.parametrize("key", KEYS)
def test_a_key_arrives_and_no_other_changes(key: str) -> None:
    value, where = KEYS[key]
    written = parameters_of(Serving.model_validate({key: value}))
    assert len(written) == 1
    [(name, text)] = written.items()
    row = load_parameters("native").of_model("native")[name]
    assert row.recipe == f"serving.{key}"
    assert row.fault(text) is None
    settings = Settings.read(written)
    assert where(settings) == value
    usual = Settings.read({})
    for other, (_, found) in KEYS.items():
        assert other == key or found(settings) == found(usual)


def test_defaults_of_recipe_and_engine_are_the_same() -> None:
    """A key at its default is not written: the runtime's own default holds."""
    usual = Settings.read({})
    for key, (_, where) in KEYS.items():
        assert where(usual) == (10.0 if key == "aging" else getattr(Serving(), key)), key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_waiting", "0"), ("max_waiting", "-1"), ("stream_interval", "x"), ("queue_timeout_ms", "1e3")),
        *(("coalesce", "yes"), ("max_output_tokens", "9" * 20), ("exclude_input_in_output", "True")),
    ],
)
def test_what_cannot_be_read_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(ForgeError, match=f"TF-RUN-134: the parameter {name} is"):
        Settings.read({name: value})

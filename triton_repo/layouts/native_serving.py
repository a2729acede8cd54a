"""The recipe's ``serving`` as parameters of the native model; :mod:`runtime.frontend.settings` reads them."""

from __future__ import annotations

from trtforge.recipe.schema_serving import Serving

#: keys that are times, which parameters hold in whole milliseconds
TIMES = ("queue_timeout", "aging", "default_timeout")


def parameters_of(serving: Serving) -> dict[str, str]:
    """The parameters by name; what is as by default is left out, so that other repositories stay as they are."""
    found = {}
    for name, value in serving.model_dump(exclude_defaults=True).items():
        if value is None:
            continue
        if name in TIMES:
            found[f"{name}_ms"] = str(round(value * 1000))
        elif isinstance(value, bool):
            found[name] = str(value).lower()
        else:
            found[name] = str(value)
    return found

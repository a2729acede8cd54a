"""What sections of recipes are made of: the base of them all, wherever their fields are said."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0, strict=True)]


class Section(BaseModel):
    """Base of every recipe section: unknown keys, infinities and NaN are refused, values are frozen after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

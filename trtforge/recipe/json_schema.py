"""The recipe's JSON Schema, for editors and for ``trtforge schema``."""

from __future__ import annotations

from typing import Any

from trtforge.recipe.schema import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe file as it is written, ``extends`` included.

    A file with ``extends`` may leave required keys to its base, so they are required only without it.
    """
    schema = Recipe.model_json_schema(mode="validation")
    required = schema.pop("required", [])
    schema["properties"] = {
        "extends": {
            "type": "string",
            "description": "A base recipe in the same folder tree; deep-merged under this one",
        },
        **schema["properties"],
    }
    schema["anyOf"] = [{"required": ["extends"]}, {"required": required}]
    return {"$schema": DIALECT, **schema, "title": "trtforge recipe"}

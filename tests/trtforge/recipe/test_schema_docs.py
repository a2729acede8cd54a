"""The generated documents are current and say what the loader does."""

from __future__ import annotations

from pathlib import Path

from trtforge.ground.names import nearest
from trtforge.recipe import docs
from trtforge.recipe.json_schema import recipe_json_schema
from trtforge.recipe.keys import all_keys, suggest


def test_recipe_document_is_current() -> None:
    written = (Path(__file__).parents[3] / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert written == docs.render(), "run: python -m trtforge.recipe.docs docs/recipe.md"


def test_every_key_is_in_the_document_with_a_meaning_or_choices() -> None:
    text = docs.render()
    for key in all_keys():
        line = next((line for line in text.splitlines() if line.startswith(f"| `{key.path[-1]}` |")), None)
        assert line is not None, key.dotted
    for key in all_keys():
        if key.section is None:
            assert key.field.description, f"{key.dotted} has no description"


def test_schema_knows_inheritance_units_and_unknown_keys() -> None:
    schema = recipe_json_schema()
    assert "extends" in schema["properties"]
    assert schema["additionalProperties"] is False
    assert schema["anyOf"] == [{"required": ["extends"]}, {"required": ["name", "model"]}]
    memory = schema["$defs"]["KvCache"]["properties"]["memory"]
    assert memory["anyOf"][0]["type"] == "string"


def test_nearest_names() -> None:
    assert nearest("fromat", ["format", "kv_cache"]) == "format"
    assert nearest("kv-cache", ["format", "kv_cache"]) == "kv_cache"
    assert nearest("zzz", ["format"]) is None
    assert suggest(("build", "tp")) == "build.parallel.tp"

"""Where a chat template may stand beside a model, and which of those texts is the one that chats are rendered with.

Policy: one list of places for everybody who reads a checkpoint, in the order in which transformers prefers them.
Named templates (for tools, for retrieval) stand beside the default one; only the default renders a plain chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

JINJA = "chat_template.jinja"
#: files that hold a template under the key ``chat_template``: a text, or a list of ``{name, template}``
KEYED = ("tokenizer_config.json", "chat_template.json", "processor_config.json")
#: folder of named templates, one file each
NAMED = "additional_chat_templates"
DEFAULT = "default"


@dataclass(frozen=True)
class PlacedTemplate:
    """A chat template: its name, its text, and the file that holds it."""

    name: str
    text: str
    place: str


def chat_templates(
    text: Callable[[str], str | None], values: Callable[[str], Mapping[str, Any]], named: Iterable[str] = ()
) -> list[PlacedTemplate]:
    """Every chat template of a folder, the most preferred of a name first.

    Args:
        text: the text of a file, None or empty when there is none.
        values: the JSON object in a file, empty when there is none.
        named: names of the files in :data:`NAMED`.
    """
    found = []
    whole = text(JINJA)
    if whole:
        found.append(PlacedTemplate(DEFAULT, whole, JINJA))
    for file in sorted(named):
        if file.endswith(".jinja"):
            place = f"{NAMED}/{file}"
            found.append(PlacedTemplate(file.removesuffix(".jinja"), text(place) or "", place))
    for file in KEYED:
        value = values(file).get("chat_template")
        rows = value if isinstance(value, list) else [{"name": DEFAULT, "template": value}]
        for row in rows:
            if isinstance(row, Mapping) and isinstance(row.get("template"), str):
                found.append(PlacedTemplate(str(row.get("name", DEFAULT)), str(row["template"]), file))
    return [item for item in found if item.text]


def default_template(found: Iterable[PlacedTemplate]) -> PlacedTemplate | None:
    """The template of plain chats, or None when there is none of that name."""
    return next((item for item in found if item.name == DEFAULT), None)

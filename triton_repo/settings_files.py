"""What ``model.yaml`` (LLM API) and ``model.json`` (vLLM) of a version say, key by key, with the lines they stand in.

Order, comments, quotes and flow or block style are no part of it. Values are read as the servers read them:
YAML 1.1 as PyYAML's safe loader takes it, JSON as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton_repo.lint.llm_arguments import aliases_grow
from trtforge.ground.rows import safe_loader

#: file names whose content is settings
NAMES = ("model.yaml", "model.json")
#: keys that name a folder relative to the model's own
PLACES = (
    "model",
    "tokenizer",
    "triton_config.lora_directory",
    "speculative_config.speculative_model",
    "speculative_config.speculative_model_dir",
)


@dataclass(frozen=True)
class Setting:
    """One value (a scalar, a list of scalars, or an empty mapping or list) and its key's line, from 1."""

    value: Any
    line: int

    def same(self, other: Setting) -> bool:
        """Whether both say the same: 1 and 1.0 do, 1 and true or "1" do not."""
        return _comparable(self.value) == _comparable(other.value)

    @property
    def text(self) -> str:
        """The value as a file would state it; a text that reads like a number stands in quotes."""
        if not isinstance(self.value, str):
            return json.dumps(self.value, ensure_ascii=False, default=str)
        return self.value if _plain(self.value) else json.dumps(self.value, ensure_ascii=False)


def read_settings(name: str, text: str) -> dict[str, Setting] | None:
    """Dotted key → setting of the file ``name``; None where it is no mapping, does not parse or merges mappings."""
    import yaml

    construct = _json_scalar if name.endswith(".json") else _yaml_scalar
    try:
        if name.endswith(".json"):
            json.loads(text)
        root = yaml.compose(text, Loader=safe_loader())
        if not isinstance(root, yaml.MappingNode) or aliases_grow(root) is not None:
            return None
        return dict(_flat(root, "", 1, construct))
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def _flat(node: Any, key: str, line: int, construct: Callable[[Any], Any]) -> Iterator[tuple[str, Setting]]:
    """A key that stands twice comes twice, the one that holds last."""
    import yaml

    if isinstance(node, yaml.MappingNode) and node.value:
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise ValueError("a key that is no scalar")
            if name.tag == "tag:yaml.org,2002:merge":
                raise ValueError("what a merged mapping sets depends on the keys beside it")
            inner = f"{key}.{name.value}" if key else str(name.value)
            yield from _flat(value, inner, name.start_mark.line + 1, construct)
    elif isinstance(node, yaml.SequenceNode) and any(not isinstance(item, yaml.ScalarNode) for item in node.value):
        for index, item in enumerate(node.value):
            yield from _flat(item, f"{key}[{index}]", item.start_mark.line + 1, construct)
    elif isinstance(node, yaml.SequenceNode):
        yield key, Setting([construct(item) for item in node.value], line)
    else:
        yield key, Setting({} if isinstance(node, yaml.MappingNode) else construct(node), line)


def _yaml_scalar(node: Any) -> Any:
    import yaml

    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    finally:
        loader.dispose()


def _json_scalar(node: Any) -> Any:
    return node.value if node.style == '"' else json.loads(node.value)


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    kind = bool if isinstance(value, bool) else float if isinstance(value, (int, float)) else type(value)
    return (kind.__name__, str(value) if value != value else value)


def _plain(text: str) -> bool:
    import yaml

    node = yaml.SafeLoader("")
    try:
        return bool(text) and node.resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"
    finally:
        node.dispose()


def changes(
    before: Mapping[str, Setting], after: Mapping[str, Setting]
) -> Iterator[tuple[str, Setting | None, Setting | None]]:
    """(key, old, new) of every key whose meaning differs."""
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or not old.same(new):
            yield key, old, new

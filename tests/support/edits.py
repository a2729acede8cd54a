"""Carries out lint's remedies: the edits that it prints as data, on a repository in a temporary folder."""

from __future__ import annotations

import shutil
from typing import Any

from triton_repo.lint.pbtext import Node, Text
from triton_repo.lint.remedies import Edit, Place, Remedy

_MARK = "\ufeff"


def carry_out(remedy: Remedy) -> None:
    """Apply every edit of a remedy to the files that it names, in their order; spliced places count from before."""
    spliced = sorted((e for e in remedy.edits if e.action == "splice"), key=lambda e: e.place or (), reverse=True)
    for edit in (*(e for e in remedy.edits if e.action != "splice"), *spliced):
        assert edit.file is not None and edit.place is not None, edit
        if edit.action == "move":
            edit.file.rename(edit.value)
        elif edit.action == "remove":
            shutil.rmtree(edit.file) if edit.file.is_dir() else edit.file.unlink()
        else:
            text = edit.file.read_text(encoding="utf-8")
            edit.file.write_text(edited(edit.file.suffix, text, edit), encoding="utf-8")


def edited(suffix: str, text: str, edit: Edit) -> str:
    """The text of a file after one edit."""
    place = edit.place or ()
    if edit.action == "unmark":
        return text.removeprefix(_MARK)
    if suffix in (".yaml", ".json"):
        return _settings(text, edit, suffix == ".json")
    mark = _MARK if text.startswith(_MARK) else ""
    body = text.removeprefix(_MARK)
    if edit.action == "splice":
        start, end = place
        assert isinstance(start, int) and isinstance(end, int)
        return mark + body[:start] + edit.value + body[end:]
    if edit.action == "drop":
        return mark + _drop(body, place)
    if edit.action == "rename":
        node = Text(body).find(*place)
        assert node is not None, place
        return mark + body[: node.start] + edit.value + body[node.start + len(node.name) :]
    return mark + _put(body, place, edit.value)


# configurations ---------------------------------------------------------------------------------------
def _put(text: str, place: Place, value: str) -> str:
    tree = Text(text)
    found = tree.find(*place)
    if found is not None:
        if isinstance(place[-1], int) or "=" in str(place[-1]):
            return text[: found.value_start] + value + text[found.value_end :]
        statement = f"{found.name} {value}" if value.startswith("{") else f"{found.name}: {value}"
        others = [n for n in _around(tree, place).all(found.name) if n.start != found.start]
        for other in sorted(others, key=lambda n: n.start, reverse=True):
            if other.start > found.end:  # a repeated field that stands several times
                text = text[: other.start] + text[other.end :]
        return text[: found.start] + statement + text[found.end :]
    return _made(text, place, value)


def _made(text: str, place: Place, value: str) -> str:
    """The statement where there is none: in the nearest message around it that there is."""
    tree = Text(text)
    selector = next((i for i, part in enumerate(place) if "=" in str(part) and not isinstance(part, int)), None)
    if selector is not None and tree.find(*place[: selector + 1]) is None:
        name, entry = str(place[selector - 1]), str(place[selector])
        key, _, text_of = entry.partition("=")
        rest = place[selector + 1 :]
        body = value if not rest else f'{{ {key}: "{text_of}" {_nested(rest, value)} }}'
        return _insert(text, tree, place[: selector - 1], f"{name} {body}")
    length = max(n for n in range(len(place)) if n == 0 or tree.find(*place[:n]) is not None)
    return _insert(text, tree, place[:length], _nested(place[length:], value))


def _nested(place: Place, value: str) -> str:
    names = [part for part in place if isinstance(part, str)]
    inner = f"{names[-1]} {value}" if value.startswith("{") else f"{names[-1]}: {value}"
    for name in reversed(names[:-1]):
        inner = f"{name} {{ {inner} }}"
    return inner


def _insert(text: str, tree: Text, place: Place, statement: str) -> str:
    if not place:
        return text + ("" if text.endswith("\n") or not text else "\n") + statement + "\n"
    node = tree.find(*place)
    assert node is not None and node.kind == "message", place
    return text[: node.value_start + 1] + f" {statement} " + text[node.value_start + 1 :]


def _around(tree: Text, place: Place) -> Node:
    node = tree.find(*place[:-1]) if len(place) > 1 else tree.root
    assert node is not None
    return node


def _drop(text: str, place: Place) -> str:
    tree = Text(text)
    node = tree.find(*place)
    assert node is not None, place
    parent = next(
        n for n in (tree.root, *(child for _, _, child in tree.root.walk())) if any(c is node for c in n.children)
    )
    element = isinstance(place[-1], int) or "=" in str(place[-1])
    together = [n for n in parent.all(node.name) if n.start == node.start]
    if not element or len(together) == 1:
        return text[: node.start] + text[node.end :]
    index = next(i for i, n in enumerate(together) if n is node)
    if index + 1 < len(together):
        return text[: node.value_start] + text[together[index + 1].value_start :]
    return text[: together[index - 1].value_end] + text[node.value_end :]


# model.yaml and model.json ------------------------------------------------------------------------------
def _settings(text: str, edit: Edit, is_json: bool) -> str:
    place = edit.place or ()
    root = _root(text)
    if edit.action == "put":
        return _put_key(text, root, place, edit.value, is_json)
    key, value, mapping = _pair(root, place)
    if edit.action == "rename":
        name = f'"{edit.value}"' if is_json else edit.value
        return text[: key.start_mark.index] + name + text[key.end_mark.index :]
    pairs = mapping.value
    at = next(i for i, (k, _) in enumerate(pairs) if k is key)
    if mapping.flow_style:
        if at + 1 < len(pairs):
            return text[: key.start_mark.index] + text[pairs[at + 1][0].start_mark.index :]
        start = pairs[at - 1][1].end_mark.index if at else key.start_mark.index
        return text[:start] + text[value.end_mark.index :]
    lines = text.split("\n")
    first = key.start_mark.line
    column, last = key.start_mark.column, first
    while last + 1 < len(lines) and (
        not lines[last + 1].strip()
        or len(lines[last + 1]) - len(lines[last + 1].lstrip()) > column
        or (lines[last + 1].lstrip().startswith("- ") and lines[last + 1].index("-") == column)
    ):
        last += 1
    return "\n".join([*lines[:first], *lines[last + 1 :]])


def _root(text: str) -> Any:
    import yaml

    return yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)  # JSON may be indented by tabs


def _pair(root: Any, place: Place) -> tuple[Any, Any, Any]:
    node, found = root, None
    for part in place:
        found = next((k, v, node) for k, v in node.value if k.value == part)
        node = found[1]
    assert found is not None, place
    return found


def _put_key(text: str, root: Any, place: Place, value: str, is_json: bool) -> str:
    import yaml

    node = root
    for depth, part in enumerate(place):
        if isinstance(part, int):
            node = node.value[part]
            continue
        is_mapping = isinstance(node, yaml.MappingNode)
        inner = next((v for k, v in node.value if k.value == part), None) if is_mapping else None
        if inner is None:
            statement = value
            for name in reversed(place[depth + 1 :]):
                statement = f'{{"{name}": {statement}}}'
            return _new_key(text, node, str(part), statement, is_json, root)
        node = inner
    end = node.end_mark.index
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        end = node.start_mark.index + len(text[node.start_mark.index : end].rstrip())
        start = text.rindex(":", 0, node.start_mark.index) + 1
        return text[:start] + f" {value}" + text[end:]
    lead = "" if node.start_mark.index == 0 or text[node.start_mark.index - 1] in " [{" else " "
    return text[: node.start_mark.index] + lead + value + text[end:]


def _new_key(text: str, node: Any, name: str, value: str, is_json: bool, root: Any) -> str:
    import yaml

    statement = f'"{name}": {value}' if is_json else f"{name}: {value}"
    if not isinstance(node, yaml.MappingNode):  # a section that is there and empty
        return text[: node.start_mark.index] + f" {{{statement}}}" + text[node.end_mark.index :]
    if node.flow_style:
        start = node.start_mark.index + 1
        return text[:start] + statement + (", " if node.value else "") + text[start:]
    if node is root:
        return text + ("" if text.endswith("\n") or not text else "\n") + statement + "\n"
    first = node.value[0][0].start_mark
    return text[: first.index] + statement + "\n" + " " * first.column + text[first.index :]

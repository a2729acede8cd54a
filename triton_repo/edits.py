"""Edits of protobuf text by position: comments, order and spacing of what is not edited stay as they are."""

from __future__ import annotations

from triton_repo.lint.pbtext import Node, Text


class Editor:
    """Collects edits of one text and applies them together."""

    def __init__(self, text: str) -> None:
        self.text = Text(text)
        self._edits: list[tuple[int, int, str]] = []

    @property
    def changed(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self._edits)

    def value(self, node: Node, new: str) -> None:
        """Put ``new`` in place of a plain value; text keeps its quotes."""
        end = node.value_start + len(node.text)
        quoted = f'"{new}"' if node.kind == "string" else new
        self._edits.append((node.value_start, end, quoted))

    def drop(self, node: Node, comment: str) -> None:
        """Take a statement out, with a comment in its place."""
        self._edits.append((node.start, node.end, f"# {comment}\n"))

    def append(self, lines: str) -> None:
        """Add statements at the end."""
        end = len(self.text.text)
        before = "" if self.text.text.endswith("\n") or not self.text.text else "\n"
        self._edits.append((end, end, before + lines))

    def apply(self) -> str:
        """The edited text."""
        pieces, last = [], 0
        for start, end, new in sorted(self._edits):
            if start < last:
                continue  # inside a statement that is gone already
            pieces += [self.text.text[last:start], new]
            last = end
        return "".join([*pieces, self.text.text[last:]])

    # the shapes that upgrades need -----------------------------------------------------------------
    def parameter(self, name: str) -> Node | None:
        """The statement of a parameter."""
        return self.text.find("parameters", f"key={name}")

    def tensors(self, side: str) -> list[Node]:
        """The ``name`` values of inputs or outputs."""
        found = [node.first("name") for node in self.text.root.all(side)]
        return [node for node in found if node is not None]

    def steps(self, model: str) -> list[Node]:
        """The steps of an ensemble that ask ``model``."""
        scheduling = self.text.find("ensemble_scheduling")
        steps = scheduling.all("step") if scheduling is not None else []
        return [s for s in steps if (name := s.first("model_name")) is not None and name.string() == model]


def parameter_text(name: str, value: str) -> str:
    """A parameter as NVIDIA's templates write it."""
    return f'parameters: {{\n  key: "{name}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'

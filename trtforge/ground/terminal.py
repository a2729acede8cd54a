"""Texts of files and arguments on a terminal: no secret, and no character that steers it.

Policy: a name in ``config.json`` or an argument may hold escape sequences, which a terminal would obey: clear the
screen, rename the window, write over what stands there. Control characters except the line feed and the tab,
and the characters that turn the direction of writing, are shown as ``\\uXXXX``. That is also their escape in JSON,
so that a JSON text stays one.
"""

from __future__ import annotations

import re

from trtforge.ground.redaction import redact

#: C0 without tab and line feed, DEL, C1, and the marks that reorder text (Unicode UAX #9)
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def _shown(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"


def visible(text: str) -> str:
    """``text`` with steering characters as ``\\uXXXX``."""
    return _STEERING.sub(_shown, text)


def printable(text: str) -> str:
    """``text`` without secrets and without steering characters."""
    return visible(redact(text))


def one_line(text: str) -> str:
    """:func:`printable` for a cell of a table: line feeds and tabs are shown too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")

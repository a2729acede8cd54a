"""Ways to change what is valid: a JSON document at its places, bytes anywhere, text by its pieces."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from tests.support.damage import GONE, ODD, changed

#: numbers at which sizes, offsets and signs turn over
EDGES = (
    0, 1, -1, 7, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63,
    2**64 - 1,
)  # fmt: skip
_DEEP = re.compile(rb'"<deep (\d+)>"')


def document(draw: random.Random, value: Any, most: int = 3) -> Any:
    """``value`` with one to ``most`` of its places changed."""
    for _ in range(draw.randint(1, most)):
        places = list(_places(value))
        at = draw.choice(places)
        value = changed(value, at, _other(draw, _at(value, at)))
        if not isinstance(value, (dict, list)) or not value:
            break
    return value


def data(draw: random.Random, value: bytes, within: int | None = None) -> bytes:
    """``value`` with some bytes changed, mostly before ``within``."""
    changing = bytearray(value)
    for _ in range(draw.choice((1, 1, 2, 8, 40))):
        end = min(within or len(changing), len(changing))
        at = draw.randrange(max(1, end))
        kind = draw.randrange(6)
        if kind == 0 and changing:
            changing[min(at, len(changing) - 1)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            width = draw.choice((1, 2, 4, 8))
            changing[at : at + width] = (draw.choice(EDGES) % 2 ** (8 * width)).to_bytes(width, "little")
        elif kind == 2:
            changing[at:at] = draw.randbytes(draw.choice((1, 4, 32)))
        elif kind == 3:
            del changing[at : at + draw.choice((1, 4, 32))]
        elif kind == 4:
            other = draw.randrange(max(1, end))
            changing[at : at + 16] = changing[other : other + 16]
        else:
            del changing[draw.randrange(max(1, len(changing))) :]
    return bytes(changing)


def safetensors_header(draw: random.Random, value: bytes) -> bytes:
    """A safetensors file whose header is changed, with the length that it then has."""
    size = int.from_bytes(value[:8], "little")
    header = dumped(draw, document(draw, json.loads(value[8 : 8 + size])))
    return len(header).to_bytes(8, "little") + header + value[8 + size :]


def text(draw: random.Random, value: str, pieces: tuple[str, ...]) -> str:
    """``value`` with pieces of a language put in, cut out, repeated and moved."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(value) + 1)
        end = min(len(value), at + draw.choice((1, 3, 12, 60)))
        kind = draw.randrange(5)
        if kind <= 1:
            value = value[:at] + draw.choice(pieces) + value[at:]
        elif kind == 2:
            value = value[:at] + value[end:]
        elif kind == 3:
            value = value[:at] + value[at:end] * draw.choice((2, 50)) + value[end:]
        else:
            other = draw.randrange(len(value) + 1)
            value = value[:at] + value[other : other + 20] + value[end:]
    return value


def dumped(draw: random.Random, value: Any) -> bytes:
    """A changed JSON document as bytes, now and then with its bytes changed too."""
    raw = json.dumps(value).encode()
    # nested deeper than json.dumps itself can go
    raw = _DEEP.sub(lambda match: b"[" * int(match[1]) + b"]" * int(match[1]), raw)
    return data(draw, raw) if draw.random() < 0.2 else raw


def _other(draw: random.Random, old: Any) -> Any:
    kind = draw.randrange(8)
    if kind <= 2:
        return draw.choice(ODD)
    if kind == 3:
        return draw.choice(EDGES)
    if kind == 4 and isinstance(old, (int, float)) and not isinstance(old, bool):
        return draw.choice((old + 1, old - 1, old * 2, old * 1000, -old, float(old), str(old)))
    if kind == 5 and isinstance(old, str):
        return draw.choice((old + "x", old[:-1], old.upper(), "../" + old, old * 1000, old + "\n", f"/{old}"))
    if kind == 6 and isinstance(old, list):
        return draw.choice((old * 2, old[1:], old[::-1], [old], old[:1] * 1000))
    if kind == 7:
        return f"<deep {draw.choice((40, 900, 5000))}>"
    return GONE


def _places(value: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while waiting and len(waiting) < 20000:
        at, inner = waiting.pop()
        if len(at) > 12:
            continue
        items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        for key, item in items:
            yield (*at, key)
            if isinstance(item, (dict, list)):
                waiting.append(((*at, key), item))


def _at(value: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        value = value[key]
    return value

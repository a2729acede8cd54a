"""What a drafter's folder says of the target that it was made for: in its record, and in speculators' configuration.

A record (``trtforge_draft.json``) names its target's tokenizer twice: by the hash of its file, and by the hash of the
ids that it gives to fixed texts. A file that was written anew has another hash and the same ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.drafting.findings import DraftFinding
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_bytes_file, read_json_object

#: beside a drafter that trtforge made or converted: where it came from
RECORD = "trtforge_draft.json"
#: texts whose token ids tell tokenizers apart: words, code, digits, spaces, other scripts
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x  # 12345.678e-9\n",
    "  leading, trailing  \t\n\n",
    "Größe, naïve, 東京, Привет, مرحبا, 🙂",
    '{"a": [1, 2, {"b": null}]}',
)
_OWN = "the drafter that was trained for this very target"


def tokenizer_identity(folder: Path) -> dict[str, str] | None:
    """The hash of a folder's tokenizer.json and of the ids that it gives to :data:`PROBES`; None where none is read."""
    text = tokenizer_text(folder)
    ids = probe_ids(text) if text is not None else None
    if text is None or ids is None:
        return None
    return {"sha256": hashlib.sha256(text).hexdigest(), "probes": hashlib.sha256(json.dumps(ids).encode()).hexdigest()}


def tokenizer_text(folder: Path) -> bytes | None:
    """tokenizer.json as it lies there; None where there is none of a sensible size."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        return read_bytes_file(path, MAX_TOKENIZER_BYTES)
    except (OSError, ValueError):
        return None


def probe_ids(text: bytes) -> list[list[int]] | None:
    """The ids of every probe; None for a tokenizer.json that the library does not read."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(text)
    except Exception:  # the library raises bare Exception for a file that it cannot read, which intake refuses
        return None
    return [tokenizer.encode(probe).ids for probe in PROBES]


def tokenizers_differ(one: Path, other: Path) -> str | None:
    """What two folders' tokenizers do differently: a probe, or a token with two ids; None where they behave alike.

    A folder without a tokenizer, or with one that cannot be read, says nothing.
    """
    texts = [tokenizer_text(folder) for folder in (one, other)]
    if None in texts or texts[0] == texts[1]:
        return None
    ids = [probe_ids(text) for text in texts if text is not None]
    if ids[0] is None or ids[1] is None:
        return None
    rows = zip(PROBES, ids[0], ids[1], strict=True)
    probe = next((text for text, here, there in rows if here != there), None)
    if probe is not None:
        return f"{probe!r} has other token ids"
    first, second = (_vocabulary(text) for text in texts if text is not None)
    token = next((name for name in sorted(first) if name in second and first[name] != second[name]), None)
    return f"{token!r} is {first[token]} and {second[token]}" if token is not None else None


def _vocabulary(text: bytes) -> dict[str, int]:
    from tokenizers import Tokenizer

    vocabulary: dict[str, int] = Tokenizer.from_buffer(text).get_vocab(with_added_tokens=True)
    return vocabulary


def statement_findings(
    folder: Path, config: Mapping[str, Any], target: Path, model: Mapping[str, Any]
) -> list[DraftFinding]:
    """What a drafter says of its target, and the folder ``target`` with the configuration ``model`` is not."""
    return [*_verifier(config, model), *_tokenizer(folder, target)]


def _verifier(config: Mapping[str, Any], model: Mapping[str, Any]) -> list[DraftFinding]:
    """speculators' ``verifier``: the architectures that the head was trained beside."""
    section = config.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, Mapping) else None
    said = verifier.get("architectures") if isinstance(verifier, Mapping) else None
    parts = [model, *(model[name] for name in ("text_config", "llm_config") if isinstance(model.get(name), Mapping))]
    given = [str(name) for part in parts for name in part.get("architectures") or ()]
    if not isinstance(said, list) or not said or not given or set(map(str, said)) & set(given):
        return []
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return [
        DraftFinding(
            "TF-DRF-031",
            f"the drafter was made for {name or 'a target'} of the class {said[0]}, the target is a {given[0]}",
            numbers={"verifier": [str(item) for item in said], "target": given},
            why="A drafter reads the states of one model; those of another class are noise to it.",
            remedies=[_OWN],
        )
    ]


def _tokenizer(folder: Path, target: Path) -> list[DraftFinding]:
    """The record's tokenizer against the target's: by the file, then by what it does."""
    said = (recorded_target(folder) or {}).get("tokenizer")
    if not isinstance(said, Mapping):
        return []
    here = tokenizer_identity(target)
    if here is None or said.get("sha256") == here["sha256"] or said.get("probes") == here["probes"]:
        return []
    return [
        DraftFinding(
            "TF-DRF-032",
            "the drafter was made for a target with another tokenizer",
            numbers={"made_for": str(said.get("sha256"))[:16], "target": here["sha256"][:16]},
            why="Neither the file nor the ids of the probes are those that its record names; the drafter continues the "
            "target's ids, and under another tokenizer they are other words.",
            remedies=[_OWN],
        )
    ]


def recorded_target(folder: Path) -> dict[str, Any] | None:
    """What a drafter's record says of its target; None without one."""
    if not (folder / RECORD).is_file():
        return None
    try:
        target = read_json_object(folder / RECORD).get("target")
    except (OSError, ValueError):
        return None
    return dict(target) if isinstance(target, Mapping) else None

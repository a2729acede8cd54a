"""Text for calibration and evaluation: built in, from a file beside the recipe, or a dataset by name.

Policy: the two roles never share text. A corpus is cut into paragraphs, every paragraph is kept once
(first place wins), and the first half by characters is for calibration, the rest for evaluation; so a
paragraph that a model was calibrated on cannot be scored, whatever the source repeats. Order is fixed,
and the SHA-256 of the slice is part of every summary. Too little text is refused with the numbers,
never repeated to fill.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.panics import panics_as
from trtforge.recipe.sources import file_beside

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Role = Literal["calibration", "evaluation"]
BUILTIN = ("python-topics",)


@dataclass(frozen=True)
class Corpus:
    """One role's slice of a corpus.

    Attributes:
        name: as the recipe wrote it.
        role: which half this is.
        sha256: of ``text`` as UTF-8.
        text: the slice, paragraphs separated by blank lines.
    """

    name: str
    role: Role
    sha256: str
    text: str


def load_corpus(spec: str, base_dir: Path, role: Role) -> Corpus:
    """The slice of ``spec`` for ``role``.

    Args:
        spec: ``builtin:NAME``, ``file:PATH`` (text, or JSON lines with a ``text`` field) or
            ``hf:DATASET[:CONFIG][@SPLIT]``.
        base_dir: the recipe's folder; files must lie inside it.
        role: ``calibration`` or ``evaluation``.

    Raises:
        ForgeError: ``TF-QNT-020`` unknown corpus, ``TF-QNT-021`` file missing or outside the folder,
            ``TF-QNT-022`` unreadable content, ``TF-QNT-023`` a dataset that cannot be loaded.
    """
    kind, _, rest = spec.partition(":")
    if kind == "builtin" and rest in BUILTIN:
        return _slice(spec, role, _python_topics())
    if kind == "file" and rest:
        return _slice(spec, role, _file_paragraphs(spec, Path(base_dir)))
    if kind == "hf" and rest:
        return _slice(spec, role, _dataset_paragraphs(spec, rest))
    raise ForgeError(
        "TF-QNT-020",
        f"Unknown corpus {spec!r}",
        asked=spec,
        numbers={"builtin": list(BUILTIN)},
        why="A corpus is builtin:NAME, file:PATH or hf:DATASET[:CONFIG][@SPLIT].",
        remedies=[f"builtin:{name}" for name in BUILTIN] + ["file:my-text.txt"],
    )


def _slice(name: str, role: Role, paragraphs: list[str]) -> Corpus:
    unique = list(dict.fromkeys(paragraphs))
    half, seen, cut = sum(map(len, unique)) / 2, 0, 0
    for cut, paragraph in enumerate(unique):  # noqa: B007 (cut is the result)
        if seen >= half:
            break
        seen += len(paragraph)
    text = "\n\n".join(unique[:cut] if role == "calibration" else unique[cut:])
    return Corpus(name, role, hashlib.sha256(text.encode()).hexdigest(), text)


def _paragraphs(text: str) -> list[str]:
    parts = (part.strip("\n") for part in text.replace("\r\n", "\n").split("\n\n"))
    return [part for part in parts if part.strip()]


def _python_topics() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise EnvironmentLacks(
            "TF-QNT-024",
            "This Python comes without its help topics",
            asked="builtin:python-topics",
            why="The built-in corpus is the text of CPython's module pydoc_data.topics.",
            remedies=["apt-get install libpython3-stdlib", "Use a file: corpus"],
        ) from error
    return [part for name in sorted(topics) for part in _paragraphs(topics[name])]


def _file_paragraphs(spec: str, base_dir: Path) -> list[str]:
    try:
        path = file_beside(spec, base_dir)
    except ValueError as error:
        raise ForgeError(
            "TF-QNT-021",
            f"The corpus file cannot be read: {error}",
            asked=spec,
            numbers={"looked_in": str(base_dir.resolve())},
            why="Paths are relative to the recipe and may not leave its folder, so that it can be moved and audited.",
            remedies=[f"Put the file at {Path(spec).name} beside the recipe", f"builtin:{BUILTIN[0]}"],
        ) from None
    try:
        text = path.read_text(encoding="utf-8")
        return _json_lines(text) if path.suffix == ".jsonl" else _paragraphs(text)
    except (UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-QNT-022",
            "The corpus file cannot be read as text",
            asked=spec,
            numbers={"error": str(error)[:200]},
            why="A corpus is UTF-8 text, or (.jsonl) one JSON object a line with a string field 'text'.",
            remedies=["Convert the file to UTF-8", 'Write lines such as {"text": "..."}'],
        ) from error


def _json_lines(text: str) -> list[str]:
    parts: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            value = json.loads(line)["text"]
            if not isinstance(value, str):
                raise TypeError(f"line {number}: 'text' is no string")
            parts += _paragraphs(value)
    return parts


def _dataset_paragraphs(spec: str, rest: str) -> list[str]:
    name, _, split = rest.partition("@")
    dataset, _, config = name.partition(":")
    split = split or "train"
    try:
        import datasets
    except ImportError as error:
        raise EnvironmentLacks(
            "TF-QNT-023",
            "The datasets library does not load here",
            asked=spec,
            numbers={"error": str(error)[:200]},
            why="hf: corpora are read by it.",
            remedies=["pip install 'datasets>=4,<5' 'pyarrow<24'", f"builtin:{BUILTIN[0]}", "file:my-text.txt"],
        ) from error
    try:
        rows = datasets.load_dataset(dataset, config or None, split=split, streaming=True)
        return _first_rows(rows)
    except Exception as error:  # the library raises its own, requests' and fsspec's kinds
        raise EnvironmentLacks(
            "TF-QNT-023",
            f"Dataset {dataset} cannot be loaded",
            asked=spec,
            numbers={"error": f"{type(error).__name__}: {error}"[:300], "split": split},
            why="The machine is offline, or the dataset, its configuration or its split is not there or needs a login.",
            remedies=[
                f"Write it as hf:{dataset}:CONFIG@SPLIT with names that exist",
                "Log in with `hf auth login` if it is gated",
                f"Without a network: builtin:{BUILTIN[0]}, or save the text beside the recipe and use file:PATH",
            ],
        ) from error


def _first_rows(rows: Iterable[dict[str, Any]], limit: int = 4_000_000) -> list[str]:
    """Paragraphs of the first rows, up to ``limit`` characters: enough for any calibration and evaluation."""
    parts: list[str] = []
    size = 0
    for row in rows:
        found = _paragraphs(str(row["text"]))
        parts += found
        size += sum(map(len, found))
        if size >= limit:
            break
    return parts


# --- tokens -------------------------------------------------------------------------------------


def load_tokenizer(directory: Path) -> Tokenizer:
    """The checkpoint's ``tokenizer.json``, without truncation or padding.

    Raises:
        ForgeError: ``TF-QNT-025`` when it is missing or does not load.
    """
    from tokenizers import Tokenizer

    path = Path(directory) / "tokenizer.json"
    try:
        with panics_as(ValueError):
            tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises plain Exception
        raise _unusable(str(error), str(path)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _unusable(why: str, path: str = "tokenizer.json") -> ForgeError:
    return ForgeError(
        "TF-QNT-025",
        "The checkpoint's tokenizer does not load, or not work on the corpus",
        asked=path,
        numbers={"error": why[:200]},
        why="Text is turned into tokens by the tokenizer that travels with the checkpoint.",
        remedies=["Run intake on the model again", "Put the model's tokenizer.json beside its weights"],
    )


def corpus_tokens(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """All tokens of the slice, int64 [n], without special tokens."""
    with panics_as(_unusable):
        return np.asarray(tokenizer.encode(corpus.text, add_special_tokens=False).ids, dtype=np.int64)


def take_tokens(corpus: Corpus, tokenizer: Tokenizer, count: int) -> np.ndarray:
    """The first ``count`` tokens of the slice, int64 [count].

    Raises:
        ForgeError: ``TF-QNT-026`` when the slice is shorter.
    """
    tokens = corpus_tokens(corpus, tokenizer)
    if len(tokens) < count:
        raise too_short(corpus, wanted=count, have=len(tokens), fits=[f"tokens: {len(tokens)}"])
    return tokens[:count]


def too_short(corpus: Corpus, *, wanted: int, have: int, fits: list[str]) -> ForgeError:
    """The refusal of a slice with too few tokens; ``fits`` are settings that would work."""
    return ForgeError(
        "TF-QNT-026",
        f"The {corpus.role} corpus is too short",
        asked=corpus.name,
        numbers={"tokens_wanted": wanted, "tokens_available": have, "characters": len(corpus.text)},
        why="Text is never repeated to fill a request: the figures would look better founded than they are.",
        remedies=[*fits, "Give a longer corpus"],
    )


def calibration_batch(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    samples: int,
    sequence_length: int,
    seed: int,
    max_positions: int | None,
) -> np.ndarray:
    """Calibration prompts, int64 [samples, sequence_length]: whole windows of the slice, chosen by ``seed``.

    Raises:
        ForgeError: ``TF-QNT-027`` when a prompt is longer than the model's context, ``TF-QNT-026`` when
            the slice holds fewer windows than samples.
    """
    if max_positions is not None and sequence_length > max_positions:
        raise ForgeError(
            "TF-QNT-027",
            "Calibration prompts are longer than the model's context",
            asked=f"quantize.calibration.sequence_length: {sequence_length}",
            numbers={"sequence_length": sequence_length, "max_position_embeddings": max_positions},
            why="Positions past the context give activations that the model never sees when it serves.",
            remedies=[f"quantize.calibration.sequence_length: {min(512, max_positions)}"],
        )
    tokens = corpus_tokens(corpus, tokenizer)
    windows = len(tokens) // sequence_length
    if windows < samples:
        fits = []
        if windows:
            fits.append(f"quantize.calibration.samples: {windows} (at {sequence_length} tokens each)")
        if len(tokens) >= samples:
            fits.append(f"quantize.calibration.sequence_length: {len(tokens) // samples} (for {samples} samples)")
        raise too_short(corpus, wanted=samples * sequence_length, have=len(tokens), fits=fits)
    chosen = sorted(random.Random(seed).sample(range(windows), samples))
    return np.stack([tokens[i * sequence_length : (i + 1) * sequence_length] for i in chosen])

"""K15, K17: the tokenizer beside the weights, and the tokens at which answers end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.sources import TURN_ENDS, SourceFiles
from trtforge.rules.sources import thread
from trtforge.templates.other_tokenizers import other_tokenizers, tokenizer_remedies
from trtforge.templates.template_places import PlacedTemplate


def _asked(facts: Facts) -> str:
    return f"model.source: {facts.recipe.model.source}"


#: names of models that were trained on chats
_CHAT_NAME = re.compile(r"(?:^|[-_./])(?:instruct|chat|it|sft|dpo|assistant)(?:$|[-_.@/])", re.IGNORECASE)


def _open_turn(facts: Facts) -> tuple[str, dict[str, int], PlacedTemplate] | None:
    """The token that ends a turn, the ids of all such tokens and the template, where none of them ends an answer."""
    files = facts.files
    template = files.chat_template if files is not None else None
    if files is None or template is None:
        return None
    ids = {
        token: files.added_tokens[token]
        for token in TURN_ENDS
        if token in template.text and token in files.added_tokens
    }
    if not ids or any(number in files.eos_ids() for number in ids.values()):
        return None
    return next(iter(ids)), ids, template


def _is_chat_model(facts: Facts, turn_ends: Iterable[str]) -> bool:
    """Whether the checkpoint says that it was trained on chats: by a name of it, or by the tokenizer's end token.

    Base models ship the template of their Instruct sisters, and end their texts with another token on purpose.
    """
    files = facts.files
    if files is None:
        return False
    end = files.tokenizer_config.get("eos_token")
    end = end.get("content") if isinstance(end, dict) else end
    names = (facts.recipe.model.source, str(files.config.get("_name_or_path") or ""))
    return end in tuple(turn_ends) or any(_CHAT_NAME.search(name) for name in names)


def _turn_violation(facts: Facts, found: tuple[str, dict[str, int], PlacedTemplate], *ways: str) -> Violation:
    token, ids, template = found
    eos = list(facts.files.eos_ids()) if facts.files is not None else []
    return Violation(
        f"the chat template ({template.place}) ends turns with {token} (id {ids[token]}), the end tokens are {eos}",
        _asked(facts),
        {"turn_ends": ids, "eos_token_id": eos, "place": template.place},
        by_hand(
            *ways,
            f"eos_token_id {[*eos, ids[token]]} in generation_config.json of the checkpoint",
            f"send {token} as a stop word with every chat request",
        ),
    )


@rule("TF-K15-001", "answers that do not end at the end of a turn", thread("VL#4180"), needs=("files",))
def turns_end(facts: Facts) -> Iterator[Violation]:
    """The chat template ends a turn with a token that is no end token: answers run on to their limit, and the model
    goes on with the next speaker."""
    found = _open_turn(facts)
    if found is not None and _is_chat_model(facts, found[1]):
        yield _turn_violation(facts, found)


@rule(
    "TF-K15-003",
    "a chat template beside what looks like a base model",
    "https://huggingface.co/Qwen/Qwen2.5-7B",
    severity="warning",
    needs=("files",),
)
def base_models_do_not_chat(facts: Facts) -> Iterator[Violation]:
    """Base models are published with the template of their Instruct sisters; they end texts with their own token, know
    no turns, and answer chats poorly. Answers to chats run on unless the turn's end is a stop word."""
    found = _open_turn(facts)
    if found is not None and not _is_chat_model(facts, found[1]):
        yield _turn_violation(
            facts, found, "send plain prompts to a base model (waive this)", "the Instruct checkpoint, to serve chats"
        )


@rule("TF-K15-002", "a model that names no end token", thread("TB#47"), needs=("model",))
def end_token_named(facts: Facts) -> Iterator[Violation]:
    """Without one every answer runs to its length limit, and the server's end_id has no value."""
    if not facts.require_model().eos_token_ids:
        yield Violation(
            "neither config.json nor generation_config.json names an end token",
            _asked(facts),
            {"eos_token_ids": []},
            by_hand("set eos_token_id in generation_config.json of the checkpoint"),
        )


@rule("TF-K17-001", "no tokenizer in the checkpoint", thread("TB#109"), needs=("files",), waivable=False)
def tokenizer_is_there(facts: Facts) -> Iterator[Violation]:
    """Tokenizer and weights belong together: with another one the model reads and writes the wrong words."""
    files = facts.files
    if files is None or files.has("tokenizer.json"):
        return
    slow = other_tokenizers(files.has)
    yield Violation(
        "the checkpoint has no tokenizer.json" + (f", only {', '.join(slow)}" if slow else ""),
        _asked(facts),
        {"folder": str(files.folder), "found": slow},
        by_hand(*tokenizer_remedies(slow)),
    )


@rule("TF-K17-002", "a tokenizer that is Python code", thread("TL#1859"), needs=("files",))
def tokenizer_is_data(facts: Facts) -> Iterator[Violation]:
    """Such code runs with the server's rights, and the native tokenizers cannot run it at all."""
    files = facts.files
    if files is not None and files.tokenizer_config.get("auto_map") and not facts.recipe.model.allow_remote_code:
        yield Violation(
            "tokenizer_config.json names code of the checkpoint (auto_map)",
            _asked(facts),
            {"auto_map": str(files.tokenizer_config["auto_map"])},
            by_hand("a revision that ships tokenizer.json", "read the code, then set model.allow_remote_code: true"),
        )


def _overrun(files: SourceFiles, rows: int) -> int | None:
    largest = files.largest_token
    return largest if largest is not None and largest >= rows else None


@rule("TF-K17-003", "tokens without a row in the embedding", thread("TB#197"), needs=("model", "files"), waivable=False)
def tokens_have_rows(facts: Facts) -> Iterator[Violation]:
    """A prompt with such a token reads behind the embedding: a crash on a GPU, or another token's meaning."""
    files, model = facts.files, facts.require_model()
    largest = _overrun(files, model.vocab) if files is not None else None
    if largest is not None:
        yield Violation(
            f"tokenizer.json reaches id {largest}, the embedding has {model.vocab} rows",
            _asked(facts),
            {"largest_id": largest, "embedding_rows": model.vocab, "rows_needed": largest + 1},
            by_hand(
                "download tokenizer.json and weights of one revision again",
                f"resize the embedding to {largest + 1} rows (model.resize_token_embeddings) and train the new ones",
            ),
        )


@rule("TF-K17-004", "two tokenizers that disagree", thread("TL#1859"), severity="warning", needs=("files",))
def special_tokens_agree(facts: Facts) -> Iterator[Violation]:
    """Servers that load the slow tokenizer read other ids than those that load tokenizer.json."""
    files = facts.files
    if files is None:
        return
    listed = files.tokenizer_config.get("added_tokens_decoder")
    if not isinstance(listed, dict) or not files.added_tokens:
        return
    differ = {
        str(row.get("content")): (files.added_tokens[str(row.get("content"))], int(key))
        for key, row in listed.items()
        if isinstance(row, dict)
        and key.isdigit()
        and row.get("content") in files.added_tokens
        and files.added_tokens[str(row.get("content"))] != int(key)
    }
    if differ:
        token, (one, other) = next(iter(differ.items()))
        yield Violation(
            f"{token} is {one} in tokenizer.json and {other} in tokenizer_config.json",
            _asked(facts),
            {"tokens": {name: list(ids) for name, ids in list(differ.items())[:8]}},
            by_hand("download tokenizer.json and tokenizer_config.json of one revision again"),
        )

"""tokenizer.json, tokenizer_config.json and the chat template out of GGUF metadata.

Policy: a GGUF names its splitting rule (``tokenizer.ggml.pre``) and the vocabulary alone does not determine it. Each
known rule is a row below and is rebuilt exactly; an unknown one is refused (``TF-SRC-015``) because a model whose
text is split differently from its training still answers, only worse.

Sources: llama.cpp src/llama-vocab.cpp (regular expressions by name); the tokenizer.json files of the models that use
each rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantize.intake.gguf_header import GgufHeader
from quantize.intake.tokenizer import check_template
from trtforge.ground.errors import EnvironmentLacks, ForgeError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6


@dataclass(frozen=True)
class SplitRule:
    """How a byte-level BPE cuts text before merging. ``pattern`` None: GPT-2's own rule."""

    pattern: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = SplitRule(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL, ignore_merges=True)
_QWEN2 = SplitRule(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL, nfc=True)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = SplitRule(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ignore_merges=True,
)
SPLIT_RULES: dict[str, SplitRule] = {
    "gpt-2": SplitRule(),
    "smollm": SplitRule(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "tekken": _TEKKEN,
}


def _unsupported(what: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-015",
        f"the tokenizer of the GGUF file cannot be converted: {what}",
        numbers=numbers,
        why="With another splitting rule the model reads text unlike anything it was trained on and answers worse.",
        remedies=["use the model's safetensors checkpoint, which brings its tokenizer.json"],
    )


def tokenizer_files(header: GgufHeader, max_positions: int) -> tuple[str, dict[str, Any], str | None]:
    """The text of tokenizer.json, the content of tokenizer_config.json, and the chat template or ``None``.

    Raises:
        ForgeError: ``TF-SRC-008`` no tokenizer in the file, ``TF-SRC-015`` one that cannot be carried over.
    """
    tokens = header.get("tokenizer.ggml.tokens", list, items=str)
    model = header.get("tokenizer.ggml.model", str)
    if not tokens or model is None:
        raise ForgeError(
            "TF-SRC-008",
            "the GGUF file has no tokenizer",
            why="Tokenizer and weights belong together: with another one the model reads and writes the wrong words.",
            remedies=["use a GGUF file with its vocabulary", "use the model's safetensors checkpoint instead"],
        )
    if len(set(tokens)) != len(tokens):
        raise _unsupported("its vocabulary holds a token twice", tokens=len(tokens), distinct=len(set(tokens)))
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise EnvironmentLacks(
            "TF-SRC-027", "converting a tokenizer needs the package tokenizers", remedies=["pip install tokenizers"]
        ) from None
    if model == "gpt2":
        tokenizer = _byte_level(header, tokens)
    elif model == "llama":
        tokenizer = _sentencepiece(header, tokens)
    else:
        raise _unsupported(f"its kind {model!r} is not supported", supported=["gpt2", "llama"])
    _add_special(tokenizer, header, tokens)
    _add_bos(tokenizer, header, tokens, default=model == "llama")
    template = header.get("tokenizer.chat_template", str)
    if template is not None:
        check_template(template)
    return str(tokenizer.to_str(pretty=True)), _config(header, tokens, max_positions, template), template


def _byte_level(header: GgufHeader, tokens: list[str]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = header.get("tokenizer.ggml.pre", str)
    rule = SPLIT_RULES.get(name)
    if rule is None:
        raise _unsupported(f"its splitting rule {name!r} is not known", known=sorted(SPLIT_RULES))
    merges = [tuple(merge.split(" ", 1)) for merge in header.get("tokenizer.ggml.merges", list, (), items=str)]
    if not merges or any(len(pair) != 2 for pair in merges):
        raise _unsupported("its merges are missing or malformed", merges=len(merges))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if any(
        left + right not in vocabulary or left not in vocabulary or right not in vocabulary for left, right in merges
    ):
        raise _unsupported("a merge names a token that is not in the vocabulary", merges=len(merges))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = []
    if rule.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), behavior="isolated", invert=False))
    prefix = header.get("tokenizer.ggml.add_space_prefix", bool, False)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=rule.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(header: GgufHeader, tokens: list[str]) -> Any:
    """SentencePiece BPE, in the form that Llama 2's tokenizer.json has; merges are rebuilt from the scores."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = header.get("tokenizer.ggml.scores", list, items=float)
    kinds = _kinds(header, tokens)
    if not scores or len(scores) != len(tokens):
        raise _unsupported("its scores are missing", tokens=len(tokens))
    if kinds.count(_BYTE) != 256:
        raise _unsupported("it lacks the 256 byte tokens", bytes=kinds.count(_BYTE))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for index, token in enumerate(tokens):
        if kinds[index] in (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    merges.sort()
    named = _token_id(header, "unknown", tokens)
    unknown = tokens[named if named is not None else kinds.index(_UNKNOWN) if _UNKNOWN in kinds else 0]
    pairs = [(left, right) for *_, left, right in merges]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = header.get("tokenizer.ggml.add_space_prefix", bool, True)
    steps: list[Any] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    decoding: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)] if prefix else decoding)
    return tokenizer


def _add_special(tokenizer: Any, header: GgufHeader, tokens: list[str]) -> None:
    from tokenizers import AddedToken

    kinds = _kinds(header, tokens)
    named = {_token_id(header, key, tokens) for key in ("bos", "eos", "unknown", "padding")} - {None}
    for index, token in enumerate(tokens):
        kind = kinds[index]
        if kind in (_UNKNOWN, _CONTROL) or index in named:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])


def _kinds(header: GgufHeader, tokens: list[str]) -> list[int]:
    """The type of every token: normal, unknown, control, user-defined, unused or byte."""
    kinds: list[int] = header.get("tokenizer.ggml.token_type", list, [_NORMAL] * len(tokens), items=int)
    if len(kinds) != len(tokens):
        raise _unsupported("its token types do not match its tokens", tokens=len(tokens), types=len(kinds))
    return kinds


def _token_id(header: GgufHeader, key: str, tokens: list[str]) -> int | None:
    value: int | None = header.get(f"tokenizer.ggml.{key}_token_id", int)
    if value is None:
        return None
    if not 0 <= value < len(tokens):
        raise _unsupported(f"its {key} token {value!r} is not in the vocabulary", tokens=len(tokens))
    return value


def _add_bos(tokenizer: Any, header: GgufHeader, tokens: list[str], *, default: bool) -> None:
    """The rule that puts the begin token in front, where the file asks for it."""
    from tokenizers import processors

    bos = _token_id(header, "bos", tokens)
    if bos is None or not header.get("tokenizer.ggml.add_bos_token", bool, default):
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokens[bos]}:0 $A:0",
        pair=f"{tokens[bos]}:0 $A:0 {tokens[bos]}:1 $B:1",
        special_tokens=[(tokens[bos], bos)],
    )


def _config(header: GgufHeader, tokens: list[str], max_positions: int, template: str | None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")):
        token = _token_id(header, key, tokens)
        if token is not None:
            config[name] = tokens[token]
    if template is not None:
        config["chat_template"] = template
    return config

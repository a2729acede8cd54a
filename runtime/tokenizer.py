"""The engine's tokenizer: ``tokenizers`` and the checkpoint's own files, no transformers.

Policy: texts become the same tokens as Hugging Face's ``AutoTokenizer`` gives. Its rule for special tokens,
since transformers 5: the post-processor in ``tokenizer.json`` decides alone; ``add_bos_token`` and
``add_eos_token`` in ``tokenizer_config.json`` only matter to checkpoints without that file. A rendered chat
gets no further special tokens (the template wrote them). transformers costs seconds at server start; this
costs milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.detokenizer import Detokenizer, DetokenizerFactory
from runtime.token_bound import TokenBound
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_json_object, read_text_file
from trtforge.ground.panics import panics_as
from trtforge.templates.chat_template import render_chat, start_rendering

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from runtime.sampling.guided import GuidedState
    from runtime.sampling.params import GuidedDecoding

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class EngineTokenizer:
    """Text to tokens and back for one engine. Thread-safe.

    Args:
        tokenizer: the fast tokenizer.
        config: contents of ``tokenizer_config.json``.
        chat_template: Jinja source, or None.
    """

    def __init__(
        self, tokenizer: Tokenizer, config: Mapping[str, Any] | None = None, chat_template: str | None = None
    ) -> None:
        self.backend = tokenizer
        self.config = dict(config or {})
        self.chat_template = chat_template
        self.special_tokens = {name: _text(self.config[name]) for name in _NAMED_TOKENS if self.config.get(name)}
        # Truncation or padding left in tokenizer.json by a training run would cut prompts in silence.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._detokenizers = DetokenizerFactory(tokenizer)
        self._guided: Any = None
        #: How few tokens a text can have; None where nothing is certain.
        self.bound = TokenBound.of(tokenizer)

    @classmethod
    def load(cls, directory: Path) -> EngineTokenizer:
        """The tokenizer of a checkpoint or engine directory.

        Raises:
            ForgeError: ``TF-RUN-090`` when a file is missing or unreadable.
        """
        from tokenizers import Tokenizer

        path = directory / "tokenizer.json"
        try:
            with panics_as(ValueError):
                tokenizer = Tokenizer.from_str(read_text_file(path, MAX_TOKENIZER_BYTES))
            config_path, template_path = directory / "tokenizer_config.json", directory / "chat_template.jinja"
            config = read_json_object(config_path) if config_path.exists() else {}
            map_path = directory / "special_tokens_map.json"
            if map_path.exists():
                for name, value in read_json_object(map_path).items():
                    config.setdefault(name, value)
            template = read_text_file(template_path) if template_path.exists() else config.get("chat_template")
        # tokenizers raises plain Exception for a file that it cannot parse
        except Exception as error:
            raise ForgeError(
                "TF-RUN-090",
                f"the tokenizer in {directory} cannot be loaded: {error}",
                asked=str(path),
                why="the engine directory carries its tokenizer; without it no text can go in or out",
                remedies=["rebuild the engine from its checkpoint", "verify the directory: trtforge verify"],
            ) from error
        if isinstance(template, list):
            # Several named templates: "default" is the one for plain chats.
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default") or next(iter(named.values()), None)
        return cls(tokenizer, config, template)

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokens of ``text``.

        Raises:
            ForgeError: ``TF-RUN-096`` when the tokenizer's rules fail on it.
        """
        with panics_as(_panicked):
            ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; raises as :meth:`encode` does."""
        with panics_as(_panicked):
            return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, token: int) -> bytes:
        """Bytes that one token stands for by itself; see :meth:`DetokenizerFactory.bytes_of`."""
        return self._detokenizers.bytes_of(token)

    def prepare_chats(self) -> None:
        """Start what renders chats, so that the first one does not wait for it; where that fails, chats say so."""
        if self.chat_template is not None:
            with contextlib.suppress(ForgeError):
                start_rendering()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Text of a chat by the model's template.

        Raises:
            ForgeError: ``TF-RUN-091`` when the model has no template; ``TF-RUN-092`` … ``095`` see
                :func:`~trtforge.templates.chat_template.render_chat`.
        """
        if self.chat_template is None:
            raise ForgeError(
                "TF-RUN-091",
                "this model has no chat template",
                asked="a chat",
                why="a base model knows no roles; any template would be a guess",
                remedies=["send a plain text prompt", "add chat_template.jinja to the checkpoint and rebuild"],
            )
        return render_chat(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            **{**self.special_tokens, **variables},
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Tokens of a chat, ready for the assistant's answer."""
        return self.encode(self.render_chat(messages, **variables), add_special_tokens=False)

    def detokenizer(self, *, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> Detokenizer:
        """An incremental detokenizer for one output that follows ``context``."""
        return self._detokenizers.make(skip_special_tokens=skip_special_tokens, context=context)

    def guided(self, guide: GuidedDecoding, vocab_size: int, eos_token_ids: Sequence[int]) -> GuidedState:
        """A grammar compiled for this vocabulary; fork it for every sample.

        Raises:
            ForgeError: ``TF-RUN-087`` for a grammar that does not compile, ``TF-RUN-088`` when the library is missing.
        """
        from runtime.sampling.guided import GrammarCompiler

        if self._guided is None:
            self._guided = GrammarCompiler(self.backend.to_str(), vocab_size, eos_token_ids)
        return self._guided.compile(guide)


def _panicked(why: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-096",
        f"the tokenizer cannot work on this text: {why}",
        asked="tokenizer.json",
        why="its rules are the checkpoint's; an expression that backtracks without end is given up by the library",
        remedies=["send another text", "download tokenizer.json again from the model's publisher"],
    )


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)

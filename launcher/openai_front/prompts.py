"""Chats and texts as the tokens that the model reads: the same tokenizer and template as the server's.

Rendering waits for a process with limits (:mod:`trtforge.templates.chat_workers`) and tokenizing takes milliseconds a
page, so both run on threads of their own; the event loop waits for neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from launcher.openai_front.deployment import Deployment
from launcher.openai_front.errors import ApiError, not_offered, of_forge
from launcher.openai_front.job import Prompt
from runtime.cleansing import cleanse, cleanse_messages
from runtime.executors.base import ExecutorLimits
from runtime.prompts import is_unicode, refuse_hopeless
from runtime.tokenizer import EngineTokenizer
from trtforge.ground.errors import ForgeError
from trtforge.templates.chat_workers import MOST, MOST_SLOW

_T = TypeVar("_T")


class Prompts:
    """The tokenizer and the chat template of a deployment.

    Raises:
        ForgeError: ``TF-RUN-090`` when the tokenizer cannot be read.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.tokenizer = EngineTokenizer.load(deployment.tokenizer)
        longest, limit = deployment.max_seq_len, deployment.max_input_len
        self._limits = ExecutorLimits(1, longest, longest, limit)
        # prompts go as tokens, in which the model would find nothing to take out
        self._cleanses = deployment.parameters.get("cleanse") == "true"
        self._threads = ThreadPoolExecutor(MOST + MOST_SLOW, "openai-prompts")

    @property
    def template(self) -> str:
        """The chat template; empty when the model has none."""
        return self.tokenizer.chat_template or ""

    def prepare(self) -> None:
        """Have what renders chats ready, so that the first one does not wait for it."""
        self.tokenizer.prepare_chats()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, more: Mapping[str, Any]
    ) -> Prompt:
        """A chat, ready for the assistant's answer; ``more`` are further variables of the template."""

        def work() -> Prompt:
            offered = tools
            said = messages
            if self._cleanses:
                said = cleanse_messages(messages)[0]
                offered = None if tools is None else cleanse_messages(tools)[0]
            given = {**more, **({} if offered is None else {"tools": list(offered)})}
            text = self.tokenizer.render_chat(said, **given)
            self._check(text)
            return self._said(self.tokenizer.encode(text, add_special_tokens=False), text)

        return await self._run(work, "messages")

    async def text(self, text: str) -> Prompt:
        """A text, with the special tokens that the tokenizer puts around one."""
        if self._cleanses:
            text = cleanse(text)[0]

        def work() -> Prompt:
            if not text:
                raise ApiError(400, "TF-OAI-003", "prompt: it is empty, and a model continues a text", param="prompt")
            self._check(text)
            special = self._deployment.adds_special
            tokens = self.tokenizer.encode(text, add_special_tokens=special)
            return Prompt(tokens, "" if self._deployment.names.takes_tokens else text, text)

        return await self._run(work, "prompt")

    def refuse_long(self, count: int, param: str) -> None:
        """Refuse a prompt of more tokens than the model takes.

        Raises:
            ApiError: ``TF-OAI-012``.
        """
        limit = min(self._deployment.max_input_len, self._deployment.max_seq_len - 1)
        if count > limit:
            raise ApiError(
                400,
                "TF-OAI-012",
                f"the prompt has {count} tokens, and this model takes at most {limit} of a context of "
                f"{self._deployment.max_seq_len}; shorten it by {count - limit} tokens or more",
                param=param,
            )

    async def tokens(self, tokens: list[int]) -> Prompt:
        """A prompt in tokens."""
        self.refuse_long(len(tokens), "prompt")  # before any of them is looked at

        def work() -> Prompt:
            size = self.tokenizer.vocab_size
            if not tokens or not all(0 <= token < size for token in tokens):
                raise ApiError(
                    400, "TF-OAI-003", f"prompt: token ids are whole numbers from 0 to {size - 1}", param="prompt"
                )
            shown = self.tokenizer.decode(tokens)
            if self._deployment.names.takes_tokens:
                return Prompt(tokens, "", shown)
            whole = self.tokenizer.decode(tokens, skip_special_tokens=False)
            return Prompt(tokens, self._said(tokens, whole).text, shown)

        return await self._run(work, "prompt")

    async def words(self, bias: Mapping[int, float]) -> dict[str, float]:
        """The tokens of a bias as words, for servers that take words; refuses a token that no word stands for."""

        def work() -> dict[str, float]:
            words = {}
            for token, value in bias.items():
                word = self.tokenizer.decode([token], skip_special_tokens=False)
                if self.tokenizer.encode(word, add_special_tokens=False) != [token]:
                    raise not_offered("logit_bias", f"this server takes words, and none stands for token {token} alone")
                words[word] = value
            return words

        return await self._run(work, "logit_bias") if bias else {}

    async def _run(self, work: Callable[[], _T], param: str) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except ForgeError as error:
            raise of_forge(error, param) from None

    def _check(self, text: str) -> None:
        if not is_unicode(text):
            raise ApiError(400, "TF-OAI-003", "prompt: it holds half of a surrogate pair, which no text has")
        refuse_hopeless(text, self.tokenizer, self._limits)

    def _said(self, tokens: list[int], text: str) -> Prompt:
        """A prompt whose special tokens stand in the text already."""
        if self._deployment.names.takes_tokens:
            return Prompt(tokens, "", text)
        first = self.tokenizer.special_tokens.get("bos_token", "")
        for candidate in (text, text.removeprefix(first)):
            if self.tokenizer.encode(candidate, add_special_tokens=self._deployment.adds_special) == tokens:
                return Prompt(tokens, candidate, text)
        raise ApiError(
            400,
            "TF-OAI-018",
            "this server takes text only, and its tokenizer would read other tokens than this prompt's; "
            "write the repository with add_special_tokens: false",
            param="messages",
        )

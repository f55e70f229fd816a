"""Text to token ids and back."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import tokenizers

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import InvalidRequestError
from astrai_engine.token_spelling import added_spelling, spelling_of

_BREAK = "\ufdd0"
"""A Unicode noncharacter, reserved for internal use, that keeps user text from forming a token."""


class Tokenizer:
    """A model's vocabulary.

    Args:
        backend: the ``tokenizers`` pipeline.
        bos_token: text of the beginning-of-sequence token, or None.
        eos_token: text of the end-of-sequence token, or None.

    Attributes:
        vocab_size: how many tokens there are.
        special_token_ids: control tokens, which have no text of their own.

    Raises:
        ModelLoadError: the pipeline's way of spelling bytes is not known.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._spelling = spelling_of(backend.decoder)
        self._added = backend.get_added_tokens_decoder()
        self._bytes: dict[int, bytes] = {}
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.special_token_ids = frozenset(i for i, t in self._added.items() if t.special)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; control tokens written in it become their ids.

        Args:
            text: any text.
            add_special_tokens: also add what the model expects around a raw text, such as a
                beginning-of-sequence token.

        Raises:
            InvalidRequestError: the text holds half of a surrogate pair.
        """
        return _encode(self._backend, text, add_special_tokens=add_special_tokens)

    def encode_with_breaks(self, text: str) -> list[int]:
        """Token ids of a text that a ``TextGuard`` has marked, without adding any.

        A break keeps a control token from being recognised and leaves no other trace.
        """
        return _encode(self._breakable, text, add_special_tokens=False)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of tokens: that of their bytes, so no space is added or taken at the start.

        Args:
            token_ids: any ids; those outside the vocabulary have no text.
            skip_special_tokens: leave out control tokens.
        """
        parts = (
            self.token_bytes(token_id)
            if skip_special_tokens or token_id not in self.special_token_ids
            else self._added[token_id].content.encode()
            for token_id in token_ids
        )
        return b"".join(parts).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token's text; none for control tokens and unknown ids."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """A token as people read it: its text, or a control token's name."""
        if token_id in self._added:
            return self._added[token_id].content
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def to_json(self) -> str:
        """The whole pipeline as the text of a ``tokenizer.json``."""
        return str(self._backend.to_str())

    def token_id(self, token: str) -> int | None:
        """The id of a token in the vocabulary's own spelling, or None."""
        return self._backend.token_to_id(token)

    def added_token_id(self, text: str) -> int | None:
        """The id of the added token, a control token or not, with this text; None without one."""
        token_id = self._backend.token_to_id(text)
        return token_id if token_id in self._added else None

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """The texts of all control tokens."""
        return tuple(self._added[i].content for i in sorted(self.special_token_ids))

    @cached_property
    def text_guard(self) -> "TextGuard":
        """Keeps user text from being read as this vocabulary's control tokens."""
        return TextGuard(self.special_tokens)

    def _spell(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return b"" if added.special else added_spelling(self._spelling)(added.content)
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else self._spelling(token)

    @cached_property
    def _breakable(self) -> tokenizers.Tokenizer:
        """The same pipeline, which drops breaks once control tokens have been recognised."""
        pipeline = json.loads(self._backend.to_str())
        drop = {"type": "Replace", "pattern": {"String": _BREAK}, "content": ""}
        rest = pipeline["normalizer"]
        pipeline["normalizer"] = {
            "type": "Sequence",
            "normalizers": [drop] if rest is None else [drop, rest],
        }
        for added in pipeline["added_tokens"]:
            added["normalized"] = added["normalized"] and not added["special"]
        return tokenizers.Tokenizer.from_str(json.dumps(pipeline))


class TextGuard:
    """Marks user text in which a control token could be read.

    A break goes inside each control token the text spells, and after text that ends with the
    beginning of one, so that two texts side by side can't spell one either.

    Args:
        special_tokens: the texts of the control tokens.
    """

    def __init__(self, special_tokens: Sequence[str]) -> None:
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = {token[:n] for token in special_tokens for n in range(1, len(token))}
        self._longest = max(map(len, special_tokens), default=0)

    def mark(self, value: Any) -> tuple[Any, bool]:
        """Mark every text in a JSON-like value.

        Args:
            value: texts, numbers, mappings and sequences of them.

        Returns:
            The value with breaks, and whether there are any. Keys are left alone.
        """
        if isinstance(value, str):
            marked = self._mark_text(value)
            return marked, marked != value
        if isinstance(value, Mapping):
            items = {key: self.mark(item) for key, item in value.items()}
            return {k: item for k, (item, _) in items.items()}, any(m for _, m in items.values())
        if isinstance(value, (list, tuple)):
            entries = [self.mark(item) for item in value]
            return [item for item, _ in entries], any(m for _, m in entries)
        return value, False

    def _mark_text(self, text: str) -> str:
        marked = self._spelled.sub(lambda match: match[0][0] + _BREAK + match[0][1:], text)
        tails = (text[-n:] for n in range(1, min(self._longest, len(text) + 1)))
        return marked + _BREAK if any(tail in self._beginnings for tail in tails) else marked


class RenderedChat(NamedTuple):
    """The text of a chat.

    Attributes:
        text: the text, breaks included.
        has_breaks: whether a ``TextGuard`` has marked some of it.
    """

    text: str
    has_breaks: bool

    @property
    def plain_text(self) -> str:
        """The text without breaks."""
        return self.text.replace(_BREAK, "") if self.has_breaks else self.text


def render_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    **template_arguments: Any,
) -> RenderedChat:
    """The text of a chat, with what messages, tools and variables bring marked.

    Args:
        template: the model's.
        tokenizer: the model's.
        messages: the chat.
        template_arguments: the keywords of ``ChatTemplate.render``.

    Raises:
        TemplateError: the template refuses the messages.
    """
    (marked, arguments), has_breaks = tokenizer.text_guard.mark((messages, template_arguments))
    return RenderedChat(template.render(marked, **arguments), has_breaks)


def encode_chat(chat: RenderedChat, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a chat, without any that its template does not write.

    The template's own control tokens become their ids; text that messages, tools or variables
    bring never does, even when it spells one. The ids of all other chats are those of the
    rendered text.

    Raises:
        InvalidRequestError: a text holds half of a surrogate pair.
    """
    if chat.has_breaks:
        return tokenizer.encode_with_breaks(chat.text)
    return tokenizer.encode(chat.text, add_special_tokens=False)


def _encode(pipeline: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    try:
        return pipeline.encode(text, add_special_tokens=add_special_tokens).ids
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequestError(
            "The text holds half of a surrogate pair; send valid Unicode.", param="messages"
        ) from error

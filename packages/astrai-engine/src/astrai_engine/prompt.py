"""From a request to the token ids it starts with. Slow enough to keep off an event loop."""

from dataclasses import dataclass

from astrai_engine.chat_template import ChatTemplate
from astrai_engine.errors import InvalidRequestError, PromptTooLongError, TemplateError
from astrai_engine.request import GenerationRequest
from astrai_engine.tokenizer import Tokenizer, encode_chat, render_chat

_END_CHARS = 64


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it.

    Attributes:
        token_ids: its tokens.
        end: the last 64 characters of its text; empty when it came as token ids.
    """

    token_ids: list[int]
    end: str


class PromptEncoder:
    """Renders and tokenises prompts, and refuses what can never run.

    Args:
        tokenizer: the model's.
        chat_template: the model's; None if it has none.
        vocab_size: token ids are below it.
        max_seq_len: context in tokens, prompt and output together.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        *,
        vocab_size: int,
        max_seq_len: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len

    def encode(self, request: GenerationRequest) -> EncodedPrompt:
        """The prompt's token ids, and how its text ends.

        Raises:
            InvalidRequestError: a token id is outside the vocabulary, or the prompt is empty.
            PromptTooLongError: no token would fit behind the prompt.
            TemplateError: the messages can't be rendered.
        """
        self._check_ids("logit_bias", list(request.logit_bias or ()))
        self._check_ids("stop_token_ids", list(request.stop_token_ids))
        prompt = self._encode(request)
        if not prompt.token_ids:
            raise InvalidRequestError("The prompt has no tokens; give some text.", param="prompt")
        num_tokens = len(prompt.token_ids)
        if num_tokens >= self._max_seq_len:
            raise PromptTooLongError(num_tokens, self._max_seq_len - 1, self._max_seq_len)
        return prompt

    def max_new_tokens(self, request: GenerationRequest, num_prompt_tokens: int) -> int:
        """``max_tokens``, clamped to what the context leaves."""
        room = self._max_seq_len - num_prompt_tokens
        return room if request.max_tokens is None else min(request.max_tokens, room)

    def _encode(self, request: GenerationRequest) -> EncodedPrompt:
        if request.prompt_token_ids is not None:
            token_ids = list(request.prompt_token_ids)
            self._check_ids("prompt_token_ids", token_ids)
            return EncodedPrompt(token_ids, "")
        if request.prompt is not None:
            token_ids = self._tokenizer.encode(request.prompt, add_special_tokens=True)
            return EncodedPrompt(token_ids, request.prompt[-_END_CHARS:])
        if self._chat_template is None:
            raise TemplateError(
                "This model has no chat template: send a raw prompt, or give the server one with "
                "ASTRAI_CHAT_TEMPLATE (chat_template of EngineConfig), a Jinja file.",
                param="messages",
            )
        chat = render_chat(
            self._chat_template,
            self._tokenizer,
            request.messages or (),
            tools=request.tools,
            add_generation_prompt=not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            **request.chat_template_kwargs,
        )
        token_ids = encode_chat(chat, self._tokenizer)
        return EncodedPrompt(token_ids, chat.plain_text[-_END_CHARS:])

    def _check_ids(self, param: str, token_ids: list[int]) -> None:
        outside = [t for t in token_ids if not 0 <= t < self._vocab_size]
        if outside:
            raise InvalidRequestError(
                f"{param}: token id {outside[0]} is outside the vocabulary of "
                f"{self._vocab_size} tokens.",
                param=param,
            )

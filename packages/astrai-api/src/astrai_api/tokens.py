"""Tokens of a text, and the text of tokens: ``POST /tokenize`` and ``POST /detokenize``.

Both take and give what clients of vLLM and of llama.cpp's server know.
"""

import asyncio
from typing import Any, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field, StrictInt, model_validator
from starlette.responses import Response

from astrai_api.client import EngineClient
from astrai_api.documentation import write_responses
from astrai_api.errors import bad_request
from astrai_api.openai.messages import template_messages
from astrai_api.openai.schemas import ChatMessage
from astrai_api.serving import Serving
from astrai_api.sse import json_response
from astrai_api.strict_json import StrictJSONRoute
from astrai_api.wire import Bool, Nullable, WireModel
from astrai_engine.request import GenerationRequest

router = APIRouter(route_class=StrictJSONRoute)


class TokenizeRequest(WireModel):
    """Body of ``POST /tokenize``: one of ``prompt``, ``content`` and ``messages``.

    ``content`` is llama.cpp's word, and then special tokens are added only if asked for.
    """

    prompt: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: Bool | None = None
    add_special: Nullable[Bool] = False
    return_token_strs: Nullable[Bool] = False
    with_pieces: Nullable[Bool] = False
    add_generation_prompt: Nullable[Bool] = True
    continue_final_message: Nullable[Bool] = False
    chat_template_kwargs: Nullable[dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if sum(text is not None for text in (self.prompt, self.content, self.messages)) != 1:
            raise ValueError("give exactly one of prompt, content and messages")
        return self

    @property
    def text(self) -> str | None:
        """The text to tokenise, unless it is a chat."""
        return self.content if self.prompt is None else self.prompt

    @property
    def special_tokens(self) -> bool:
        """Whether to add what the model expects around a text."""
        if self.add_special_tokens is not None:
            return self.add_special_tokens
        return self.prompt is not None or self.add_special


class TokenPiece(BaseModel):
    """A token with its text, as llama.cpp's server writes it."""

    id: int
    piece: str


class Tokens(BaseModel):
    """Answer of ``POST /tokenize``; pieces instead of ids if ``with_pieces`` asks for them."""

    count: int
    max_model_len: int
    tokens: list[int] | list[TokenPiece]
    token_strs: list[str] | None


class DetokenizeRequest(WireModel):
    """Body of ``POST /detokenize``."""

    tokens: list[StrictInt]


class DetokenizedText(BaseModel):
    """Answer of ``POST /detokenize``: the text, by the name each client knows."""

    prompt: str
    content: str


@router.post("/tokenize", response_class=Response, responses=write_responses("/tokenize", Tokens))
async def tokenize(body: TokenizeRequest, serving: Serving) -> Response:
    """Tokens of a text, or of the prompt that a chat makes."""
    engine = serving.engine
    token_ids = await asyncio.to_thread(_token_ids, body, engine)
    texts = [engine.tokenizer.token_text(token_id) for token_id in token_ids]
    pieces = [{"id": i, "piece": text} for i, text in zip(token_ids, texts, strict=True)]
    return json_response(
        {
            "count": len(token_ids),
            "max_model_len": engine.info.max_seq_len,
            "tokens": pieces if body.with_pieces else token_ids,
            "token_strs": texts if body.return_token_strs else None,
        }
    )


def _token_ids(body: TokenizeRequest, engine: EngineClient) -> list[int]:
    if body.text is not None:
        return engine.tokenizer.encode(body.text, add_special_tokens=body.special_tokens)
    if not (body.add_generation_prompt or body.continue_final_message):
        raise bad_request(
            "add_generation_prompt must be true unless continue_final_message is: these are the "
            "prompts this server makes.",
            param="add_generation_prompt",
        )
    request = GenerationRequest(
        messages=template_messages(body.messages or []),
        chat_template_kwargs=body.chat_template_kwargs,
        continue_final_message=body.continue_final_message,
    )
    return engine.encode_prompt(request)


@router.post(
    "/detokenize",
    response_class=Response,
    responses=write_responses("/detokenize", DetokenizedText),
)
async def detokenize(body: DetokenizeRequest, serving: Serving) -> Response:
    """The text of tokens, with the names of control tokens."""
    engine = serving.engine
    outside = [i for i in body.tokens if not 0 <= i < engine.info.vocab_size]
    if outside:
        raise bad_request(
            f"tokens: {outside[0]} is outside the vocabulary of {engine.info.vocab_size} tokens.",
            param="tokens",
        )
    text = await asyncio.to_thread(engine.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return json_response({"prompt": text, "content": text})

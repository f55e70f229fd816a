"""Prompts repeated in front of their completions."""

from dataclasses import dataclass

from astrai_api.client import TokenizerClient
from astrai_api.openai.logprobs import CompletionLogprobs
from astrai_engine.events import PromptLogprobs


@dataclass(frozen=True)
class Echo:
    """One prompt, as text and as the tokens that run.

    Attributes:
        token_ids: what runs.
        text: what is repeated: the client's own words, or what its token ids decode to.
        surplus: characters that the tokens decode to in front of the text.
        first: text and bytes of the first token, for which the model has no probability.
    """

    token_ids: list[int]
    text: str
    surplus: int
    first: tuple[str, bytes]

    @classmethod
    def of(cls, prompt: str | list[int], tokenizer: TokenizerClient) -> "Echo":
        """Tokenise a prompt. Slow: not on the event loop."""
        if isinstance(prompt, str):
            token_ids = tokenizer.encode(prompt, add_special_tokens=True)
            decoded = tokenizer.decode(token_ids)
            surplus = len(decoded) - len(prompt) if decoded.endswith(prompt) else 0
            return cls(token_ids, prompt, surplus, _first(token_ids, tokenizer))
        return cls(prompt, tokenizer.decode(prompt), 0, _first(prompt, tokenizer))

    def add_to(self, logprobs: CompletionLogprobs, prompt: PromptLogprobs) -> None:
        """Add the tokens of the prompt to those of a completion."""
        logprobs.add_unscored(*self.first)
        logprobs.add(entry for entry in prompt.entries if entry is not None)


def _first(token_ids: list[int], tokenizer: TokenizerClient) -> tuple[str, bytes]:
    if not token_ids:
        return "", b""  # the engine refuses it
    return tokenizer.token_text(token_ids[0]), tokenizer.token_bytes(token_ids[0])

"""From tokens to final text: what may be shown to the caller, and when.

Text is final once it holds no part of a character and no part of a stop string. Log-probability
entries travel with the text of their token, so both end at the same place when a stop cuts; the
entry of a token without text, a control token, follows the text in front of it.
"""

from collections import deque

from astrai_engine.detokenizer import Detokenizer, TokenBytes
from astrai_engine.events import TokenLogprob
from astrai_engine.stop_strings import StopStrings


class TextStream:
    """The text of one choice as it grows.

    Args:
        tokenizer: gives the bytes of each token.
        stops: strings that end the text and are not part of it.
    """

    def __init__(self, tokenizer: TokenBytes, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._num_decoded = 0
        self._num_shown = 0
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.matched

    def push(self, token_id: int, logprob: TokenLogprob | None, *, may_stop: bool) -> str:
        """Add a token; gives the text that became final.

        Args:
            token_id: the token.
            logprob: its entry, if the caller asked for one.
            may_stop: False while stop strings do not count yet (``min_tokens``).
        """
        if logprob is not None:
            self._waiting.append((self._num_decoded, logprob))
        return self._show(self._detokenizer.push(token_id), may_stop=may_stop)

    def finish(self) -> str:
        """End of the stream: gives the text still held back, up to a stop string if one ends it."""
        text = self._show(self._detokenizer.finish(), may_stop=True)
        rest = self._stops.finish()
        self._num_shown += len(rest)
        return text + rest

    def take_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Entries of the tokens that have been shown since the last call."""
        shown = []
        while self._waiting:
            start, entry = self._waiting[0]
            if self._num_shown < start + bool(entry.token_bytes):
                break
            shown.append(entry)
            self._waiting.popleft()
        return tuple(shown)

    def _show(self, decoded: str, *, may_stop: bool) -> str:
        self._num_decoded += len(decoded)
        text = self._stops.push(decoded) if may_stop else decoded
        self._num_shown += len(text)
        return text

"""What a tokenizer puts around a raw text."""

import tokenizers
from tokenizers import processors


def surround(backend: tokenizers.Tokenizer, first: str | None, last: str | None) -> None:
    """Begin or end every text that is encoded with special tokens.

    Args:
        backend: the pipeline; its post-processor is replaced.
        first: token before the text, None for none.
        last: token behind it, None for none.
    """
    named = [token for token in (first, last) if token is not None]
    parts = [token for token in (first, "$A", last) if token is not None]
    if named:
        backend.post_processor = processors.TemplateProcessing(
            single=parts,
            pair=None,
            special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(named)],
        )

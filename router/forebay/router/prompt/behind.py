"""Tokens that say a text behind others, whose own are to stay as they are (pure)."""

from collections.abc import Sequence

from forebay.router.prompt.tokenizer import Tokenizer

SOME = 16  # tokens before it that decide what is made of its own
_BROKEN = "\ufffd"  # bytes that are no character
# A tokenizer may put a space before a text that begins; behind a line's end it has begun already.
_ANCHORS = ("", "\n")


def ids_behind(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[int] | None:
    """None where no tokens do, or it is not known which did: those before end within a character, the text holds one
    that was never whole, spells a special token or has what no tokens say. Raises `TokenizerError` for a text that
    cannot be tokenized."""
    tail = list(ids[-SOME:])
    before = tokenizer.decode(tail)
    if before.endswith(_BROKEN) or _BROKEN in text:
        return None
    for anchor in _ANCHORS:
        start = tokenizer.encode(anchor).tolist() if anchor else []
        made: list[int] = tokenizer.encode(anchor + text).tolist()
        found = made[len(start) :]
        if made[: len(start)] == start and tokenizer.decode(tail + found) == before + text:
            return found
    return None

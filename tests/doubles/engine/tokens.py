"""A deterministic tokenizer without a model. Pure.

A text is cut into pieces: a word of at most 12 letters with the one space before it, a run of other characters with
the space before it, or a run of white space. A piece's id is a hash of it. A message is BEGIN, its role's token, its
text's pieces, END, NEWLINE; an open assistant turn is BEGIN, ASSISTANT. So a conversation's next turn begins with the
tokens of this turn and its answer, as under a real chat template.
"""

import re
import zlib
from collections.abc import Sequence
from typing import Any

BEGIN, END, NEWLINE = 1, 2, 3
_RESERVED = 100
_VOCABULARY = 49_152
PIECES = re.compile(r"\s?\w{1,12}|\s?[^\w\s]+|\s+")

_TEXT = (
    "the river runs past old stone houses and a quiet garden where people talk about rain bread music children "
    "trains letters winter light glass ships north summer paper café naïve 東京 мир ☀ water green hill road night "
    "morning story small great open close near far under over some more less again often never always early late "
    "good new long short"
)
_WORDS = _TEXT.split()


class Piece(tuple[int, bytes]):
    """A generated token: its id, and its UTF-8 text, which needs no escape in JSON."""

    __slots__ = ()


_ids: dict[str, int] = {}


def _piece_id(piece: str) -> int:
    found = _ids.get(piece)
    if found is None:
        found = _RESERVED + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % (_VOCABULARY - _RESERVED)
        if len(_ids) < 100_000:
            _ids[piece] = found
    return found


def encode(text: str) -> list[int]:
    return [_piece_id(piece) for piece in PIECES.findall(text)]


def vocabulary() -> dict[str, int]:
    """The ids of all that is ever generated."""
    return {piece: _piece_id(piece) for word in _WORDS for piece in (word, " " + word)}


def role_token(role: str) -> int:
    return _piece_id(f"<|{role}|>")


ASSISTANT = role_token("assistant")
_OPENINGS = [Piece((_piece_id(word), word.encode())) for word in _WORDS]
_FOLLOWERS = [Piece((_piece_id(" " + word), b" " + word.encode())) for word in _WORDS]
_COUNT = len(_WORDS)


def next_piece(last: int, position: int, choice: int) -> Piece:
    """The token after `last` at `position` (tokens before it). It depends on nothing else but the choice's index, so a
    cut answer that is continued goes on as the uncut one would have."""
    pick = (last * 2_654_435_761 + position * 40_503 + choice * 7_919 >> 7) % _COUNT
    return _OPENINGS[pick] if last == ASSISTANT else _FOLLOWERS[pick]


def text_of(content: Any) -> str:
    """The text of a message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return ""


def encode_chat(
    messages: Sequence[dict[str, Any]], *, open_turn: bool = True, continue_last: bool = False
) -> tuple[list[int], int]:
    """The prompt's tokens, and how many of them already belong to the answer (of a continued last message)."""
    tokens: list[int] = []
    begun = 0
    for message in messages:
        body = encode(text_of(message.get("content")))
        tokens += [BEGIN, role_token(str(message.get("role"))), *body, END, NEWLINE]
        begun = len(body)
    if continue_last:
        del tokens[-2:]
        return tokens, begun
    if open_turn:
        tokens += [BEGIN, ASSISTANT]
    return tokens, 0

"""Finding out that a text is too long without tokenizing all of it (pure).

The tokens of a text's beginning are a lower bound of those of the whole, but for a few at the place where it was cut.
Added tokens and the pieces that a pre-tokenizer makes are found from left to right; more text changes only those that
reach the cut. Within a piece, byte pair encoding of the whole agrees with that of every beginning that ends between two
of its tokens, so a cut elsewhere concerns less than one token's text, and what merges differently before it, which
in a real vocabulary is a handful of tokens. The slack is far larger than what was ever seen (tests look for more).
Normalization could undo this, were it to look at the whole text: with steps other than those known not to, a text is
always tokenized whole.
"""

from forebay.router.prompt.tokenizer import Tokenizer
from forebay.router.prompt.tokenizer_files import Normalizer, TokenizerError

_SAMPLE = 1 << 14  # characters
_FEW = 1 << 18  # characters that are tokenized in any case
_DENSEST = 16  # characters a token; white space without end is denser, and would hold a thread for half a minute
_LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents", "BertNormalizer", "Prepend"}


class TooLongError(Exception):
    """The text has at least `at_least` tokens, which are more than were allowed."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"at least {at_least} tokens")
        self.at_least = at_least


def slack(room: int) -> int:
    """Tokens by which a beginning may have to exceed `room` before the whole is taken to do so."""
    return room // 16 + 1024


def surely_more(tokenizer: Tokenizer, text: str, room: int) -> int:
    """A lower bound of the tokens of `text` where one above `room` is found by tokenizing little more, else 0. Raises
    `TokenizerError` for a text of which too much makes too few tokens to know."""
    bound = room + slack(room)
    if len(text) <= bound or not local(tokenizer.normalizer):
        return 0
    size, most = _SAMPLE, max(_DENSEST * bound, _FEW)
    while size < len(text):
        count = len(tokenizer.encode_batch((text[:size],))[0])
        if count > bound:
            return count - slack(room)
        if size >= most:
            raise TokenizerError(f"more than {most} characters that are less than {bound} tokens are not tokenized")
        size = min(most, max(2 * size, size * bound // (count + 1) * 9 // 8))
    return 0


def local(normalizer: Normalizer | None) -> bool:
    """Whether what becomes of a character depends on its neighbours only."""
    if normalizer is None:
        return True
    if normalizer.type == "Sequence":
        return all(map(local, normalizer.normalizers))
    return normalizer.type in _LOCAL or (normalizer.type == "Replace" and "String" in normalizer.pattern)

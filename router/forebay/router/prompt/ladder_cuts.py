"""Where a text may be cut so that its parts tokenize as the whole does (pure).

The tokenizers library looks for added tokens before anything else: from the left, the longest first, in two passes
(the second over what normalization makes of the text between the first pass's tokens). What stands between them is
normalized, split and tokenized for itself. A text may therefore be cut behind an added token S, the part after it being
tokenized behind another S that is then taken off again (so that tokens that strip white space, and prefixes that only
a text's beginning gets, see what they would see in the whole), if

- each occurrence of S is a match, whatever stands around it and whatever text will follow: no other added token
  contains S, is contained in it, or overlaps with it, nor does S with itself; S is not matched as a single word only,
  which depends on the next character; and S is not looked for in normalized text, unless that is the text itself;
- S is one token when it stands alone.

A self-test checks the rest (ladder.py).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tokenizers import AddedToken

from forebay.router.prompt.tokenizer import Tokenizer
from forebay.router.prompt.tokenizer_files import Normalizer

_WINDOW = 1 << 17  # characters searched at once; other threads stand still meanwhile


class Cuts:
    """The tokens a text may be cut behind, none of them a part of another."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tuple(tokens)
        self._same = {token: token for token in tokens}  # one string object for each, however often it is found
        self._longest = max(map(len, tokens), default=0)
        self._search = re.compile(_pattern(sorted(tokens)))

    def find(self, text: str, apart: int = 1) -> Iterator[tuple[int, str]]:
        """Ends of those tokens in `text` from left to right, at least `apart` characters between two of them, and the
        tokens that end there."""
        start, least, size = 0, apart, len(text)
        while start < size:
            window = start + _WINDOW
            for match in self._search.finditer(text, start, min(size, window + self._longest - 1)):
                end = match.end()
                window = max(window, end)
                if end >= least:
                    least = end + apart
                    yield end, self._same[match[0]]
            start = window


def find_cuts(tokenizer: Tokenizer) -> tuple[Cuts | None, str]:
    """The cuts among the special tokens, and others that the chat template names; and why others are none."""
    if tokenizer.splits_special:
        return None, "its configuration has the text of special tokens split like any other (split_special_tokens)"
    template = tokenizer.chat_template or ""
    candidates = [token for token in tokenizer.added if token.special or token.content in template]
    if not candidates:
        return None, "it has no special tokens"
    overlaps = _Overlaps([token.content for token in tokenizer.added])
    plain = identity(tokenizer.normalizer)
    faults = {token.content: _fault(token, plain, overlaps) for token in candidates}
    clear = [content for content, fault in faults.items() if fault is None]
    for content, ids in zip(clear, tokenizer.encode_batch(clear), strict=True):
        if len(ids) != 1:
            faults[content] = f"becomes {len(ids)} tokens"
    tokens = [content for content, fault in faults.items() if fault is None]
    other = next((f"{content!r} {fault}" for content, fault in faults.items() if fault), "")
    if not tokens:
        return None, f"no text can be cut behind its special tokens: {other}"
    return Cuts(tokens), f"{len(tokens)} of its {len(candidates)} special tokens" + (other and f" ({other})")


def identity(normalizer: Normalizer | None) -> bool:
    """Whether normalization leaves every text as it is."""
    return normalizer is None or (normalizer.type == "Sequence" and all(map(identity, normalizer.normalizers)))


def _fault(token: AddedToken, plain: bool, overlaps: "_Overlaps") -> str | None:
    if token.single_word:
        return "is matched as a single word only"
    if token.normalized and not plain:
        return "is looked for in normalized text"
    return "can overlap with another added token" if token.content in overlaps else None


class _Overlaps:
    """Which of the added tokens could share characters of a text with another, or with themselves."""

    def __init__(self, contents: Sequence[str]) -> None:
        self._contents = frozenset(contents)
        self._joined = "\0".join(contents)
        self._heads = frozenset(content[:end] for content in contents for end in range(1, len(content)))
        self._tails = frozenset(content[start:] for content in contents for start in range(1, len(content)))

    def __contains__(self, content: str) -> bool:
        inner = range(1, len(content))
        return (
            self._joined.count(content) > 1
            or any(content[:at] in self._tails or content[at:] in self._heads for at in inner)
            or any(part in self._contents for part in _parts(content))
        )


def _parts(content: str) -> Iterable[str]:
    size = len(content)
    return (content[i:j] for i in range(size) for j in range(i + 1, size + 1) if j - i < size)


def _pattern(tokens: Sequence[str]) -> str:
    """An expression for any of `tokens`, sorted, none the beginning of another; what begins alike is looked at once,
    so that hundreds of tokens cost little more than one."""
    if len(tokens) == 1:
        return re.escape(tokens[0])
    first, last = tokens[0], tokens[-1]
    shared = next(at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    if shared:
        return re.escape(first[:shared]) + _pattern([token[shared:] for token in tokens])
    return "(?:" + "|".join(_pattern(list(group)) for _, group in groupby(tokens, key=lambda token: token[0])) + ")"

"""A model's tokenizer, as its engines load it: text to ids, without special tokens that the text does not hold.

Text that spells a special token becomes that token, whoever wrote it: engines do the same.
"""

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from forebay.router.prefix.keys import Ids
from forebay.router.prompt.tokenizer_files import Normalizer, TokenizerConfig, TokenizerError, read

_PROBE = "a"


class Tokenizer:
    """Never changes once loaded, so any number of threads may encode at a time; the library lets others run while it
    encodes."""

    def __init__(self, library: Library, normalizer: Normalizer | None, config: TokenizerConfig) -> None:
        self._library = library
        self.normalizer = normalizer
        self.special_tokens = config.special_tokens
        self.chat_template = config.chat_template
        self.added: tuple[AddedToken, ...] = tuple(library.get_added_tokens_decoder().values())
        self.splits_special = config.split_special_tokens  # special tokens' text is tokenized like any other
        self.completion_prefix, self.completion_suffix = self._surroundings()

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Takes up to some seconds and blocks. Raises `TokenizerError`."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read at each call; one request is to use one core
        data, file, config = read(directory)
        try:
            library = Library.from_buffer(data)
        except ValueError as error:
            raise TokenizerError(f"{directory / 'tokenizer.json'} is not usable: {error}.") from error
        library.no_truncation()  # engines turn both off
        library.no_padding()
        _complete(library, config)
        library.encode_special_tokens = config.split_special_tokens
        return cls(library, file.normalizer, config)

    def __repr__(self) -> str:
        return f"<Tokenizer {self._library.get_vocab_size()} tokens, {len(self.added)} of them added>"

    def encode(self, text: str) -> Ids:
        """The ids of `text`, nothing added. Raises `TokenizerError` for text that cannot be tokenized."""
        return to_ids(self.encode_batch((text,)))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; one call costs less than several. Raises `TokenizerError` as `encode` does. A run of
        millions of characters without a break takes a microsecond for each, and very long ones cannot be tokenized."""
        try:
            encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError as error:  # it says so of strings that have no UTF-8
            raise TokenizerError("The text is not Unicode: it holds half of a surrogate pair.") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # as which a panic of the library arrives; it goes on working
                raise
            raise TokenizerError("The tokenizers library gave up on the text: some run in it is too long.") from None
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out: as engines show it. Ids that there are not say nothing."""
        text: str = self._library.decode(ids, skip_special_tokens=True)
        return text

    def _surroundings(self) -> tuple[Ids, Ids]:
        """What the post-processor puts before and after the text of a completion."""
        whole = self._library.encode(_PROBE, add_special_tokens=True).ids
        text = self._library.encode(_PROBE, add_special_tokens=False).ids
        for start in range(len(whole) - len(text) + 1):
            if whole[start : start + len(text)] == text:
                return to_ids((whole[:start],)), to_ids((whole[start + len(text) :],))
        raise TokenizerError("The post-processor of tokenizer.json changes the tokens between those it adds.")


def to_ids(lists: Iterable[list[int]]) -> Ids:
    """One array of several lists of ids."""
    joined = array("I")
    for ids in lists:
        joined.fromlist(ids)
    return np.frombuffer(joined, np.uint32)


def _complete(library: Library, config: TokenizerConfig) -> None:
    """Tokens of the configuration that tokenizer.json lacks or has with other flags."""
    present = {token.content: repr(token) for token in library.get_added_tokens_decoder().values()}
    tokens = [token for token in config.added if present.get(token.content) != repr(token)]
    present |= {token.content: repr(token) for token in tokens}
    for token in config.special:
        if token.content not in present:
            present[token.content] = repr(token)
            tokens.append(token)
    if tokens:
        library.add_tokens(tokens)

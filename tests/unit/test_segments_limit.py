"""A prompt past the context length is refused early, and one within it never is."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, normalizers, pre_tokenizers

from forebay.router.prompt.ladder import Ladder
from forebay.router.prompt.ladder_limit import TooLongError, slack, surely_more
from forebay.router.prompt.ladder_trials import ODD
from forebay.router.prompt.tokenizer import Tokenizer
from forebay.router.prompt.tokenizer_files import TokenizerError
from tests.tokenizers import FAMILIES, examples, ladder, save, small, texts

CHARACTERS = 60_000


class Counting:
    """A tokenizer that notes how many characters it was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: Any) -> list[list[int]]:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts)


def units(found: Ladder) -> st.SearchStrategy[str]:
    tokens = list(found.tokenizer.special_tokens.values())
    mixed = st.text("ab \n1éя日\U0001d4b3", min_size=1, max_size=12)
    plain = st.one_of(st.sampled_from([odd for odd in ODD if odd]), mixed)
    return st.one_of(plain, st.lists(plain, min_size=1, max_size=6).map("".join), texts(tokens, 6))


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
@examples(12, 1_000)
def test_text_within_the_limit_is_never_refused(family: str, data: st.DataObject) -> None:
    found = ladder(family)
    unit = data.draw(units(found)) or " "
    text = data.draw(st.text(max_size=5)) + unit * (CHARACTERS // len(unit)) + data.draw(texts(["x"], 4))
    count = len(found.tokenizer.encode(text))
    ids, _ = found.encode(text, room=count)
    assert len(ids) == count
    with pytest.raises(TooLongError) as caught:
        found.encode(text, room=data.draw(st.integers(0, count - 1)))
    assert caught.value.at_least <= count


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
@examples(25, 3_000)
def test_beginning_has_few_tokens_that_the_whole_has_not(family: str, data: st.DataObject) -> None:
    """What the slack is for: it stands for at least 1,024 tokens, a hundred times what is found here."""
    tokenizer = ladder(family).tokenizer
    unit = data.draw(units(ladder(family))) or " "
    text = unit * min(200, 1 + 3_000 // len(unit))
    whole = len(tokenizer.encode(text))
    for at in data.draw(st.lists(st.integers(0, len(text)), max_size=8)):
        assert len(tokenizer.encode(text[:at])) <= whole + 10


def test_one_long_word_is_refused_by_its_beginning() -> None:
    tokenizer = Counting(ladder("llama2").tokenizer)  # has no words: all between special tokens is one piece
    found = Ladder(tokenizer)  # type: ignore[arg-type]
    tokenizer.characters = 0
    text = "The quick brown fox jumps over the lazy dog" * 50_000
    with pytest.raises(TooLongError) as caught:
        found.encode(text, room=2_000)
    assert 2_000 < caught.value.at_least < 5_000
    assert tokenizer.characters < 60_000 < len(text) // 30


def test_many_segments_are_refused_once_they_are_too_many() -> None:
    tokenizer = Counting(ladder("qwen3").tokenizer)
    found = Ladder(tokenizer)  # type: ignore[arg-type]
    tokenizer.characters = 0
    text = ("<|im_start|>user\n" + "The quick brown fox. " * 40 + "<|im_end|>\n") * 5_000
    with pytest.raises(TooLongError) as caught:
        found.encode(text, room=2_000)
    assert caught.value.at_least > 2_000
    assert tokenizer.characters < 200_000 < len(text) // 20


def test_exactly_the_limit_is_allowed_and_one_more_is_not() -> None:
    found = ladder("smollm2")
    count = len(found.tokenizer.encode("The quick brown fox"))
    found.encode("The quick brown fox", room=count)
    with pytest.raises(TooLongError) as caught:
        found.encode("The quick brown fox", room=count - 1)
    assert caught.value.at_least == count


def test_text_that_normalization_may_shorten_anywhere_is_tokenized_whole(tmp_path: Path) -> None:
    library = small(
        normalizer=normalizers.Replace(Regex("(?m).*END"), "x"), pre_tokenizer=pre_tokenizers.ByteLevel(), unknown=()
    )
    found = Ladder(Tokenizer.load(save(library, tmp_path)))
    text = "hello world " * 20_000
    ids, _ = found.encode(text + "END", room=50)
    assert len(ids) < 10
    with pytest.raises(TooLongError):
        found.encode(text, room=50 + slack(50))


def test_white_space_without_end_is_given_up_before_it_holds_a_thread_for_long() -> None:
    found = ladder("smollm2")
    counting = Counting(found.tokenizer)
    with pytest.raises(TokenizerError, match="are not tokenized"):
        surely_more(counting, " " * (1 << 24), 100_000)  # type: ignore[arg-type]
    assert counting.characters < 1 << 22

"""Tokens of an answer behind those of its prompt: they say it as it was said, or it is not tried."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from forebay.router.prompt.behind import ids_behind
from forebay.router.prompt.tokenizer import Tokenizer
from tests.tokenizers import directory, save, small

ANSWERS = (" is a fox", "is a fox", "  two", "\n\nThe", "été 日本語 x[0]", ".", " ")


def loaded(library: Library, path: Path) -> Tokenizer:
    return Tokenizer.load(save(library, path))


def byte_level() -> Library:
    made = small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), unknown=())
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    return made


def sentence_piece(scheme: str) -> Library:
    """As Llama 2's (`always`) and later ones'."""
    made = small(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False))
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made


@pytest.mark.parametrize("kind", ["bytes", "always", "first", "never"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_they_say_the_answer_behind_the_prompt(tmp_path: Path, kind: str, answer: str) -> None:
    tokenizer = loaded(byte_level() if kind == "bytes" else sentence_piece(kind), tmp_path)
    asked = tokenizer.encode("The quick brown fox jumps").tolist()
    found = ids_behind(tokenizer, asked, answer)
    known = "�" not in tokenizer.decode(tokenizer.encode(answer).tolist()) and "\n" not in answer
    if kind == "bytes" or known:
        assert found, (kind, answer)
    if found is not None:
        assert tokenizer.decode([*asked, *found]) == tokenizer.decode(asked) + answer


def test_what_has_no_faithful_tokens_is_not_tried(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(), tmp_path)
    within = tokenizer.encode("日").tolist()[:-1]  # the answer's first token ends a character of the prompt's
    assert ids_behind(tokenizer, within, "日n") is None
    asked = tokenizer.encode("The fox").tolist()
    assert ids_behind(tokenizer, asked, " it said <|end|> aloud") is None
    assert ids_behind(tokenizer, asked, " half \ufffd") is None
    lower = byte_level()
    lower.normalizer = normalizers.Lowercase()
    (tmp_path / "lower").mkdir()
    assert ids_behind(loaded(lower, tmp_path / "lower"), asked, " THE") is None


def test_a_real_models_tokens_are_those_that_it_makes_of_the_whole() -> None:
    tokenizer = Tokenizer.load(directory("smollm2"))
    for answer in (" the city of Rome.", "\n\nIt is 1,234 m", " été 日本語 🙂"):
        asked = tokenizer.encode("The capital of Italy is").tolist()
        assert ids_behind(tokenizer, asked, answer) == tokenizer.encode("The capital of Italy is" + answer)[5:].tolist()

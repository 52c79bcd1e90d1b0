"""Texts cut at special tokens become the same tokens as whole: properties over real and made-up tokenizers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from forebay.router.prompt.ladder import Ladder, byte_chunks
from forebay.router.prompt.prompt import Rung
from forebay.router.prompt.tokenizer import Tokenizer
from tests.tokenizers import FAMILIES, examples, ladder, save, small, texts

PLENTY = 1 << 30


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, special=True, **{"normalized": False, **flags})


MARKS = [special("<|a|>"), special("</b>"), special("[C]")]


def metaspace(scheme: str, *, split: bool = True) -> pre_tokenizers.Metaspace:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)


MADE: dict[str, Library] = {
    "a prefix only where the text begins": small(pre_tokenizer=metaspace("first", split=False), added=MARKS),
    "a prefix on each part": small(pre_tokenizer=metaspace("always"), added=MARKS),
    "a prefix from the normalizer": small(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), added=MARKS
    ),
    "a space before each part": small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True), added=MARKS),
    "tokens that strip what follows": small(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
        added=[special("<|a|>", rstrip=True), special("</b>", lstrip=True), special("[C]", lstrip=True, rstrip=True)],
    ),
    "other tokens that look at their neighbours": small(
        pre_tokenizer=metaspace("first"),
        added=[*MARKS, special("word", single_word=True), AddedToken("THE"), special(" \n", rstrip=True)],
    ),
    "text stripped and lowered": small(
        "wordpiece",
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Lowercase()]),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        added=[*MARKS, AddedToken("Lower", normalized=True)],
    ),
    "a unigram model": small("unigram", normalizer=normalizers.NFKC(), pre_tokenizer=metaspace("first"), added=MARKS),
    "parts cut by inverted and removed patterns": small(
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True),
                pre_tokenizers.Digits(individual_digits=True),
            ]
        ),
        added=MARKS,
    ),
    "tokens looked for in unchanged text": small(
        added=[special("<|a|>", normalized=True), special("</b>"), special("[C]", normalized=True)]
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ladder]:
    return {name: load(library, tmp_path_factory.mktemp("made")) for name, library in MADE.items()}


def load(library: Library, path: Path, **config: object) -> Ladder:
    return Ladder(Tokenizer.load(save(library, path, **config)))


def cuts(found: Ladder) -> tuple[str, ...]:
    assert found._cuts is not None, found.reason
    return found._cuts.tokens


def check(found: Ladder, data: st.DataObject) -> None:
    tokens = [*found.tokenizer.special_tokens.values(), *cuts(found)]
    text = data.draw(texts(list(dict.fromkeys(tokens))))
    whole = found.tokenizer.encode(text)
    ids, segments = found.encode(text, room=PLENTY, shortest=data.draw(st.sampled_from([1, 1, 5, 40])))
    assert ids.tolist() == whole.tolist()
    assert "".join(segment.text for segment in segments) == text
    for segment in segments:  # what begins alike and goes on otherwise has the same tokens up to there
        if segment.cut:
            rest = data.draw(st.sampled_from(["", " ", "\n x", "a", "\u0301", *tokens]))
            longer = found.tokenizer.encode(text[: segment.end] + rest)
            assert longer[: segment.count].tolist() == whole[: segment.count].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
@examples(60, 5_000)
def test_family_cut_and_whole_is_the_same(family: str, data: st.DataObject) -> None:
    check(ladder(family), data)


@pytest.mark.parametrize("name", MADE)
@given(st.data())
@examples(60, 5_000)
def test_made_up_tokenizer_cut_and_whole_is_the_same(made: dict[str, Ladder], name: str, data: st.DataObject) -> None:
    assert made[name].rung is Rung.SEGMENTS
    check(made[name], data)


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ([], "has no special tokens"),
        ([AddedToken("plain")], "has no special tokens"),
        ([special("<|a|>", single_word=True)], "'<|a|>' is matched as a single word only"),
        ([special("<|a|>", normalized=True)], "'<|a|>' is looked for in normalized text"),
        ([special("<|a|>"), AddedToken("<|a|>\n", normalized=False)], "'<|a|>' can overlap with another"),
        ([special("<|a|>"), AddedToken("|>x", normalized=False)], "'<|a|>' can overlap with another"),
        ([special("<|a|>"), AddedToken("\n<", normalized=False)], "'<|a|>' can overlap with another"),
        ([special("<|a|>"), AddedToken("|a", normalized=False)], "'<|a|>' can overlap with another"),
        ([special("aba")], "'aba' can overlap with another"),
    ],
)
def test_what_cannot_be_cut_is_whole_and_says_why(tmp_path: Path, added: list[AddedToken], says: str) -> None:
    found = load(small(normalizer=normalizers.Lowercase(), added=added, unknown=()), tmp_path)
    assert found.rung is Rung.WHOLE
    assert says in found.reason
    text = "The <|a|>\n quick |>x aba"
    ids, segments = found.encode(text, room=PLENTY)
    assert ids.tolist() == found.tokenizer.encode(text).tolist()
    assert [segment.text for segment in segments] == [text]


def test_tokenizer_that_splits_special_tokens_is_whole(tmp_path: Path) -> None:
    found = load(small(added=MARKS), tmp_path, split_special_tokens=True)
    assert found.rung is Rung.WHOLE
    assert "split_special_tokens" in found.reason


def test_self_test_finds_what_the_rules_do_not_know(tmp_path: Path) -> None:
    library = small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), added=MARKS)
    library.model.dropout = 0.5  # the same text becomes other tokens each time
    found = load(library, tmp_path)
    assert found.rung is Rung.WHOLE
    assert "becomes other tokens than whole" in found.reason


def test_cuts_that_are_left_are_used_and_one_that_is_not_is_named(tmp_path: Path) -> None:
    added = [*MARKS, special("word", single_word=True)]
    found = load(small(pre_tokenizer=pre_tokenizers.ByteLevel(), added=added, unknown=()), tmp_path)
    assert cuts(found) == ("<|a|>", "</b>", "[C]")
    assert "behind 3 of its 4 special tokens ('word' is matched as a single word only)" in found.reason


def test_special_token_across_two_windows_of_the_search_is_found(tmp_path: Path) -> None:
    found = load(small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), added=MARKS), tmp_path)
    assert found._cuts is not None
    for shift in range(8):
        text = "x" * ((1 << 17) - shift) + "<|a|><|a|>y</b>"
        assert [(end - len(text), token) for end, token in found._cuts.find(text)] == [
            (-10, "<|a|>"), (-5, "<|a|>"), (0, "</b>")
        ]  # fmt: skip


def test_segments_are_few_however_many_special_tokens_there_are(tmp_path: Path) -> None:
    found = load(small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), added=MARKS), tmp_path)
    text = "<|a|>" * 200_000
    ids, segments = found.encode(text, room=PLENTY)
    assert len(ids) == 200_000
    assert len(segments) <= 1024 + 1


def test_byte_chunks_tell_beginnings_and_lengths() -> None:
    assert byte_chunks(b"").tolist() == []
    assert byte_chunks(b"\1\0\0\0\2").tolist() == [1, 2]
    text = "é日本語 text".encode() * 100
    ids = byte_chunks(text)
    assert len(ids) == -(-len(text) // 4)
    assert np.array_equal(byte_chunks(text + b"more")[: len(text) // 4], ids[: len(text) // 4])

"""Prompts turn by turn: tokens and keys are those of the whole text, however much of it was remembered."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors

from forebay.router.prefix.keys import Weights
from forebay.router.prompt.ladder import Ladder
from forebay.router.prompt.ladder_limit import TooLongError
from forebay.router.prompt.memory import Memory
from forebay.router.prompt.prompt import Rung
from forebay.router.prompt.text import Counted, Resume, Run, TextMemory
from forebay.router.prompt.tokenizer import Tokenizer
from tests.tokenizers import FAMILIES, examples, ladder, save, small, texts

WEIGHTS = Weights(b"secret")
PLENTY = 1 << 22
SYSTEM = "<|im_start|>system\nYou are a helpful assistant, and patient.<|im_end|>\n"
ANSWER = "<|im_start|>assistant\n"


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


def memory_of(size: int = 1 << 26) -> Memory:
    return Memory(size, size)


def count(
    texts: TextMemory, text: str, *marks: int, project: str = "p", start: Run | None = None, limit: int = PLENTY
) -> Counted:
    known = texts.known(project, start, text)
    assert known is not None
    return texts.remember(known, texts.encode(known, limit=limit), marks)


def unknown(texts: TextMemory, text: str, *, project: str = "p") -> int:
    known = texts.known(project, None, text)
    assert known is not None
    return known.rest


def check(found: Ladder, counted: Counted, text: str) -> None:
    ids = found.tokenizer.encode(text)
    assert counted.tokens.count == len(ids)
    assert counted.tokens.sums.dtype == np.uint64
    assert counted.tokens.sums.tolist() == WEIGHTS.extend(0, 0, ids)[1].tolist()


def resumed(resume: Resume | None) -> Resume:
    assert resume is not None
    return resume


@pytest.fixture(scope="module")
def particular(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    """Of a tokenizer that puts a prefix where a text begins, and whose special tokens take the white space around."""
    marks = [
        AddedToken(token, special=True, normalized=False, lstrip=left, rstrip=right)
        for token, left, right in (("<a>", False, False), ("<b>", False, True), ("<c>", True, True))
    ]
    library = small(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"), added=marks)
    names = {f"{token.content[1]}_token": token.content for token in marks}
    return Ladder(Tokenizer.load(save(library, tmp_path_factory.mktemp("particular"), **names)))


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
@examples(25, 2_000)
def test_any_sequence_of_texts_is_counted_as_each_alone(family: str, data: st.DataObject) -> None:
    check_sequence(ladder(family), data)


@given(st.data())
@examples(60, 10_000)
def test_so_it_is_where_white_space_and_beginnings_matter(particular: Ladder, data: st.DataObject) -> None:
    assert particular.rung is Rung.SEGMENTS
    check_sequence(particular, data)


def test_rest_is_tokenized_behind_what_stands_before_it(particular: Ladder) -> None:
    kept = TextMemory(particular, WEIGHTS, memory_of(), "m")
    for token in ("<a>", "<b>", "<c>"):
        for rest in ("fox", " fox", "  \n fox", "<a>fox", " <c> fox"):
            for text in ("The quick brown " * 20 + token + "brown", "The quick brown " * 20 + token + rest):
                check(particular, count(kept, text), text)


def check_sequence(found: Ladder, data: st.DataObject) -> None:
    memory = memory_of(data.draw(st.sampled_from([1 << 26, 20_000, 8_000])))
    kept = TextMemory(found, WEIGHTS, memory, "m")
    tokens = list(dict.fromkeys(found.tokenizer.special_tokens.values()))
    resumes: list[tuple[str, Resume]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        start: Run | None = None
        goes_on = data.draw(st.booleans())
        if resumes and goes_on:
            before, earlier = resumes[data.draw(st.integers(0, len(resumes) - 1))]
            start, text = earlier.run, earlier.rest + data.draw(texts(tokens))
            whole = before + text[len(earlier.rest) :]
        else:
            before = data.draw(st.sampled_from(["", *(text for text, _ in resumes)]))
            text = whole = before + data.draw(texts(tokens)) * data.draw(st.sampled_from([1, 1, 20]))
        known = kept.known("p", start, text)
        if known is None:
            assert start is not None
            assert not start.alive
            continue
        marks = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        counted = kept.remember(known, kept.encode(known, limit=PLENTY), marks)
        check(found, counted, whole)
        for mark, resume in zip(marks, counted.resumes, strict=True):
            if resume is not None:
                end = len(whole) - len(text) + mark
                assert whole[:end].endswith(resume.rest)
                resumes.append((whole[:end], resume))
    assert memory.bytes <= memory.total_bytes


def test_next_turn_knows_all_but_the_new(tmp_path: Path) -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    history = SYSTEM + user("What is the capital of Spain? " * 20)
    first = count(kept, history + ANSWER, len(history))
    assert unknown(kept, history + ANSWER) < 200
    more = ANSWER + "Madrid. " * 30 + "<|im_end|>\n" + user("And of France?" * 10)
    assert unknown(kept, history + more + ANSWER) < 200 + len(more)
    resume = resumed(first.resumes[0])
    assert len(resume.rest) < 200
    second = count(kept, resume.rest + more + ANSWER, start=resume.run)
    check(found, second, history + more + ANSWER)
    assert second.tokens.sums[: len(first.tokens.sums)].tolist() == first.tokens.sums.tolist()


def test_marks_in_what_was_known_and_in_what_is_new_resume_there() -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    turns = [user(f"{i} " * 200) for i in range(12)]
    ends = [sum(map(len, turns[: i + 1])) for i in range(12)]
    count(kept, "".join(turns[:6]))
    counted = count(kept, "".join(turns) + ANSWER, 0, *ends)
    assert resumed(counted.resumes[0]) == Resume(resumed(counted.resumes[0]).run, "")
    for end, resume in zip(ends, counted.resumes[1:], strict=True):
        after = count(kept, resumed(resume).rest + "<|im_end|>other", start=resumed(resume).run)
        check(found, after, "".join(turns)[:end] + "<|im_end|>other")
        assert len(resumed(resume).rest) < 200


def test_segments_that_are_cut_elsewhere_the_next_time_keep_the_keys_apart() -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    long = "".join(f"{i} 日本é{i} й<|im_end|>" for i in range(6_000)) + "x" * 70_000 + "<|im_end|>"
    for text in (long, long[:190], long, long[:600], long + "end", long[:1_000]):
        check(found, count(kept, text), text)


def test_other_projects_and_models_know_nothing() -> None:
    found, memory = ladder("smollm2"), memory_of()
    text = SYSTEM + user("hello " * 100)
    one = TextMemory(found, WEIGHTS, memory, "m")
    count(one, text)
    assert unknown(one, text) < 100
    assert unknown(one, text, project="q") == len(text)
    assert unknown(TextMemory(found, WEIGHTS, memory, "n"), text) == len(text)
    assert unknown(TextMemory(found, WEIGHTS, memory, "m", completions=True), text) == len(text)


def test_end_that_may_go_on_is_not_remembered_as_its_tokens() -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    for text in (SYSTEM + "hello wor", SYSTEM + "hello world", SYSTEM + "hello wor<|im_end|>", SYSTEM + "hello "):
        check(found, count(kept, text * 3), text * 3)
        check(found, count(kept, text), text)


def test_text_without_special_tokens_is_remembered_as_a_whole_only() -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m", completions=True)
    text = "Once upon a time there was a king. " * 200
    check(found, count(kept, text), text)
    assert unknown(kept, text) == 0
    assert unknown(kept, text + "s") == len(text) + 1
    assert unknown(kept, text[:-1]) == len(text) - 1
    counted = count(kept, text, 10)
    check(found, counted, text)
    assert resumed(counted.resumes[0]).rest == text[:10]


def test_model_whose_texts_are_not_cut_remembers_wholes(tmp_path: Path) -> None:
    library = small(added=[AddedToken("word", special=True, single_word=True, normalized=False)], unknown=())
    found = Ladder(Tokenizer.load(save(library, tmp_path)))
    assert found.rung is Rung.WHOLE
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    for text in ("The quick word", "The quick word brown", "The", "The quick words", "The quick word"):
        counted = count(kept, text, 3)
        check(found, counted, text)
        assert unknown(kept, text) == 0
        assert resumed(counted.resumes[0]).rest == "The"
    start = resumed(count(kept, "The quick word", 9).resumes[0])
    check(found, count(kept, start.rest + " word fox", start=start.run), "The quick word fox")


def test_completions_begin_and_end_with_what_engines_add(tmp_path: Path) -> None:
    marks = [AddedToken(content, special=True, normalized=False) for content in ("<s>", "</s>")]
    library = small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), added=marks, unknown=())
    ids = [(token, library.token_to_id(token) or 0) for token in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(single="<s> <s> $A </s>", special_tokens=ids)
    found = Ladder(Tokenizer.load(save(library, tmp_path)))
    kept = TextMemory(found, WEIGHTS, memory_of(), "m", completions=True)
    line = "The quick brown fox jumps. " * 10
    long = line + "</s>" + line * 20
    for text in ("", "a", line, line + "</s>" + line, line + "</s>", long, long):
        expected = np.array(library.encode(text).ids, np.uint32)
        counted = count(kept, text)
        assert counted.tokens.count == len(expected)
        assert counted.tokens.sums.tolist() == WEIGHTS.extend(0, 0, expected)[1].tolist()
        assert count(kept, text, limit=len(expected)).tokens.count == len(expected)
        with pytest.raises(TooLongError):
            count(kept, text, limit=len(expected) - 1)
    assert unknown(kept, long) == 0


def test_too_long_says_how_long_at_least_known_tokens_included() -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    text = SYSTEM + user("hello " * 200)
    total = count(kept, text).tokens.count
    for limit in (0, 10, total - 1):
        with pytest.raises(TooLongError) as caught:
            count(kept, text, limit=limit)
        assert limit < caught.value.at_least <= total
    assert count(kept, text, limit=total).tokens.count == total


def test_what_was_given_up_cannot_be_gone_on_from() -> None:
    found, memory = ladder("smollm2"), memory_of(30_000)
    kept = TextMemory(found, WEIGHTS, memory, "m")
    resume = resumed(count(kept, user("old " * 300), len(user("old " * 300))).resumes[0])
    assert kept.known("p", resume.run, "more") is not None
    for i in range(20):
        count(kept, user(f"{i} new " * 300))
    assert not resume.run.alive
    assert kept.known("p", resume.run, "more") is None


def test_memory_lost_while_a_prompt_is_tokenized_changes_nothing_of_it() -> None:
    found, memory = ladder("smollm2"), memory_of(30_000)
    kept = TextMemory(found, WEIGHTS, memory, "m")
    old = user("old " * 300)
    count(kept, old)
    text = old + user("and more " * 50) + ANSWER
    known = kept.known("p", None, text)
    assert known is not None
    assert 0 < known.rest < len(text)
    pieces = kept.encode(known, limit=PLENTY)
    for i in range(20):
        count(kept, user(f"{i} new " * 300))
    assert not known.run.alive
    counted = kept.remember(known, pieces, [len(old), len(text)])
    check(found, counted, text)
    assert counted.resumes == [None, None]
    check(found, count(kept, text), text)


def test_nothing_is_remembered_without_room_and_all_is_counted() -> None:
    found = ladder("smollm2")
    kept = TextMemory(found, WEIGHTS, Memory(10, 10), "m")
    text = SYSTEM + user("hello " * 100)
    counted = count(kept, text, 5)
    check(found, counted, text)
    assert counted.resumes == [None]


def test_texts_may_be_tokenized_in_several_threads_at_a_time() -> None:
    found = ladder("qwen3")
    kept = TextMemory(found, WEIGHTS, memory_of(), "m")
    wanted = [SYSTEM + user(f"{i} words " * 2_000) for i in range(8)]
    knowns = [known for i, text in enumerate(wanted) if (known := kept.known(str(i), None, text))]
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda known: kept.encode(known, limit=PLENTY), knowns))
    for text, known, pieces in zip(wanted, knowns, done, strict=True):
        check(found, kept.remember(known, pieces), text)

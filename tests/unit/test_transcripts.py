"""What is remembered of conversations' bytes: never more than a body has in common with one that was read before."""

import json
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from forebay.platform.api.requests import ChatSource, Inference, decode
from forebay.platform.api.transcripts import Known, Marks, Transcripts, messages_from, nearest, offset
from forebay.router import Checkpoint, Memory

TEXTS = st.text("ab\"\\[],{é\n", max_size=6)
MESSAGES = st.lists(st.builds(lambda text: {"role": "user", "content": text}, TEXTS), min_size=1, max_size=7)
MEMBERS = st.sampled_from([{}, {"tools": [{"type": "function"}]}, {"temperature": 0.5}])


class Point(Struct, frozen=True):
    """Stands for a checkpoint: only its owner looks into one."""

    conversation: list[Any]
    nbytes: int = 10


def body(messages: list[Any], before: dict[str, Any], after: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", **before, "messages": messages, **after}).encode()


def read(transcripts: Transcripts, project: str, body: bytes) -> tuple[Known | None, Inference, ChatSource]:
    known = transcripts.known(project, body)
    inference, source = decode("chat.completions", body, known.prior if known else None)
    assert isinstance(source, ChatSource)
    return known, inference, source


def remember(transcripts: Transcripts, project: str, text: bytes, every: int = 1) -> None:
    known, _, source = read(transcripts, project, text)
    messages = json.loads(text)["messages"]
    points = {n: cast("Checkpoint", Point(messages[:n])) for n in range(1, len(messages) + 1) if n % every == 0}
    transcripts.remember(project, known, source, text, Marks(source.rendered, points))


@given(st.lists(st.tuples(MESSAGES, MEMBERS, MEMBERS), min_size=1, max_size=6), st.integers(1, 3))
def test_whatever_was_read_before_a_body_means_what_it_says(
    bodies: list[tuple[list[Any], dict[str, Any], dict[str, Any]]], every: int
) -> None:
    transcripts = Transcripts(Memory(1 << 24, 1 << 24))
    for messages, before, after in bodies:
        for end in range(1, len(messages) + 1):
            text = body(messages[:end], before, after)
            known, inference, source = read(transcripts, "p", text)
            assert inference == decode("chat.completions", text)[0]
            if known is not None:
                count = known.prior.messages
                assert source.messages == messages[count:end]
                for start in range(count + 1):
                    assert messages_from(known, offset(known, start)) == messages[start:count]
                point = nearest(known, source.rendered)
                if point is not None:
                    conversation = cast("Point", point).conversation
                    assert conversation == messages[: len(conversation)]
            remember(transcripts, "p", text, every)


def test_the_next_turn_is_known_up_to_its_last_checkpoint() -> None:
    transcripts = Transcripts(Memory(1 << 24, 1 << 24))
    messages = [{"role": "user", "content": f"message {number}"} for number in range(9)]
    remember(transcripts, "p", body(messages[:7], {}, {"stream": True}))
    known, _, source = read(transcripts, "p", body(messages, {}, {"stream": False}))
    assert known is not None
    assert known.prior.messages == 7
    assert cast("Point", nearest(known, source.rendered)).conversation == messages[:7]
    assert nearest(known, b"other tools") is None


def test_one_that_forks_again_at_the_same_message_goes_on_from_there() -> None:
    transcripts = Transcripts(Memory(1 << 24, 1 << 24))
    messages = [{"role": "user", "content": f"message {number}"} for number in range(9)]
    remember(transcripts, "p", body(messages, {}, {}), every=3)
    for fork, point in (("one", 3), ("another", 5)):
        text = body([*messages[:5], {"role": "user", "content": fork}], {}, {})
        known, _, source = read(transcripts, "p", text)
        assert known is not None
        assert known.prior.messages == 5
        assert cast("Point", nearest(known, source.rendered)).conversation == messages[:point]
        remember(transcripts, "p", text, every=5)


def test_the_same_conversation_again_is_known_but_for_its_last_message() -> None:
    transcripts = Transcripts(Memory(1 << 24, 1 << 24))
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    remember(transcripts, "p", body(messages, {}, {}))
    known, _, source = read(transcripts, "p", body(messages, {}, {}))
    assert known is not None
    assert known.prior.messages == 1
    assert source.messages == messages[1:]


def test_nobody_knows_what_another_project_sent() -> None:
    transcripts = Transcripts(Memory(1 << 24, 1 << 24))
    text = body([{"role": "user", "content": "a"}] * 3, {}, {})
    remember(transcripts, "p", text)
    assert transcripts.known("p", text) is not None
    assert transcripts.known("q", text) is None


def test_endless_text_of_one_project_leaves_what_another_remembers() -> None:
    transcripts = Transcripts(memory := Memory(1 << 18, 1 << 18))
    mine = body([{"role": "user", "content": "mine"}] * 20, {}, {})
    remember(transcripts, "p", mine)
    for number in range(300):
        remember(transcripts, "flood", body([{"role": "user", "content": f"{number} " * 500}] * 3, {}, {}))
    assert memory.bytes <= 1 << 18
    assert transcripts.known("p", mine) is not None


def test_what_was_given_up_while_a_body_was_read_is_still_known_by_its_bytes_and_not_built_upon() -> None:
    memory = Memory(1 << 16, 1 << 16)
    transcripts = Transcripts(memory)
    messages = [{"role": "user", "content": f"message {number} {'x' * 2_000}"} for number in range(4)]
    remember(transcripts, "p", body(messages[:2], {}, {}))
    text = body(messages[:3], {}, {})
    known, _, source = read(transcripts, "p", text)
    assert known is not None
    assert known.prior.messages == 2
    for number in range(60):
        remember(transcripts, "p", body([{"role": "user", "content": f"{number} {'y' * 1_500}"}], {}, {}))
    assert not known.node.alive
    assert nearest(known, source.rendered) is None
    assert messages_from(known, offset(known, 0)) == messages[:2]
    transcripts.remember("p", known, source, text, Marks(source.rendered, {}))
    tail = text[known.prior.end :]
    assert tail.startswith(b", {")
    assert transcripts.known("p", text[: known.prior.head] + tail[:-2] + b', {"role": "user"}]}') is None


def test_megabytes_of_white_space_behind_a_message_are_no_part_of_what_is_known() -> None:
    transcripts = Transcripts(Memory(1 << 24, 1 << 24))
    messages = [{"role": "user", "content": text} for text in "abc"]
    remember(transcripts, "p", body(messages[:2], {}, {}))
    for gap, count in ((b" " * 200 + b",", 2), (b" " * 300 + b",", 1), (b"," + b"\n" * 300, 1)):
        last = json.dumps(messages[2]).encode()
        text = body(messages, {}, {}).replace(b", " + last, gap + last)
        known, inference, _ = read(transcripts, "p", text)
        assert known is not None
        assert known.prior.messages == count
        assert inference == decode("chat.completions", text)[0]

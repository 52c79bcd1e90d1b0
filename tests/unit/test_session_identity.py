"""What names a session: each source, which one counts, and that none of it can be mistaken for another's."""

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.api.session_identity import HEADERS, MAX_VALUE, UNNAMED, named_session

PROJECT = "proj_a"
ID = b"6b8a1f0e-2b7e-4c55-9a7e-0d5b1c3f9e11"
WANTED = re.compile(r"[0-9a-f]{32}")
_names = st.sampled_from([name.encode() for name in HEADERS])


def key(header: str, value: bytes = ID, project: str = PROJECT) -> str:
    return named_session(project, {header.encode(): value}).key


@pytest.mark.parametrize(
    "header",
    ["x-forebay-session-id", "x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"],
)
def test_what_agent_clients_send_names_a_session(header: str) -> None:
    named = named_session(PROJECT, {b"user-agent": b"x", header.encode(): ID})
    assert named.source == header
    assert WANTED.fullmatch(named.key)
    assert named.key == key(header), "the same for each request of the session"
    assert named.key != key(header, b"another")


def test_the_member_names_a_session_where_no_header_does() -> None:
    named = named_session(PROJECT, {b"authorization": b"Bearer x"}, "task-17")
    assert named.source == "prompt_cache_key"
    assert WANTED.fullmatch(named.key)
    assert named_session(PROJECT, {b"session_id": ID}, "task-17").source == "session_id"


def test_without_either_there_is_no_session() -> None:
    assert named_session(PROJECT, {b"authorization": b"Bearer x", b"x-session-id": ID}) == UNNAMED
    assert not UNNAMED.key
    assert not UNNAMED.source


@pytest.mark.parametrize(("first", "second"), list(combinations(HEADERS, 2)))
def test_the_first_source_counts_whatever_the_order_of_the_headers(first: str, second: str) -> None:
    named = named_session(PROJECT, {second.encode(): b"other", first.encode(): ID})
    assert (named.source, named.key) == (first, key(first))


def test_sub_agents_that_send_their_roots_id_are_of_its_session() -> None:
    root = {b"x-claude-code-session-id": ID, b"user-agent": b"claude-cli"}
    assert named_session(PROJECT, root | {b"x-app": b"cli-bg"}).key == named_session(PROJECT, root).key


def test_an_opencode_sub_agent_is_of_the_session_that_started_it() -> None:
    root = named_session(PROJECT, {b"x-session-affinity": b"ses_root"})
    child = {b"x-session-affinity": b"ses_child", b"x-parent-session-id": b"ses_root"}
    assert named_session(PROJECT, child) == root
    assert named_session("proj_b", child).key != root.key
    for odd in (b"", b"x" * (MAX_VALUE + 1), b"ses\nroot"):
        named = named_session(PROJECT, child | {b"x-parent-session-id": odd})
        assert named.key == key("x-session-affinity", b"ses_child")
    assert named_session(PROJECT, {b"x-parent-session-id": b"ses_root"}) == UNNAMED, "alone it names nothing"
    ours = child | {b"x-forebay-session-id": ID}
    assert named_session(PROJECT, ours).key == key("x-forebay-session-id"), "a header of another kind has no parent"


@given(_names, st.text("abc_0", min_size=1), st.text("abc_0", min_size=1), st.binary(min_size=1, max_size=40))
def test_projects_never_meet(header: bytes, one: str, other: str, value: bytes) -> None:
    ours, theirs = named_session(one, {header: value}), named_session(other, {header: value})
    assert (ours.key == theirs.key) == (one == other or ours == UNNAMED)


def test_sources_never_meet() -> None:
    keys = [key(header) for header in HEADERS] + [named_session(PROJECT, {}, ID.decode()).key]
    assert len(set(keys)) == len(HEADERS) + 1


def test_a_value_cannot_be_cut_elsewhere_to_be_anothers() -> None:
    """Where one part ends and the next begins is part of what is hashed."""
    assert key("x-forebay-session-id", ID, "p") != key("session-id", ID, "px-forebay-")


@pytest.mark.parametrize(
    "value",
    [b"", b"x" * (MAX_VALUE + 1), b"x\x00y", b"x\ny", b"\t", b"x\x1b[31m", b"x\x7f"],
    ids=["empty", "long", "zero", "newline", "tab", "escape", "delete"],
)
def test_a_header_that_cannot_be_meant_is_passed_over(value: bytes) -> None:
    assert named_session(PROJECT, {b"x-forebay-session-id": value}) == UNNAMED
    named = named_session(PROJECT, {b"x-forebay-session-id": value, b"session_id": ID}, "task")
    assert named.source == "session_id"


@pytest.mark.parametrize(
    "value", [b"x", b"x" * MAX_VALUE, b'"}{', b"../../etc", b"' OR 1=1 --", "größe ☃".encode(), b"\xff\xfe"]
)
def test_whatever_else_is_written_becomes_32_hex_digits(value: bytes) -> None:
    assert WANTED.fullmatch(key("x-session-affinity", value))


@given(st.text(min_size=1, max_size=1024))
def test_every_member_that_was_accepted_names_a_session(value: str) -> None:
    assert WANTED.fullmatch(named_session(PROJECT, {}, value).key)


def test_a_lone_surrogate_is_no_fault() -> None:
    assert WANTED.fullmatch(named_session(PROJECT, {}, "\ud800").key)


@given(st.dictionaries(_names, st.binary(max_size=300)), st.text(max_size=20))
def test_nothing_that_a_tenant_writes_gets_through(headers: dict[bytes, bytes], member: str) -> None:
    named = named_session(PROJECT, headers, member)
    assert named.source in ("", *HEADERS, "prompt_cache_key")
    assert not named.key or WANTED.fullmatch(named.key)
    assert bool(named.key) == bool(named.source)

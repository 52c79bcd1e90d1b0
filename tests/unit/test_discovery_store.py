"""A list and the events after it: what is there now, whatever comes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.discovery.pods import Pod
from forebay.router.discovery.store import ContentError, ExpiredError, Store
from tests.doubles.kubernetes import Object, pod


def at(version: int, one: Object) -> Object:
    return {**one, "metadata": {**one["metadata"], "resourceVersion": str(version)}}


def listing(*objects: Object, version: str = "5", more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": objects or None}).encode()


def event(kind: str, one: Any) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode()


def listed(*objects: Object) -> Store[Pod]:
    store = Store(Pod)
    store.begin()
    assert store.page(listing(*objects)) == ""
    return store


def test_pages_are_in_force_together_and_events_change_them() -> None:
    store = listed(pod("old"))
    store.begin()
    assert store.page(listing(pod("a"), more="next")) == "next"
    assert set(store.items) == {"old"}
    assert store.page(listing(pod("b"), version="7")) == ""
    assert (set(store.items), store.version) == ({"a", "b"}, "7")
    before = store.items
    assert store.event(event("ADDED", at(8, pod("c", "10.0.0.9"))))
    assert store.event(event("MODIFIED", at(9, pod("a", deleted=True))))
    assert store.event(event("DELETED", at(10, pod("b"))))
    assert not store.event(event("BOOKMARK", {"metadata": {"resourceVersion": "99"}}))
    assert (set(store.items), store.version) == ({"a", "c"}, "99")
    assert store.items["a"].metadata.deletion_timestamp
    assert set(before) == {"a", "b"}  # whoever reads it is not disturbed


def test_what_is_too_old_is_listed_anew_and_what_is_known_stays_until_then() -> None:
    store = listed(pod("a"))
    with pytest.raises(ExpiredError):
        store.event(event("ERROR", {"code": 410, "message": "too old resource version"}))
    store.expire()
    assert (set(store.items), store.version) == ({"a"}, "")
    with pytest.raises(ContentError, match="500 oops"):
        store.event(event("ERROR", {"code": 500, "message": "oops"}))


@pytest.mark.parametrize("line", [b"<html>", b"[]", b"{}", b'{"type":"ADDED","object":5}', b'{"type":5,"object":{}}',
                                  b'{"type":"ADDED","object":{"metadata":5}}', b"\xff"])  # fmt: skip
def test_nonsense_is_said_and_costs_nothing(line: bytes) -> None:
    store = listed(pod("a"))
    with pytest.raises(ContentError):
        store.event(line)
    store.begin()
    if line != b"{}":
        with pytest.raises(ContentError):
            store.page(line)
    assert set(store.items) == {"a"}


def test_one_object_that_cannot_be_read_costs_no_other() -> None:
    odd = {**pod("odd"), "status": {"podIP": 5}}
    store = listed(pod("a"), odd)
    assert (set(store.items), store.odd) == ({"a"}, 1)
    store.event(event("ADDED", at(6, pod("b"))))
    store.event(event("MODIFIED", at(7, {**pod("b"), "spec": 5})))
    assert set(store.items) == {"a"}  # rather than how it was


_names = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]), _names), max_size=30))
def test_events_end_where_a_list_would(events: list[tuple[str, str]]) -> None:
    store, there = listed(pod("a")), {"a": "10.0.0.1"}
    for number, (kind, name) in enumerate(events):
        store.event(event(kind, at(10 + number, pod(name, f"10.0.1.{number}"))))
        if kind == "DELETED":
            there.pop(name, None)
        elif kind != "BOOKMARK":
            there[name] = f"10.0.1.{number}"
    assert {name: one.status.ip for name, one in store.items.items()} == there
    assert store.version == (str(9 + len(events)) if events else "5")

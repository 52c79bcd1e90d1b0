"""The key cache's races and bounds, as transcripts without a database."""

import pytest

from forebay.platform.tenancy.cache import Change, KeyCache, Known, Refusal
from forebay.platform.tenancy.principal import Principal, Scope

UNKNOWN = Refusal(401, "invalid_api_key", "unknown")


def known(key: str = "key_1", project: str = "proj_1", tenant: str = "ten_1") -> Known:
    return Known(Principal(key, tenant, project, frozenset({Scope.INFERENCE})), None)


def cache(capacity: int = 10, refusals: int = 10) -> KeyCache:
    return KeyCache(capacity, refusals, refusal_ttl=5.0)


def put(keys: KeyCache, digest: bytes, found: Known | Refusal, now: float = 0.0) -> bool:
    return keys.finish(keys.begin(), digest, found, now)


@pytest.mark.parametrize("identifier", ["key_1", "proj_1", "ten_1"])
def test_change_of_key_project_or_tenant_forgets_the_key_and_no_other(identifier: str) -> None:
    keys = cache()
    put(keys, b"a", known())
    put(keys, b"b", known("key_2", "proj_2", "ten_2"))
    keys.apply([Change("key", identifier)])
    assert keys.known(b"a") is None
    assert keys.known(b"b") is not None


@pytest.mark.parametrize("change", [Change("key", "key_1"), Change("project", "proj_1"), Change("tenant", "ten_1")])
def test_load_that_a_change_overtook_is_not_remembered(change: Change) -> None:
    keys = cache()
    load = keys.begin()
    keys.apply([change])  # between the database's answer and our hearing of it
    assert not keys.finish(load, b"a", known(), 0.0)
    assert keys.known(b"a") is None
    assert put(keys, b"a", known())


def test_change_of_somebody_else_does_not_spoil_a_load() -> None:
    keys = cache()
    load = keys.begin()
    keys.apply([Change("key", "key_9"), Change("tenant", "ten_9")])
    assert keys.finish(load, b"a", known(), 0.0)


def test_key_created_while_it_was_found_unknown_is_read_again() -> None:
    keys = cache()
    load = keys.begin()
    keys.apply([Change("key", "key_new")])
    assert not keys.finish(load, b"a", UNKNOWN, 0.0)
    load = keys.begin()
    keys.apply([Change("tenant", "ten_1")])
    assert keys.finish(load, b"a", UNKNOWN, 0.0)


def test_lost_changes_forget_everything_loads_included() -> None:
    keys = cache()
    put(keys, b"a", known())
    put(keys, b"b", UNKNOWN)
    load = keys.begin()
    keys.apply(None)
    assert keys.known(b"a") is None
    assert keys.refused(b"b", 0.0) is None
    assert not keys.finish(load, b"c", known(), 0.0)


def test_failed_load_leaves_nothing_behind() -> None:
    keys = cache()
    assert not keys.finish(keys.begin(), b"a", None, 0.0)
    assert repr(keys) == "<KeyCache 0 known, 0 refused, 0 loading>"


def test_refusals_last_moments_and_end_with_the_next_new_key() -> None:
    keys = cache()
    put(keys, b"a", UNKNOWN, now=0.0)
    assert keys.refused(b"a", 4.9) is UNKNOWN
    assert keys.refused(b"a", 5.0) is None
    put(keys, b"a", UNKNOWN, now=10.0)
    keys.apply([Change("key", "key_new")])
    assert keys.refused(b"a", 10.0) is None


def test_suspension_that_is_lifted_is_forgotten() -> None:
    keys = cache()
    suspended = Refusal(403, "tenant_suspended", "suspended", ("key_1", "proj_1", "ten_1"))
    put(keys, b"a", suspended)
    keys.apply([Change("tenant", "ten_1")])
    assert keys.refused(b"a", 0.0) is None


def test_strangers_do_not_push_out_known_keys() -> None:
    keys = cache(capacity=2, refusals=3)
    put(keys, b"a", known())
    for number in range(100):
        put(keys, b"stranger%d" % number, UNKNOWN)
    assert keys.known(b"a") is not None
    assert repr(keys) == "<KeyCache 1 known, 3 refused, 0 loading>"


def test_least_recently_used_goes_first_and_leaves_no_trace() -> None:
    keys = cache(capacity=2)
    put(keys, b"a", known("key_a"))
    put(keys, b"b", known("key_b"))
    keys.known(b"a")
    put(keys, b"c", known("key_c"))
    assert [keys.known(digest) is None for digest in (b"a", b"b", b"c")] == [False, True, False]
    assert set(keys._by_id) == {"key_a", "key_c", "proj_1", "ten_1"}
    keys.apply([Change("tenant", "ten_1")])
    assert len(keys) == 0
    assert not keys._by_id or all(not digests for digests in keys._by_id.values())

"""How keys are written and hashed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.errors import ApiError
from forebay.platform.tenancy import validate
from forebay.platform.tenancy.auth import bearer, require
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.keys import Kind, generate, prefix_of, public_part, without_secrets
from forebay.platform.tenancy.principal import Principal, Scope

OLD, NEW = ("old", b"o" * 32), ("new", b"n" * 32)


@pytest.mark.parametrize(("kind", "start", "length"), [("project", "sk-fb-", 68), ("admin", "sk-fb-admin-", 74)])
def test_key_says_what_it_is_and_never_repeats(kind: Kind, start: str, length: int) -> None:
    made = [generate(kind) for _ in range(100)]
    assert len({text for text, _ in made}) == 100
    for text, prefix in made:
        assert text.startswith(start)
        assert len(text) == length
        assert text.startswith(prefix + "-")
        assert prefix_of(text.encode()) == prefix == public_part(text) == public_part(prefix)


def test_every_wrong_character_is_noticed_without_a_lookup() -> None:
    text, _ = generate("project")
    for position in range(len(text)):
        other = "x" if text[position] != "x" else "y"
        assert prefix_of((text[:position] + other + text[position + 1 :]).encode()) is None
    assert prefix_of(text[:-1].encode()) is None
    assert prefix_of((text + "\n").encode()) is None


@given(st.binary(max_size=200))
def test_garbage_is_no_key(garbage: bytes) -> None:
    assert prefix_of(garbage) is None


def test_old_peppers_are_recognised_and_unknown_ones_are_not() -> None:
    token = generate("project")[0].encode()
    pepper, digest = Hasher([OLD]).hash(token)
    both = Hasher([NEW, OLD])
    assert both.matches(token, pepper, digest)
    assert not both.matches(token + b"x", pepper, digest)
    assert both.hash(token)[0] == "new"
    assert not Hasher([NEW]).matches(token, pepper, digest)
    assert "ooo" not in repr(both)


@pytest.mark.parametrize("peppers", [[], [("short", b"x" * 31)], [OLD, OLD]])
def test_unusable_peppers_are_refused(peppers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(ValueError) as caught:
        Hasher(peppers)
    assert "xxx" not in str(caught.value)


@pytest.mark.parametrize(
    ("authorization", "api_key", "token"),
    [
        (b"Bearer abc", None, b"abc"),
        (b"bearer  abc ", b"other", b"abc"),
        (None, b"abc", b"abc"),
    ],
)
def test_where_a_key_may_be_sent(authorization: bytes | None, api_key: bytes | None, token: bytes) -> None:
    assert bearer(authorization, api_key) == token


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [(None, None), (b"", b""), (b"Bearer ", None), (b"Basic c2VjcmV0", None), (b"Basic c2VjcmV0", b"abc")],
)
def test_missing_or_oddly_sent_keys(authorization: bytes | None, api_key: bytes | None) -> None:
    with pytest.raises(ApiError) as caught:
        bearer(authorization, api_key)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert caught.value.headers["www-authenticate"] == "Bearer"
    assert "c2VjcmV0" not in str(caught.value.body())


def test_scope_that_lacks_is_403() -> None:
    admin = Principal("key_1", "", "", frozenset({Scope.ADMIN}))
    require(admin, Scope.ADMIN)
    with pytest.raises(ApiError) as caught:
        require(admin, Scope.INFERENCE)
    assert (caught.value.status, caught.value.code) == (403, "insufficient_scope")


def test_no_key_is_both_admin_and_for_inference() -> None:
    for kind in ("project", "admin"):
        assert not {Scope.ADMIN, Scope.INFERENCE} <= validate.ALLOWED[kind]


def test_keys_are_taken_out_of_texts_even_where_they_were_cut() -> None:
    kinds: tuple[Kind, ...] = ("project", "admin")
    for kind in kinds:
        key, prefix = generate(kind)
        for cut in (len(key), 40, len(prefix) + 2):
            assert without_secrets(f"No model '{key[:cut]}' is here.") == f"No model '{prefix}-…' is here."
        assert without_secrets(f"key {prefix} was revoked") == f"key {prefix} was revoked"
    assert ApiError(404, "x", key, param=key).body().decode().count(prefix + "-…") == 2
    assert key not in repr(ApiError(404, "x", key))

"""What may be stored about tenants, projects and keys. Pure; every refusal is an ApiError that names the field."""

import re
from collections.abc import Iterable

from forebay.platform.errors import ApiError, invalid
from forebay.platform.tenancy.keys import LOOKS_LIKE_A_KEY, Kind
from forebay.platform.tenancy.principal import Scope

ALLOWED: dict[Kind, frozenset[Scope]] = {
    "project": frozenset({Scope.INFERENCE, Scope.USAGE_READ, Scope.DEBUG}),
    "admin": frozenset({Scope.ADMIN, Scope.USAGE_READ}),
}
DEFAULT: dict[Kind, frozenset[Scope]] = {
    "project": frozenset({Scope.INFERENCE}),
    "admin": frozenset({Scope.ADMIN}),
}
MAX_LIFETIME = 10 * 366 * 86_400.0
MAX_GRACE = 90 * 86_400.0
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0


def name(text: str, what: str, param: str = "name") -> str:
    """A display name: 1 to 128 printable characters, no spaces around it, and not a key pasted into the wrong field."""
    if not 1 <= len(text) <= 128 or text != text.strip() or not text.isprintable():
        raise invalid(f"a {what}'s name has 1 to 128 printable characters and no spaces around it", param=param)
    if LOOKS_LIKE_A_KEY.search(text):
        raise invalid(f"a {what}'s name may not contain an API key", param=param)
    return text


def scopes(kind: Kind, wanted: Iterable[str] | None) -> list[str]:
    """The scopes of a new key, sorted; the kind's default where none are named."""
    if wanted is None:
        return sorted(DEFAULT[kind])
    names = set(wanted)
    allowed = {str(scope) for scope in ALLOWED[kind]}
    if not names:
        raise invalid("a key needs at least one scope", param="scopes", code="invalid_scope")
    if unknown := sorted(names - allowed):
        shown = ", ".join(repr(scope[:40]) for scope in unknown[:5])
        raise invalid(
            f"{shown}: not a scope of {'an admin' if kind == 'admin' else 'a project'} key; "
            f"allowed are {', '.join(sorted(allowed))}",
            param="scopes",
            code="invalid_scope",
        )
    return sorted(names)


def expiry(expires_at: float | None, now: float) -> float | None:
    """Unix seconds in the future, at most ten years ahead."""
    if expires_at is None:
        return None
    if not now < expires_at:
        raise invalid("expires_at is in the past", param="expires_at", code="invalid_expiry")
    if expires_at > now + MAX_LIFETIME:
        raise invalid("expires_at is more than ten years away", param="expires_at", code="invalid_expiry")
    return expires_at


def grace(seconds: float) -> float:
    if not 0 <= seconds <= MAX_GRACE:
        raise invalid("grace_seconds is between 0 and 90 days", param="grace_seconds", code="invalid_grace")
    return seconds


def weight(number: float) -> float:
    if not LEAST_WEIGHT <= number <= MOST_WEIGHT:
        raise invalid(f"weight is between {LEAST_WEIGHT:g} and {MOST_WEIGHT:g}", param="weight", code="invalid_weight")
    return number


def limit(number: int) -> int:
    """Entries of a page, and one more by which to see that there are more."""
    if not 1 <= number <= 1001:
        raise invalid("limit is between 1 and 1000", param="limit")
    return number


_ID = re.compile(r"[a-z]{3,4}_[0-9a-f]{24}")


def identifier(text: str, what: str) -> None:
    """Nothing that is not written like an id reaches the database, which refuses some characters with an error."""
    if not _ID.fullmatch(text):
        raise not_found(what, text)


def not_found(what: str, asked: str) -> ApiError:
    """The same answer for what does not exist and for what belongs to somebody else."""
    return ApiError(404, f"{what.replace(' ', '_')}_not_found", f"there is no {what} {asked[:128]!r}")


def conflict(code: str, message: str, *, param: str | None = None) -> ApiError:
    return ApiError(409, code, message, param=param)

"""Reports on load as they travel."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.platform.config.model import Config, Stores
from forebay.platform.sharing.wire import SIZE_LIMIT, VERSION, WireError, channel_of, decoded, encoded
from forebay.router import Entry, Report
from forebay.router.contexts import MOST_STEPS, Step
from forebay.router.loads import Share
from forebay.router.peers import MOST_ENTRIES

REPORT = Report("front-0-0123456789ab", 7, [Entry("main", "engine-0", Share(1, 64, 500, 0, 90_000))])


def packed(*value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def test_a_report_arrives_as_it_was() -> None:
    assert decoded(encoded(REPORT)) == REPORT
    assert len(encoded(REPORT)) < 100


def test_the_largest_report_is_not_too_large() -> None:
    entry = Entry("p" * 128, "e" * 133, Share(1 << 20, 1 << 40, 1 << 40, 1 << 40, 1 << 60, 1 << 60))
    most = (1 << 64) - 1
    step = Step("e" * 133, most, most, most, most, 1 << 40, 1 << 40, True, True, "s" * 64)
    report = Report("r" * 150, 1 << 40, [entry] * MOST_ENTRIES, {"p" * 128: [step] * MOST_STEPS})
    assert decoded(encoded(report)) == report


def test_a_front_door_of_before_is_understood() -> None:
    """Reports have grown at their ends: counts of requests, and steps."""
    assert decoded(packed(VERSION, ["x", 7, [["main", "e", [1, 64, 500, 0, 900]]]])) == Report(
        "x", 7, [Entry("main", "e", Share(1, 64, 500, 0, 900))]
    )


@pytest.mark.parametrize(("data", "why"), [
    (packed(VERSION + 1, "anything"), "of another version"),
    (packed(VERSION + 1, *msgspec.to_builtins([REPORT])), "of another version"),
    (packed(VERSION), "garbage"),
    (packed(VERSION, ["", 1, []]), "garbage"),
    (packed(VERSION, ["x" * 300, 1, []]), "garbage"),
    (packed(VERSION, ["x", "one", []]), "garbage"),
    (packed(VERSION, ["x", 1.5, []]), "garbage"),
    (packed(VERSION, ["x", 1, [["main", "e", [1.5, 0, 0, 0, 0]]]]), "garbage"),
    (packed(VERSION, ["x", 1, [["main"]]]), "garbage"),
    (packed("1"), "garbage"),
    (b"", "garbage"),
    (b"\xc1", "garbage"),
    (b"\x91" * 100_000, "garbage"),
    (b"\x92\x02" + b"\x91" * 100_000, "garbage"),
    (b"\x92\x01\x93\xa1\xff\x01\x90", "garbage"),
    (b"hello", "garbage"),
    (encoded(REPORT)[:-3], "garbage"),
    (b"x" * (SIZE_LIMIT + 1), "too large"),
    (None, "too large"),
])  # fmt: skip
def test_what_is_no_report_is_refused(data: object, why: str) -> None:
    with pytest.raises(WireError, match=f"^{why}$"):
        decoded(data)


def test_deployments_on_one_valkey_do_not_hear_each_other(tmp_path: Path) -> None:
    one, other = (Config(stores=Stores(state_dir=str(tmp_path / name))) for name in ("one", "other"))
    assert channel_of(one) == channel_of(one)
    assert channel_of(one) != channel_of(other)

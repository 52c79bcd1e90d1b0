"""What a whole answer holds while it is on its way."""

from typing import Any

from forebay.platform.relay.client import Client
from forebay.platform.relay.tally import SMALL_ANSWER, Tally


async def _nothing(*_: Any) -> None:
    pass


async def test_a_whole_answer_that_another_engine_gives_again_is_held_once() -> None:
    held: list[int] = []
    client = Client(_nothing, _nothing, "req")
    client.hold = held.append
    unused: Any = None
    for size in (100 << 20, 60 << 20, 120 << 20):  # each at an engine of its own
        Tally(unused, client, unused, unused, unused).keep(size)
    assert sum(held) == (120 << 20) - SMALL_ANSWER

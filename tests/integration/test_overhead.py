"""How much of our own code a request and an event run through: counted, not timed, so that CI holds a budget.

The figures are calls of Python functions of our packages, a coroutine's resumptions among them. Who needs more has a
reason, and raises them.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.observed import unbooked

OURS = ("/forebay/platform/", "/forebay/router/", "/forebay/metering/")


@contextmanager
def counted() -> Iterator[Counter[str]]:
    calls: Counter[str] = Counter()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and any(part in frame.f_code.co_filename for part in OURS):
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(called)
    threading.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def test_a_request_and_an_event_stay_within_their_budget(open_door: OpenDoor) -> None:
    """litellm#13546, #21046."""
    async with EngineDouble(answer_tokens=None) as engine, open_door(engine) as door:

        async def cost(**body: Any) -> int:
            """The least of some, since what runs beside them is counted as well."""
            found = []
            for _ in range(5):
                with counted() as calls:
                    answer = await door.chat("hello", **body)
                    await eventually(lambda: unbooked(door))
                assert answer.status_code == 200
                found.append(sum(calls.values()))
            return min(found)

        await cost(max_tokens=2)
        assert 100 < await cost(max_tokens=2) < 600  # 420
        short, long = await cost(max_tokens=50, stream=True), await cost(max_tokens=250, stream=True)
        assert 3 < (long - short) / 200 < 25  # 10 to 18, by how many events come at once

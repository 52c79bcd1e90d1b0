"""No request takes longer than `timeouts.total`: not one whose tenant reads slowly, nor one whose engine never ends."""

import asyncio
import time

from tests.doubles.scripted import SSE, ScriptedEngine, chunk
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL
from tests.integration.hostile import chat, request, unread
from tests.integration.test_broken_engines import event

TOTAL = {"total": 2.0, "idle": 1.5, "firstByte": 1.5, "connect": 0.5}
SLACK_S = 8.0  # a second until it is noticed, three for the engine to tell its last


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(SSE)
    piece = chunk(event("word " * 200) * 20)
    while True:
        writer.write(piece)
        await writer.drain()


async def test_a_tenant_that_reads_slowly_does_not_have_longer(open_door: OpenDoor) -> None:
    async with (
        ScriptedEngine(endless, model=MODEL) as engine,
        open_door(engine, timeouts=TOTAL, server={"sendBuffer": 4096}) as door,
    ):
        loop = asyncio.get_running_loop()
        async with unread(door, request(door, chat(stream=True))) as end:
            began = time.monotonic()
            while await loop.sock_recv(end, 4096) and time.monotonic() - began < 2.0 + SLACK_S:
                await asyncio.sleep(0.01)
                if not door.service.inferences.gate.in_flight:
                    break
            assert time.monotonic() - began < 2.0 + SLACK_S
        (record,) = await door.records(1)  # what it made is billed: the tenant was free to read it
        assert (record["status"], record["terminated_by"]) == ("cancelled", "client")


async def test_an_engine_that_never_ends_does_not_have_longer(open_door: OpenDoor) -> None:
    async with ScriptedEngine(endless, model=MODEL) as engine, open_door(engine, timeouts=TOTAL) as door:
        async with asyncio.timeout(2.0 + SLACK_S):
            await door.chat(stream=True)
        (record,) = await door.records(1)
        assert (record["status"], record["terminated_by"]) == ("failed", "deadline")

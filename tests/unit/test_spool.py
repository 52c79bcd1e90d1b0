import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from forebay.metering import Checkpoint, Quantities, Spool, SpoolInUseError, Status, TerminatedBy, UsageRecord, metrics
from tests.eventually import eventually
from tests.metered import T0, attempt, record

ROOMY = 1 << 30


@asynccontextmanager
async def running(directory: Path, limit: int = ROOMY) -> AsyncIterator[Spool]:
    spool = Spool(directory, limit)
    await spool.start()
    try:
        yield spool
    finally:
        await spool.stop()


async def waiting(spool: Spool) -> dict[str, UsageRecord]:
    return {item.attempt.request_id: item for _, item in await spool.pending(1_000_000)}


async def test_what_was_closed_waits_across_a_restart_until_it_is_shipped(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as spool:
        for number in (1, 2, 3):
            opened = spool.open(attempt(number))
            await spool.close(record(number))
            assert opened.done()
        assert (spool.unshipped, spool.open_count, spool.accepting) == (3, 0, True)
        (first, item), *_ = await spool.pending(1)
        assert item == record(1)
        await spool.shipped([first])
    assert not spool.accepting
    async with running(tmp_path / "a") as spool:
        assert [item for _, item in await spool.pending(10)] == [record(2), record(3)]
        assert spool.unshipped == 2


async def test_what_an_older_program_left_counts_once(tmp_path: Path) -> None:
    """It knew nothing of tiers' multipliers."""
    async with running(tmp_path / "a") as spool:
        for number in (1, 2):
            spool.open(attempt(number, price_multiplier=Decimal("2.5")))
        await spool.close(record(attempt(1, price_multiplier=Decimal("2.5"))))
    with sqlite3.connect(tmp_path / "a" / "usage.sqlite3") as db:
        (kept,) = db.execute("SELECT data FROM records").fetchone()
        assert '"price_multiplier":"2.5"' in kept
        for table in ("records", "attempts"):
            db.execute(f"UPDATE {table} SET data = replace(data, ',\"price_multiplier\":\"2.5\"', '')")
    db.close()
    async with running(tmp_path / "a") as spool:
        found = await waiting(spool)
        assert len(found) == 2
        assert {item.attempt.price_multiplier for item in found.values()} == {Decimal(1)}


async def test_each_attempt_has_exactly_one_terminal_record(tmp_path: Path) -> None:
    """litellm#37734, #35958."""
    before = metrics.spool_second_closes._value.get()
    async with running(tmp_path / "a") as spool:
        spool.open(attempt(1))
        with pytest.raises(ValueError, match="open already"):
            spool.open(attempt(1))
        spool.close(record(1))
        await spool.close(record(1, status=Status.FAILED))
        await spool.close(record(2))
        assert list((await waiting(spool)).values()) == [record(1)]
    assert metrics.spool_second_closes._value.get() == before + 2


async def test_concurrent_work_shares_commits(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as spool:
        before = metrics.spool_commits._value.get()

        async def one(number: int) -> None:
            await spool.open(attempt(number))
            await spool.close(record(number))

        await asyncio.gather(*(one(number) for number in range(200)))
        assert metrics.spool_commits._value.get() - before <= 20
        assert len(await waiting(spool)) == 200


async def test_attempts_of_a_dead_process_are_closed_from_their_last_checkpoints(tmp_path: Path) -> None:
    with killed_mid_load(tmp_path / "spool" / "a") as said:
        async with running(tmp_path / "spool" / "a") as spool:
            found = await waiting(spool)
    opened = {int(line.split()[1]) for line in said if line.startswith("open")}
    closed = {int(line.split()[1]) for line in said if line.startswith("close")}
    assert len(closed) > 100
    by_number = {int(name.removeprefix("req_"), 16): item for name, item in found.items()}
    # A close may be durable without having been acknowledged; never the other way round.
    assert all(by_number[number].status is Status.COMPLETED for number in closed)
    assert opened <= by_number.keys()
    lost = {number: item for number, item in by_number.items() if item.status is Status.LOST}
    assert {number for number in opened if number % 10 == 0} <= lost.keys()
    for item in lost.values():
        assert item.terminated_by is TerminatedBy.FRONT_DOOR
        assert (item.billable, item.measured, item.error) == (Quantities(), False, "front_door_lost")
    with_checkpoint = [number for number, item in lost.items() if item.engine.output]
    assert with_checkpoint, "the oldest attempts were checkpointed long before the kill"
    assert lost[with_checkpoint[0]].engine == Quantities(7, 0, 0, with_checkpoint[0])
    assert lost[with_checkpoint[0]].ended_at == attempt(with_checkpoint[0]).started_at + 9


@contextmanager
def killed_mid_load(directory: Path) -> Iterator[list[str]]:
    """What a process said before it was killed with SIGKILL in the middle of its work."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.spool_victim", str(directory)], stdout=subprocess.PIPE, bufsize=0
    ) as victim:
        assert victim.stdout is not None
        said = os.read(victim.stdout.fileno(), 65536)
        started = time.monotonic()
        while said.count(b"close") < 300 or time.monotonic() - started < 0.8:
            said += os.read(victim.stdout.fileno(), 65536)
        victim.send_signal(signal.SIGKILL)
        said += victim.stdout.read()
        yield said.decode().splitlines()


async def test_a_directory_belongs_to_one_process_and_dead_neighbours_are_adopted(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as spool:
        with pytest.raises(SpoolInUseError, match="belongs to another running process"):
            await Spool(tmp_path / "a", ROOMY).start()
        await spool.open(attempt(1))
        await spool.close(record(1))
        async with running(tmp_path / "b") as other:  # "a" is alive and keeps its own
            assert other.unshipped == 0
            other.open(attempt(2))
    async with running(tmp_path / "c") as heir:
        found = await waiting(heir)
        assert found[attempt(1).request_id] == record(1)
        assert found[attempt(2).request_id].status is Status.LOST
    async with running(tmp_path / "a") as spool:
        assert set(await waiting(spool)) == set(found), "the heir's directory was adopted in its turn"


async def test_a_full_spool_takes_no_new_work_but_finishes_what_it_has(tmp_path: Path) -> None:
    async with running(tmp_path / "a", 300_000) as spool:
        number = 0
        while spool.accepting:
            number += 1
            await spool.open(attempt(number))
            await spool.close(record(number, error="x" * 2000))
        assert 50 < number < 200
        half = number // 2  # it is not measured at each commit, and may have become somewhat larger than its limit
        await spool.shipped([seq for seq, _ in await spool.pending(half)])
        assert spool.accepting
        assert spool.unshipped == number - half


async def test_a_disk_that_refuses_writes_loses_nothing_and_recovers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with running(tmp_path / "a") as spool:
        await spool.open(attempt(1))
        try:
            # Files may not grow beyond what the log has by now: what a full disk does.
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "a" / "usage.sqlite3-wal").stat().st_size, hard))
            late = [spool.close(record(1)), *(spool.open(attempt(number)) for number in range(2, 50))]
            await eventually(lambda: not spool.accepting)
            late.append(spool.close(record(2)))
            assert not any(future.done() for future in late)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await asyncio.wait_for(asyncio.gather(*late), 5)
        assert spool.accepting
        assert list((await waiting(spool)).values()) == [record(1), record(2)]
        assert spool.open_count == 47


async def test_stopping_with_a_failing_disk_gives_up_in_time(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool = Spool(tmp_path / "a", ROOMY)
    await spool.start()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        spool.open(attempt(1))
        started = time.monotonic()
        await spool.stop(timeout=0.3)
        assert time.monotonic() - started < 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    async def free() -> bool:
        try:
            async with running(tmp_path / "a"):
                return True
        except SpoolInUseError:
            return False

    freed: bool = await eventually(free)
    assert freed


async def test_a_damaged_file_is_set_aside_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path / "a") as spool:
        await spool.open(attempt(1))
    damage = b"not a database" * 1000
    (tmp_path / "a" / "usage.sqlite3").write_bytes(damage)
    async with running(tmp_path / "a") as spool:
        assert spool.accepting
        await spool.open(attempt(2))
    assert (tmp_path / "a" / "usage.sqlite3.damaged-1").read_bytes() == damage
    assert "is damaged" in caplog.text


async def test_a_file_that_breaks_in_use_is_replaced_from_memory(tmp_path: Path) -> None:
    file = tmp_path / "a" / "usage.sqlite3"
    async with running(tmp_path / "a") as spool:
        await spool.open(attempt(1))
        await spool.open(attempt(2))
        spool._writer._file._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = file.stat().st_size
        with file.open("r+b") as raw:
            raw.write(b"\xff" * size)
        spool._writer._file._db.execute("PRAGMA shrink_memory")  # forget the pages it had read
        await asyncio.wait_for(spool.close(record(1)), 5)
        assert spool.open_count == 1
    async with running(tmp_path / "a") as spool:
        found = await waiting(spool)
        assert found[attempt(1).request_id] == record(1)
        assert found[attempt(2).request_id].status is Status.LOST
    assert file.with_name("usage.sqlite3.damaged-1").exists()


async def test_an_unreadable_row_is_parked_and_the_others_go_on(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as spool:
        for number in (1, 2):
            spool.open(attempt(number))
            await spool.close(record(number))
    with sqlite3.connect(tmp_path / "a" / "usage.sqlite3") as database:
        database.execute("UPDATE records SET data = '{\"half' WHERE seq = 1")
    database.close()
    async with running(tmp_path / "a") as spool:
        assert list((await waiting(spool)).values()) == [record(2)]
        assert spool.unshipped == 1


async def test_a_clock_that_jumps_back_changes_neither_order_nor_contents(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as spool:
        for number, at in ((1, T0), (2, T0 - 86400), (3, 0.0)):
            spool.open(attempt(number, started_at=at))
            await spool.close(record(attempt(number, started_at=at), ended_at=at - 5))
        assert [item.attempt.started_at for _, item in await spool.pending(10)] == [T0, T0 - 86400, 0.0]


async def test_checkpoints_share_a_commit_and_a_late_one_is_ignored(tmp_path: Path) -> None:
    async with running(tmp_path / "a") as spool:
        await asyncio.gather(*(spool.open(attempt(number)) for number in range(1, 65)))
        before = metrics.spool_commits._value.get()
        for output in range(10):
            for number in range(1, 65):
                spool.checkpoint(Checkpoint(attempt(number).request_id, 1, Quantities(output=output), T0))
        await eventually(lambda: metrics.spool_commits._value.get() > before)
        assert metrics.spool_commits._value.get() == before + 1
        await spool.close(record(1))
        spool.checkpoint(Checkpoint(attempt(1).request_id, 1, Quantities(output=99), T0))
    async with running(tmp_path / "a") as spool:
        found = await waiting(spool)
        assert found[attempt(1).request_id] == record(1)
        assert found[attempt(2).request_id].engine == Quantities(output=9)

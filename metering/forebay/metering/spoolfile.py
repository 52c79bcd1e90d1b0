"""The spool's SQLite file: open attempts, their checkpoints, and terminal records that wait to be shipped.

Rows are ordered by a sequence of their own, never by time, so that a jump of the clock changes nothing. One batch is
one SQL statement, and so one transaction and one release of the GIL: the event loop, which is busy, would otherwise
be waited for after every row.
"""

import logging
import sqlite3
from pathlib import Path
from typing import cast

import msgspec

from forebay.metering import metrics
from forebay.metering.records import Attempt, Checkpoint, Quantities, Status, TerminatedBy, UsageRecord
from forebay.metering.usage import billable

logger = logging.getLogger(__name__)

NAME = "usage.sqlite3"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (seq INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoints (seq INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (seq INTEGER PRIMARY KEY, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS parked (data TEXT NOT NULL, reason TEXT NOT NULL);
DROP VIEW IF EXISTS batch;
CREATE VIEW batch AS SELECT 0 AS first_attempt, '' AS attempts, '' AS checkpoints, 0 AS first_record, '' AS records,
                            '' AS ended, '' AS shipped;
CREATE TRIGGER apply_batch INSTEAD OF INSERT ON batch BEGIN
    INSERT OR REPLACE INTO attempts SELECT new.first_attempt + key, value FROM json_each(new.attempts);
    INSERT OR REPLACE INTO records SELECT new.first_record + key, value FROM json_each(new.records);
    DELETE FROM attempts WHERE seq IN (SELECT value FROM json_each(new.ended));
    INSERT OR REPLACE INTO checkpoints
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(new.checkpoints);
    DELETE FROM checkpoints WHERE seq IN (SELECT value FROM json_each(new.ended));
    DELETE FROM records WHERE seq IN (SELECT value FROM json_each(new.shipped));
END;
"""
_APPLY = "INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)"

_VERSION = 1
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

encode = msgspec.json.Encoder().encode
_attempt = msgspec.json.Decoder(Attempt).decode
_checkpoint = msgspec.json.Decoder(Checkpoint).decode
_record = msgspec.json.Decoder(UsageRecord).decode


class DamagedError(sqlite3.DatabaseError):
    """The file's own check failed."""


class Batch(msgspec.Struct):
    """One transaction: rows to add (as JSON), with the sequence number of the first, and numbers of rows to delete.

    Applying it twice leaves the same rows as applying it once, because a failed commit may have reached the disk.
    """

    first_attempt: int
    first_record: int
    attempts: list[bytes] = []
    checkpoints: list[tuple[int, bytes]] = []
    records: list[bytes] = []
    ended: list[int] = []
    shipped: list[int] = []


class SpoolFile:
    """An open spool file. For one thread at a time; errors are `sqlite3.Error`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # EXCLUSIVE saves the locking calls of each commit; the directory's lock already keeps other processes out.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            if self._db.execute("PRAGMA user_version").fetchone() != (_VERSION,):
                self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT;")
        except sqlite3.Error:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def check(self) -> None:
        """Raises `sqlite3.DatabaseError` when the file is damaged."""
        (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedError(verdict)

    def apply(self, batch: Batch) -> None:
        """Make a batch durable, whole or not at all."""
        self._db.execute(
            _APPLY,
            (
                batch.first_attempt,
                _json(batch.attempts),
                _json([b"[%d,%b]" % row for row in batch.checkpoints]),
                batch.first_record,
                _json(batch.records),
                encode(batch.ended).decode(),
                encode(batch.shipped).decode(),
            ),
        )

    def pending(self, limit: int, after: int = 0) -> list[tuple[int, UsageRecord]]:
        """The oldest terminal records beyond number `after`, with their numbers. An unreadable row is parked."""
        rows = self._db.execute(
            "SELECT seq, data FROM records WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
        ).fetchall()
        found = []
        for seq, data in rows:
            try:
                found.append((seq, _record(data)))
            except (msgspec.DecodeError, UnicodeError) as error:
                self.park(seq, f"unreadable: {error}")
        return found

    def park(self, seq: int, reason: str) -> None:
        """Keep a record that can never be shipped, out of the way of the others."""
        self._park("records", seq, reason)

    def abandoned(self) -> tuple[list[UsageRecord], list[int]]:
        """Terminal records for the attempts that nobody will close, and those attempts' numbers."""
        rows = self._db.execute(
            "SELECT a.seq, a.data, c.data FROM attempts a LEFT JOIN checkpoints c USING (seq) ORDER BY a.seq"
        ).fetchall()
        lost, ended = [], []
        for seq, attempt, last in rows:
            try:
                lost.append(_lost(_attempt(attempt), _checkpoint(last) if last else None))
                ended.append(seq)
            except (msgspec.DecodeError, UnicodeError) as error:
                self._park("attempts", seq, f"unreadable: {error}")
        return lost, ended

    def _park(self, table: str, seq: int, reason: str) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(f"INSERT INTO parked SELECT data, ? FROM {table} WHERE seq = ?", (reason, seq))  # noqa: S608
            self._db.execute(f"DELETE FROM {table} WHERE seq = ?", (seq,))  # noqa: S608 - a table's name, ours
        metrics.spool_parked.inc()
        logger.error("row %d of the usage spool %s was parked (table parked): %s", seq, self.path, reason)

    def count(self) -> int:
        """How many terminal records wait to be shipped."""
        return cast("int", self._db.execute("SELECT count(*) FROM records").fetchone()[0])

    def last_record(self) -> int:
        """The highest sequence number among the records that wait."""
        return cast("int", self._db.execute("SELECT coalesce(max(seq), 0) FROM records").fetchone()[0])

    def used_bytes(self) -> int:
        """Bytes in use: pages that deleted rows have freed do not count, since new rows will fill them."""
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return cast("int", (pages - free) * size)


def set_aside(path: Path, reason: str) -> Path:
    """Move a damaged file and its companions out of the way, keeping them for an operator to recover."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            companion.rename(target.with_name(target.name + suffix))
    metrics.spool_set_aside.inc()
    logger.critical(
        "the usage spool %s is damaged (%s): it was kept as %s, and a new one started; records in it that were not "
        "shipped are missing from the ledger until they are recovered from that file",
        path, reason, target,
    )
    return target


def open_checked(path: Path) -> SpoolFile:
    """Open a spool file, setting a damaged one aside first. Errors of the disk itself are raised."""
    file = None
    try:
        file = SpoolFile(path)
        file.check()
    except sqlite3.DatabaseError as error:
        if file is not None:
            file.close()
        if not is_damage(error):
            raise
        set_aside(path, str(error))
        return SpoolFile(path)
    return file


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file itself is broken, and not the disk beneath it (full, failing, locked)."""
    if isinstance(error, DamagedError):
        return True
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE  # the low byte is the primary code


def _lost(attempt: Attempt, last: Checkpoint | None) -> UsageRecord:
    engine = last.engine if last else Quantities()
    return UsageRecord(
        attempt=attempt,
        engine=engine,
        billable=billable(Status.LOST, engine),
        status=Status.LOST,
        terminated_by=TerminatedBy.FRONT_DOOR,
        measured=False,
        ended_at=last.at if last else attempt.started_at,
        error="front_door_lost",
    )


def _json(rows: list[bytes]) -> str:
    return (b"[" + b",".join(rows) + b"]").decode()

"""One connection to Valkey, on which what limits ask is asked in order, together with all else that waits to be asked.

The order matters: what a process says it has spent must never be ahead of what it has told. Nobody waits longer than
the deadline: after that Valkey is away for all who wait, and for all who come until it has answered again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from valkey.asyncio.connection import AbstractConnection
from valkey.exceptions import ResponseError

from forebay.platform.limits import metrics, scripts
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.valkey import DEADLINE, ERRORS, create_client
from forebay.platform.tasks import ending

log = logging.getLogger(__name__)

OPEN_S = 1.0  # seconds that coming back may take: nobody waits for it
RETRY_S = 0.25
MOST_AT_ONCE = 128
_GLANCES = 4  # an answer may have come while this process was busy: look for it before it counts as late


class Away(Exception):  # noqa: N818 - not an error
    """Valkey does not answer, or not in time. Whether it has done what it was asked is not known."""


class UnscriptedError(Exception):
    """Valkey answers, and does not run our scripts."""


class Link:
    """`process` names this one among those that `doors` counts, for `lease_s` at a time. `returned` says what is to be
    told first when Valkey is back."""

    def __init__(
        self, url: str, doors: bytes, process: bytes, *, lease_s: float, every_s: float,
        returned: Callable[[], list[bytes]], deadline: float = DEADLINE,
    ) -> None:  # fmt: skip
        self._pool = create_client(url, deadline=OPEN_S).connection_pool
        self._pool.connection_kwargs["socket_timeout"] = None  # there is a deadline of our own
        self._present = scripts.present(doors, process, round(lease_s * 1000))
        self._gone = scripts.packed(b"ZREM", doors, process)
        self._every_s = every_s
        self._returned = returned
        self._deadline = deadline
        self._connection: AbstractConnection | None = None
        self._waiting: list[tuple[bytes, asyncio.Future[bytes] | None]] = []
        self._asked: list[tuple[bytes, asyncio.Future[bytes] | None]] = []
        self._asking: asyncio.Task[None] | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        self._lost_one = asyncio.Event()
        self.shared = False
        self.since = time.time()
        self.error = "not asked yet"
        self.processes = 0
        metrics.SHARED.set(0)

    def __repr__(self) -> str:
        return f"<Link {'shared' if self.shared else self.error} [{len(self._waiting)} waiting]>"

    async def start(self) -> None:
        """Raises `StoreError` for a Valkey that does not run scripts. One that is away may come."""
        try:
            await self._open()
        except UnscriptedError as error:
            raise StoreError(
                f"stores.valkey does not run scripts ({error}); limits are counted by them. Allow SCRIPT LOAD and "
                "EVALSHA, and what they call, on a server that can be written to"
            ) from None
        except ERRORS as error:
            log.warning("Valkey is away: limits hold by each process's share (%s)", type(error).__name__)
            self.error = type(error).__name__

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while not ending():
                self._lost_one.clear()
                if self.shared:
                    with contextlib.suppress(Away):
                        self._heard(await asyncio.shield(self.ask(self._present)))
                else:
                    await self._reopen()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._every_s if self.shared else RETRY_S):
                        await self._lost_one.wait()
        finally:
            if self.shared:
                self._be_away("ended")

    async def close(self) -> None:
        """Returns when all that was told before is done: this process is none of those any more that share limits."""
        with contextlib.suppress(Away):
            await asyncio.shield(self.ask(self._gone))

    def ask(self, command: bytes) -> "asyncio.Future[bytes]":
        """The answer, or `Away`. To be shielded: cancelling it would take back nothing."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.shared:
            self._add(command, answer)
        else:
            answer.set_exception(Away())
        return answer

    def tell(self, command: bytes) -> None:
        """Lost while Valkey is away."""
        if self.shared:
            self._add(command, None)

    def _add(self, command: bytes, answer: "asyncio.Future[bytes] | None") -> None:
        self._waiting.append((command, answer))
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_all())

    async def _ask_all(self) -> None:
        loop = asyncio.get_running_loop()
        connection = self._connection
        assert connection is not None
        while self._waiting:
            self._asked, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            timer = loop.call_later(self._deadline, self._overdue, self._asked, _GLANCES)
            try:
                answers = await _exchange(connection, [command for command, _ in self._asked])
            except ERRORS as error:
                self._lost(type(error).__name__)
                return
            finally:
                timer.cancel()
            asked, self._asked = self._asked, []
            for (_, answer), data in zip(asked, answers, strict=True):
                if answer is not None and not answer.done():
                    answer.set_result(data)
        self._asking = None

    def _overdue(self, asked: object, glances: int) -> None:
        if self._asked is not asked:
            return
        if glances:
            asyncio.get_running_loop().call_soon(self._overdue, asked, glances - 1)
        else:
            self._lost("TimeoutError")

    def _lost(self, error: str) -> None:
        if self.shared:
            log.warning("Valkey is away: limits hold by each process's share (%s)", error)
        self._be_away(error)

    def _be_away(self, error: str) -> None:
        """All who wait hear of it now."""
        if self.shared:
            self.since = time.time()
            metrics.SHARED.set(0)
        self.shared, self.error = False, error
        waiting, self._asked, self._waiting = [*self._asked, *self._waiting], [], []
        for _, answer in waiting:
            if answer is not None and not answer.done():
                answer.set_exception(Away())
                answer.exception()  # whoever asked may have gone
        asking, self._asking = self._asking, None
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()
        self._hang_up()
        self._lost_one.set()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._hanging_up = asyncio.get_running_loop().create_task(connection.disconnect(nowait=True))

    async def _reopen(self) -> None:
        try:
            await self._open()
        except UnscriptedError as error:
            if self.error != "Unscripted":
                log.error("Valkey does not run scripts: limits hold by each process's share (%s)", error)
            self.error = "Unscripted"
        except ERRORS as error:
            self.error = type(error).__name__

    async def _open(self) -> None:
        """Raises one of ERRORS, or `UnscriptedError`."""
        connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(OPEN_S):
                await connection.connect()  # type: ignore[no-untyped-call]
                *_, heard = await _exchange(connection, [*(one.load() for one in scripts.SCRIPTS), self._present])
                first = self._returned()
                for start in range(0, len(first), MOST_AT_ONCE):
                    await _exchange(connection, first[start : start + MOST_AT_ONCE])
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, ResponseError):
                raise UnscriptedError(str(error)) from error
            raise
        self._connection = connection
        self._heard(heard)
        self.shared, self.since, self.error = True, time.time(), ""
        metrics.SHARED.set(1)
        log.info("limits are counted in Valkey, by %d processes", self.processes)

    def _heard(self, data: bytes) -> None:
        self.processes = int(data.split()[1])
        metrics.PROCESSES.set(self.processes)


async def _exchange(connection: AbstractConnection, commands: list[bytes]) -> list[bytes]:
    """Raises one of ERRORS; the connection is of no use then."""
    await connection.send_packed_command(b"".join(commands), check_health=False)
    return [await connection.read_response(disable_decoding=True) for _ in commands]

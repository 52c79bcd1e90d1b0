"""Tells other front doors what this one has booked, and hears the same of them.

A report is published, so that it is there at once, and nothing of it stays in Valkey: who hears it lets go of it by its
own clock. So a process that is killed leaves nothing behind, nothing is read or written for a request, and what was
lost on the way is made good by the next report, which is always whole. `forebay.router.reporting` says when one goes
out. A front door hears its own as well: that is how it knows that others can.

Placement reads sums in memory and waits for none of this.
"""

import asyncio
import logging
import os
import time
from contextlib import AsyncExitStack

from prometheus_client import Counter
from valkey.asyncio import Valkey
from valkey.asyncio.client import PubSub

from forebay.platform.sharing.wire import WireError, decoded, encoded
from forebay.platform.stores.valkey import ERRORS, create_client
from forebay.platform.tasks import end, ending
from forebay.router import Contact, Peers, Reporter, Sharing

log = logging.getLogger(__name__)

SILENT_S = 2.5  # without any report, our own among them: the connection is dead and does not say so
DEADLINE_S = 0.25  # for each step: nobody waits for it, and a busy process shall not take Valkey to be away
RETRY_S = 0.5

_REPORTS = Counter("forebay_load_reports_total", "Reports on load: told, heard, or of no use", ["what"])


class LoadLink:
    """One process's link to its peers. `run` keeps it up. Raises `StoreError` for a URL that is none of Valkey's."""

    def __init__(self, peers: Peers, url: str, channel: str, name: str) -> None:
        # A process that is started again is another one.
        self._reporter = Reporter(peers, f"{name[:128]}-{os.urandom(6).hex()}")
        self._peers = peers
        self._url = url
        self._channel = channel
        self._complained: set[str] = set()
        create_client(url)  # a URL that is wrong ends the start, not each attempt
        self._be(Sharing.STARTING)

    def __repr__(self) -> str:
        return f"<LoadLink {self._reporter.replica} {self._peers.contact.sharing} [{len(self._peers)} peers]>"

    async def run(self) -> None:
        """Until cancelled."""
        while not ending():
            try:
                await self._connected()
            except Exception as error:
                self._be(Sharing.DOWN, type(error).__name__)  # its text may name what it should not
                if not isinstance(error, ERRORS):
                    raise
            await asyncio.sleep(RETRY_S)

    async def _connected(self) -> None:
        """Until the connection breaks."""
        async with AsyncExitStack() as stack:
            client = create_client(self._url, deadline=DEADLINE_S, max_connections=4)
            stack.push_async_callback(client.aclose)
            heard = client.pubsub(ignore_subscribe_messages=True)
            stack.push_async_callback(heard.aclose)
            await heard.subscribe(self._channel)
            hearing = asyncio.create_task(self._hear(heard))
            stack.push_async_callback(_over, hearing)
            self._reporter.again()
            await self._tell(client, hearing)

    async def _tell(self, client: Valkey, hearing: "asyncio.Task[None]") -> None:
        """Until `hearing` is over; raises what it raised."""
        while not hearing.done() and not ending():
            report = self._reporter.report(time.monotonic())
            if report is not None:
                await client.publish(self._channel, encoded(report))
                _REPORTS.labels("told").inc()
            await asyncio.sleep(self._reporter.pause_s)
        if hearing.done():
            hearing.result()

    async def _hear(self, heard: PubSub) -> None:
        last = time.monotonic()
        while not ending():
            message = await heard.get_message(timeout=SILENT_S)
            now = time.monotonic()
            if message is not None:
                last = now
                self._take(message["data"], now)
                await asyncio.sleep(0)  # of many that wait, each is read without a pause
            elif now - last >= SILENT_S:
                raise TimeoutError

    def _take(self, data: object, now: float) -> None:
        try:
            report = decoded(data)
        except WireError as error:
            self._refuse(str(error))
            return
        if report.replica == self._reporter.replica:
            self._be(Sharing.UP)
            return
        refusal = self._reporter.hear(report, now)
        if refusal is not None:
            self._refuse(refusal.value)
            return
        _REPORTS.labels("heard").inc()

    def _refuse(self, why: str) -> None:
        _REPORTS.labels("refused").inc()
        if why not in self._complained:
            self._complained.add(why)
            log.warning("reports on the load of another front door are of no use: %s", why)

    def _be(self, sharing: Sharing, error: str = "") -> None:
        before = self._peers.contact
        if before.sharing is sharing:
            return
        self._peers.contact = Contact(sharing, time.time(), error)
        if sharing is Sharing.UP:
            log.info("load is shared with other front doors")
        elif sharing is Sharing.DOWN:
            log.warning("load is not shared, placing by what this front door has booked itself: %s", error)


async def _over(task: "asyncio.Task[None]") -> None:
    """End it; what it raised is known already, or of no interest."""
    await end(task)
    await asyncio.gather(task, return_exceptions=True)

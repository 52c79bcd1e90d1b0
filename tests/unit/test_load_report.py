"""What `/health` says of shared load, in one process and in several."""

from typing import Any

import pytest

from forebay.platform.sharing.report import of_load
from forebay.platform.workers.view import Status, together
from forebay.router import Contact, Peers, Sharing


@pytest.mark.parametrize(("contact", "said", "status"), [
    (Contact(), {"status": "off"}, "ok"),
    (Contact(Sharing.STARTING, 7.0), {"status": "starting", "since": 7.0, "peers": 0}, "ok"),
    (Contact(Sharing.UP, 7.0), {"status": "up", "since": 7.0, "peers": 0}, "ok"),
    (Contact(Sharing.DOWN, 7.0, "TimeoutError"),
     {"status": "down", "since": 7.0, "error": "TimeoutError", "peers": 0}, "degraded"),
])  # fmt: skip
def test_a_front_door_that_cannot_share_is_degraded(contact: Contact, said: dict[str, Any], status: str) -> None:
    peers = Peers({})
    peers.contact = contact
    worker = Status(True, {"status": "ok", "spool": {"status": "accepting", "unshipped": 0}, "pid": 1})
    router = Status(True, {"status": "ok", "load_sharing": of_load(peers)})
    ready, body = together(worker, {"router": router, "0": worker})
    assert ready
    assert (body["status"], body["router"], body["load_sharing"]) == (status, {"status": "ok"}, said)

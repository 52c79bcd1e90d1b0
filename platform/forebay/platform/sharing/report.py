"""How load is shared, for `/health`."""

from typing import Any

from forebay.router import Peers, Sharing


def of_load(peers: Peers) -> dict[str, Any]:
    contact = peers.contact
    if contact.sharing is Sharing.OFF:
        return {"status": contact.sharing.value}
    error = {"error": contact.error} if contact.error else {}
    return {"status": contact.sharing.value, "since": contact.since, **error, "peers": len(peers)}


def is_well(sharing: dict[str, Any] | None) -> bool:
    """Of what `of_load` said, where anybody did: nothing is wrong."""
    return sharing is None or sharing["status"] != Sharing.DOWN

"""A router behind a Unix socket: the workers of one front door share it, so that concurrent picks see each other."""

from forebay.router.remote.channel import Handler, RouterUnavailable
from forebay.router.remote.client import RemoteRouter
from forebay.router.remote.server import RouterServer, Shared
from forebay.router.remote.sockets import SocketInUseError, private_path

__all__ = [
    "Handler",
    "RemoteRouter",
    "RouterServer",
    "RouterUnavailable",
    "Shared",
    "SocketInUseError",
    "private_path",
]

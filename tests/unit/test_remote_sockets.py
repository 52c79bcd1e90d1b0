"""Where the router's socket lies: private, short enough, and of one live process."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from forebay.router.remote import RouterServer, SocketInUseError, private_path
from tests.doubles.shared_router import SharedRouter


def test_the_directory_is_of_this_account_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    path = private_path(tmp_path / "run", "router")
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_path_too_long_for_a_socket_is_replaced_by_a_short_private_one(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    path = private_path(deep, "router")
    try:
        assert len(os.fsencode(path)) < 104
        assert path == private_path(deep, "router")
        assert path != private_path(deep / "other", "router")
        assert path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        path.parent.rmdir()
        private_path(deep / "other", "router").parent.rmdir()


async def test_a_socket_that_a_dead_router_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "router"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with RouterServer(SharedRouter(), ["main"], path):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()
    assert not path.exists()


async def test_a_second_router_on_one_path_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    path = tmp_path / "router"
    async with RouterServer(SharedRouter(), ["main"], path):
        with pytest.raises(SocketInUseError, match="belongs to another running process"):
            async with RouterServer(SharedRouter(), ["main"], path):
                pass
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        await writer.wait_closed()

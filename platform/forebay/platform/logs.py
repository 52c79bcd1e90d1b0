"""What processes say on standard error, and what they keep to themselves."""

import logging

_QUIET = ("alembic", "httpx", "httpcore", "asyncio")


def set_up(level: int, process: str = "") -> None:
    """`process` is named in each line, where several write to one terminal."""
    who = f"{process} " if process else ""
    logging.basicConfig(level=level, format=f"%(asctime)s %(levelname)-7s {who}%(name)s: %(message)s")
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)

"""The environment that the local vLLM engines run in: built once, checked by a stamp that is written last.

Engines pin many libraries tightly, so they get an environment of their own beside the platform's. A set-up that was
interrupted goes on where it stopped: `inside/check.py` says which packages are not wholly there, and only those are
installed again.
"""

import asyncio
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

import msgspec

from forebay.platform.local import commands
from forebay.platform.local.commands import LocalError
from forebay.platform.local.paths import Paths, exclusive
from forebay.platform.local.progress import Progress

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "engine-requirements.txt"
# PyTorch publishes its CPU builds here and not on PyPI. Only asked when pip finds the file nowhere else.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
DISK_NEEDED = 6 << 30  # bytes: the environment, and pip's copies of the wheels while it installs


def wanted_stamp() -> str:
    """Changes whenever an environment built earlier no longer serves."""
    return hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()


def is_ready(paths: Paths) -> bool:
    stamp = paths.engine / "forebay-stamp"
    return paths.engine_python.exists() and stamp.exists() and stamp.read_text() == wanted_stamp()


async def build(paths: Paths, progress: Progress) -> None:
    """Makes the environment ready; returns at once if it is. Raises `LocalError`."""
    if is_ready(paths):
        return
    async with exclusive(paths.state / "engines.lock", progress, "another process is building the engines"):
        if not is_ready(paths):
            await _build(paths, progress)


async def _build(paths: Paths, progress: Progress) -> None:
    log = paths.logs / "engine-setup.log"
    if not paths.engine_python.exists():
        _require_disk(paths)
        async with progress.step("engines", f"creating an environment in {paths.engine}") as step:
            await commands.run([sys.executable, "-m", "venv", "--clear", str(paths.engine)], log=log, step=step)
    async with progress.step("engines", "checking what is installed already"):
        lacking = await missing(paths)
    torch = [requirement for requirement in lacking if requirement.startswith("torch==")]
    if torch:
        await _install_torch(paths, progress, torch, log)
    rest = [requirement for requirement in lacking if requirement not in torch]
    if rest:
        async with progress.step("engines", f"installing vLLM: {len(rest)} packages") as step:
            await commands.run(_pip(paths, rest), log=log, step=step, env=_environment(), shorten=shorten)
    if lacking:
        async with progress.step("engines", "checking that every file is there"):
            lacking = await missing(paths)
    if lacking:
        raise LocalError(f"The engine environment is still incomplete: {', '.join(lacking)}.\nThe log: {log}")
    (paths.engine / "forebay-stamp").write_text(wanted_stamp())


async def _install_torch(paths: Paths, progress: Progress, torch: list[str], log: Path) -> None:
    async with progress.step("engines", "installing PyTorch's CPU build") as step:
        try:
            await commands.run(_pip(paths, torch), log=log, step=step, env=_environment(), shorten=shorten)
        except LocalError:
            progress.say(f"    {step.name:<10} pip finds it nowhere; trying PyTorch's own index, {TORCH_INDEX}")
            argv = [*_pip(paths, torch), "--extra-index-url", TORCH_INDEX]
            await commands.run(argv, log=log, step=step, env=_environment(), shorten=shorten)


async def missing(paths: Paths) -> list[str]:
    """Requirement strings of what is absent, of another version, or incomplete."""
    process = await asyncio.create_subprocess_exec(
        paths.engine_python, "-I", HERE / "inside" / "check.py", REQUIREMENTS,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode != 0:
        raise LocalError(
            f"The engine environment cannot be read: {err.decode()[-500:]}\n"
            f"Remove it and start again: rm -r {paths.engine}"
        )
    return msgspec.json.decode(out, type=list[str])


def _require_disk(paths: Paths) -> None:
    paths.engine.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(paths.engine.parent).free
    if free < DISK_NEEDED:
        raise LocalError(
            f"{paths.engine.parent} has {free / 2**30:.1f} GiB free, and the engine environment needs "
            f"{DISK_NEEDED / 2**30:.0f} while it is installed. Free some, or set FOREBAY_STATE_DIR to another disk."
        )


def _pip(paths: Paths, requirements: list[str]) -> list[str]:
    return [
        str(paths.engine_python), "-m", "pip", "install", "--progress-bar", "off", "--no-input",
        "--no-deps", "--force-reinstall", *requirements,
    ]


def _environment() -> dict[str, str]:
    return os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}


def shorten(line: str) -> str | None:
    """pip's line as a reader wants it: the package or file and its size, never an address."""
    if line.startswith(("Collecting ", "Building ")):
        return line[:70]
    if found := re.match(r"(?:Downloading|Using cached|Processing) (?:\S*/)?(\S+)(.*)", line):
        return f"fetching {found[1]}{found[2]}"
    if line.startswith("Installing collected packages"):
        count = line.count(",") + 1
        return f"unpacking {count} package{'' if count == 1 else 's'}"
    if line.startswith("ERROR"):
        return line
    return None

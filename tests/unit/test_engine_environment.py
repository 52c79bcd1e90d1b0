"""Building the engine environment: what is installed again, where torch is looked for, and who may build."""

import asyncio
import base64
import hashlib
import io
import sys
from pathlib import Path

import pytest

from forebay.platform.local import engines
from forebay.platform.local.commands import LocalError
from forebay.platform.local.inside import check
from forebay.platform.local.paths import Paths
from forebay.platform.local.progress import Progress

# Stands in for an environment's Python: answers as pip and as inside/check.py would, and notes what it was asked.
INTERPRETER = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
case "$*" in
  *check.py*) if [ -f installed ]; then echo '[]'; else echo '["torch==2.13.0+cpu", "gguf==0.19.0"]'; fi ;;
  *torch==*--extra-index-url*) echo "Collecting torch" ;;
  *torch==*) echo "ERROR: No matching distribution found for torch==2.13.0+cpu"; exit 1 ;;
  *gguf*) sleep 0.2; if [ -f broken ]; then echo "ERROR: disk on fire"; exit 1; fi; touch installed ;;
esac
"""


@pytest.fixture
def where(tmp_path: Path) -> Paths:
    where = Paths(tmp_path)
    where.engine_python.parent.mkdir(parents=True)
    where.engine_python.write_text(INTERPRETER)
    where.engine_python.chmod(0o755)
    return where


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


def calls(where: Paths) -> list[str]:
    return (where.engine_python.parent / "calls").read_text().splitlines()


async def test_torch_is_looked_for_at_pytorch_only_when_pip_has_it_nowhere(where: Paths, said: io.StringIO) -> None:
    await engines.build(where, Progress(said))
    pip = [call for call in calls(where) if " pip install" in call]
    assert [engines.TORCH_INDEX in call for call in pip] == [False, True, False]
    assert all("--no-deps" in call for call in pip)
    assert "torch" not in pip[2]  # no other package may come from there
    assert engines.is_ready(where)
    assert engines.TORCH_INDEX in said.getvalue()


async def test_a_second_build_does_nothing(where: Paths, said: io.StringIO) -> None:
    await engines.build(where, Progress(said))
    before = calls(where)
    await engines.build(where, Progress(said))
    assert calls(where) == before


async def test_two_builders_take_turns(where: Paths, said: io.StringIO) -> None:
    await asyncio.gather(engines.build(where, Progress(said)), engines.build(where, Progress(said)))
    assert sum("gguf" in call for call in calls(where)) == 1
    assert "another process is building" in said.getvalue()


async def test_a_failed_build_says_why_and_is_taken_up_again(where: Paths, said: io.StringIO) -> None:
    broken = where.engine_python.parent / "broken"
    broken.touch()
    with pytest.raises(LocalError, match=r"disk on fire[\s\S]*engine-setup\.log"):
        await engines.build(where, Progress(said))
    assert not engines.is_ready(where)
    broken.unlink()
    await engines.build(where, Progress(said))
    assert engines.is_ready(where)


async def test_too_small_a_disk_is_said_before_anything_is_fetched(
    tmp_path: Path, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "DISK_NEEDED", 1 << 60)
    with pytest.raises(LocalError, match=r"GiB free.*FOREBAY_STATE_DIR"):
        await engines.build(Paths(tmp_path), Progress(said))


def install(site: Path, name: str, version: str, content: bytes = b"x = 1\n") -> Path:
    (site / f"{name}.py").write_bytes(content)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"{name}.py,sha256={digest},{len(content)}\n{info.name}/RECORD,,\n")
    return info


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_what_an_interrupted_install_left_is_found_and_cleared(site: Path) -> None:
    install(site, "whole_one", "1.0")
    install(site, "shortened_one", "1.0")
    (site / "shortened_one.py").write_bytes(b"x")
    half = install(site, "half_one", "1.0")
    (half / "RECORD").unlink()
    install(site, "old_one", "0.9")
    pins = dict.fromkeys(["whole_one", "shortened_one", "half_one", "old_one", "absent_one"], "1.0")
    assert check.missing(pins) == ["shortened_one==1.0", "half_one==1.0", "old_one==1.0", "absent_one==1.0"]
    assert not half.exists()  # pip would take it for installed, and could not remove it


def test_pins_are_those_of_this_machine() -> None:
    here, elsewhere = f'b==2; sys_platform == "{sys.platform}"', 'c==3; sys_platform == "x"'
    pins = check.wanted(["# a comment", "", "a==1", here, elsewhere])
    assert pins == {"a": "1", "b": "2"}


def test_every_engine_requirement_is_pinned() -> None:
    lines = engines.REQUIREMENTS.read_text().splitlines()
    pins = check.wanted(lines)
    assert all(pins.values())
    assert not {"torchvision", "torchaudio", "torchcodec"} & pins.keys()


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("Collecting torch==2.13.0+cpu", "Collecting torch==2.13.0+cpu"),
        ("  Downloading https://host/a/b/x-1.0-py3-none-any.whl (12 kB)", "fetching x-1.0-py3-none-any.whl (12 kB)"),
        ("Installing collected packages: a, b, c", "unpacking 3 packages"),
        ("ERROR: No matching distribution", "ERROR: No matching distribution"),
        ("Looking in indexes: https://somewhere", None),
    ],
)
def test_pip_is_quoted_without_addresses(line: str, detail: str | None) -> None:
    assert engines.shorten(line.strip()) == detail

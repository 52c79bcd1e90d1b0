"""Engines that announce themselves by files: what is taken for one, and what whoever writes there cannot do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay.platform import announced
from forebay.platform.announced import MOST_BYTES, Directory
from forebay.platform.listed import announced_ranks

HERE = os.getpid()


def write(directory: Path, file: str, text: str | None = None, **said: Any) -> Path:
    path = directory / f"{file}.json"
    whole = json.dumps({"url": f"http://127.0.0.1:{9000 + len(file)}", "pid": HERE} | said)
    path.write_text(whole if text is None else text)
    return path


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def names(directory: Directory) -> list[str]:
    return [engine.called for engine, _ in directory.look().engines]


def test_a_file_says_what_an_endpoint_of_the_configuration_does(tmp_path: Path) -> None:
    write(tmp_path, "a", url="http://LocalHost:9001/", servedModel="m", kvEvents="ipc:///run/kv", role="decode",
          revision="r7", priorityScheduling=True, drain=True)  # fmt: skip
    write(tmp_path, "b", name="of-my-own", url="http://[::1]:9002", dataParallelRanks=2,
          kvEvents="tcp://127.0.0.1:5557")  # fmt: skip
    (tmp_path / "notes.txt").write_text("not an engine")
    found = Directory(tmp_path).look()
    assert not found.left_out
    specs = [spec for one, at in found.engines for spec in announced_ranks(one, at, one.served_model or "first")]
    assert [(spec.name, spec.url, spec.served_model, spec.events) for spec in specs] == [
        ("a", "http://localhost:9001", "m", "ipc:///run/kv"),
        ("of-my-own/0", "http://[::1]:9002", "first", "tcp://127.0.0.1:5557"),
        ("of-my-own/1", "http://[::1]:9002", "first", "tcp://127.0.0.1:5558"),
    ]
    assert (specs[0].draining, specs[0].group.role, specs[0].group.revision) == ("its file says drain", "decode", "r7")
    assert specs[1].draining == ""


def test_an_engine_is_out_with_its_process_and_another_of_its_name_is_another(
    tmp_path: Path, other: subprocess.Popen[bytes]
) -> None:
    write(tmp_path, "a", pid=other.pid)
    directory = Directory(tmp_path)
    ((_, first),) = directory.look().engines
    ((_, again),) = directory.look().engines
    assert first == again, "the same process"
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its status yet
    found = directory.look()
    assert (found.engines, found.left_out) == ((), {"a.json": f"is of process {other.pid}, which does not run here"})
    write(tmp_path, "a")
    ((_, next_),) = directory.look().engines
    assert next_ != first


def engine(**said: Any) -> str:
    return json.dumps({"url": "http://127.0.0.1:1", "pid": HERE} | said)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read: Input data was truncated"),
        (engine()[:-8], "cannot be read: Input data was truncated"),
        ("[]", "cannot be read: Expected `object`, got `array`"),
        (json.dumps({"pid": HERE}), "cannot be read: Object missing required field `url`"),
        ('{"url": "http://127.0.0.1:1"}', "cannot be read: Object missing required field `pid`"),
        (engine(pid=0), "cannot be read: Expected `int` >= 1"),
        (engine(pid=1 << 32), "cannot be read: Expected `int` <= 2147483647"),
        (engine(pid="1"), "cannot be read: Expected `int`, got `str`"),
        (engine(kvevents="x"), "cannot be read: Object contains unknown field `kvevents`"),
        (engine(**{"a\nERROR b": 1}), "cannot be read: Object contains unknown field `a?ERROR b`"),
        (engine(url="http://127.0.0.1:1/v1"), "cannot be used: url: is not a base URL"),
        (engine(url="http://127.0.0.1:99999"), "cannot be used: url: "),
        (engine(url="http://me:secret@127.0.0.1:1"), "cannot be used: url: holds credentials"),
        (engine(engine="openai", kvEvents="ipc:///x"), "cannot be used: kvEvents: engine openai is sent no cache salt"),
        (engine(url="http://10.0.0.5:8000"), "names http://10.0.0.5:8000, which is not on this machine"),
        (engine(url="http://localhost.org"), "names http://localhost.org, which is not on this machine"),
        (engine(kvEvents="tcp://10.0.0.5:5557"), "names tcp://10.0.0.5:5557, which is not on this machine"),
        ("[" * 10_000, "cannot be read: "),
        (engine() + " " * MOST_BYTES, f"is larger than {MOST_BYTES} bytes"),
    ],
    ids=range(19),
)
def test_a_file_that_is_no_engine_is_left_out_alone_and_says_why(tmp_path: Path, text: str, why: str) -> None:
    write(tmp_path, "bad", text)
    write(tmp_path, "good")
    found = Directory(tmp_path).look()
    assert [engine.called for engine, _ in found.engines] == ["good"]
    assert found.left_out["bad.json"].startswith(why), found.left_out
    assert "secret" not in str(found.left_out)
    assert len(found.left_out["bad.json"]) <= 300
    assert "\n" not in found.left_out["bad.json"]


def test_what_is_no_plain_file_is_never_opened_for_long(tmp_path: Path) -> None:
    target = write(tmp_path, "a")
    (tmp_path / "link.json").symlink_to(target)
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ("x" * 140 + ".json")).write_text(target.read_text())
    (tmp_path / "sp ace.json").write_text(target.read_text())
    (tmp_path / os.fsdecode(b"\xff.json")).write_text(target.read_text())
    descriptors = psutil.Process().num_fds()
    found = Directory(tmp_path).look()
    assert psutil.Process().num_fds() == descriptors
    assert [engine.called for engine, _ in found.engines] == ["a"]
    assert found.left_out["link.json"] == found.left_out["endless.json"] == "is a symbolic link"
    assert found.left_out["pipe.json"] == found.left_out["folder.json"] == "is no regular file"
    assert len(found.left_out) == 7
    assert "".join(found.left_out).encode(), "it is shown in /health"


def test_a_file_cannot_have_a_variable_sent_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "of the engines")
    monkeypatch.setenv("DATABASE_URL", "secret")
    write(tmp_path, "a")
    write(tmp_path, "b", apiKeyEnv="DATABASE_URL")
    found = Directory(tmp_path, "ENGINE_KEY").look()
    assert [spec.api_key for one, at in found.engines for spec in announced_ranks(one, at, "m")] == ["of the engines"]
    assert "only the configuration may" in found.left_out["b.json"]


def test_a_file_that_a_process_left_is_not_of_another_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, "a", life=announced.life(HERE))
    assert names(Directory(tmp_path)) == ["a"]
    assert announced.holder(path) == HERE
    write(tmp_path, "a", life="another boot 1")
    assert names(Directory(tmp_path)) == []
    assert announced.holder(path) is None


def test_of_two_with_one_name_or_url_the_first_counts(tmp_path: Path) -> None:
    write(tmp_path, "a", name="one", url="http://127.0.0.1:1")
    write(tmp_path, "b", name="one", url="http://127.0.0.1:2")
    write(tmp_path, "c", name="two", url="http://127.0.0.1:1/")
    directory = Directory(tmp_path)
    assert names(directory) == ["one"]
    assert directory.look().left_out == {"b.json": "has the name of a.json", "c.json": "has the url of a.json"}
    (tmp_path / "a.json").unlink()
    assert names(directory) == ["one", "two"]


def test_a_file_that_is_written_anew_says_what_it_said_before(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    path = write(tmp_path, "a", pid=other.pid)
    directory = Directory(tmp_path)
    before = directory.look().engines
    path.write_text(path.read_text()[:20])
    found = directory.look()
    assert found.engines == before
    assert found.left_out["a.json"] == "cannot be read: Input data was truncated; what it said before stays"
    other.kill()
    other.wait()
    assert directory.look().engines == (), "but not longer than its process"


def test_thousands_of_files_and_a_directory_that_all_may_write_to_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announced, "MOST_FILES", 20)
    write(tmp_path, "a")
    directory = Directory(tmp_path)
    ((_, process),) = directory.look().engines
    for number in range(30):
        write(tmp_path, f"left-{number}", pid=2**31 - 1)
    with pytest.raises(OSError, match="holds more than 20 files: remove those that were left there"):
        directory.look()
    for number in range(30):
        (tmp_path / f"left-{number}.json").unlink()
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by everybody: chmod o-w"):
        directory.look()
    tmp_path.chmod(0o700)
    assert [at for _, at in directory.look().engines] == [process], "it is still the same process"


def test_the_time_of_day_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a")
    directory = Directory(tmp_path)
    before = directory.look().engines
    monkeypatch.setattr("time.time", lambda: 0.0)
    os.utime(path, (4e9, 4e9))
    assert directory.look().engines == before

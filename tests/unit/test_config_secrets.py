"""Files of secrets: who may read them, what they may hold, and that nobody sees it."""

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.config.model import Config, Secrets, Stores
from forebay.platform.config.secrets import (
    SecretsError,
    cache_salt,
    ensure_secrets,
    load_secrets,
    rotate_secrets,
    secret_path,
    secrets_of,
)

OLD, NEW = b"o" * 32, b"n" * 40


def line(name: str, secret: bytes) -> str:
    return f"{name}:{base64.b64encode(secret).decode()}\n"


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secrets_come_newest_first(tmp_path: Path) -> None:
    path = written(tmp_path / "s", "# rotated in May\n" + line("new", NEW) + "\n" + line("old", OLD))
    assert load_secrets(path) == [("new", NEW), ("old", OLD)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "s: holds no secret; write one a line as id:base64, newest first"),
        ("# nothing\n\n", "s: holds no secret"),
        (base64.b64encode(NEW).decode(), "s:1: is no secret; write id:base64"),
        ("a b:" + base64.b64encode(NEW).decode(), "s:1: is no secret; write id:base64"),
        (line("a", NEW) + "b:!!!!" + "bm5u" * 12, "s:2: what follows the id is not base64"),
        (line("a", b"n" * 31), "s:1: is shorter than 32 bytes; make one with: openssl rand -base64 32"),
        (line("a", NEW) + line("a", OLD), "s:2: has the id of a line above it"),
        ("#" * 70_000, "s: is larger than 65536 bytes"),
        ("é:" + base64.b64encode(NEW).decode(), "s: holds characters other than ASCII"),
    ],
)
def test_faulty_files_say_where_and_never_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SecretsError) as caught:
        load_secrets(written(tmp_path / "s", text))
    assert message in str(caught.value)
    assert "bm5u" not in str(caught.value)
    assert "nnn" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_files_that_others_can_read_are_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SecretsError, match="can be read by others; run: chmod 600"):
        load_secrets(written(tmp_path / "s", line("a", NEW), mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_mounted_secret_of_another_owner_may_be_readable_by_group(tmp_path: Path) -> None:
    path = written(tmp_path / "s", line("a", NEW), 0o440)
    os.chown(path, 12345, 12345)
    assert load_secrets(path) == [("a", NEW)]
    path.chmod(0o444)
    with pytest.raises(SecretsError, match="can be read by others"):
        load_secrets(path)


@pytest.mark.parametrize("name", ["none", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SecretsError, match="cannot be read"):
        load_secrets(tmp_path / name)


def test_missing_secrets_are_created_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secrets" / "key-hash"
    ((name, secret),) = ensure_secrets(path)
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ensure_secrets(path) == [(name, secret)]
    assert [child.name for child in path.parent.iterdir()] == ["key-hash"]


def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from forebay.platform.config.secrets import ensure_secrets\n"
        "sys.stdin.readline(); print(ensure_secrets(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "secrets" / "s")]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0] for process in started]
    assert len(set(answers)) == 1
    assert answers[0].startswith("[('s_")


def test_rotation_prepends_and_keeps_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path / "s", "# ours\n" + line("old", OLD))
    name = rotate_secrets(path)
    assert [known for known, _ in load_secrets(path)] == [name, "old"]
    assert path.read_text().endswith("# ours\n" + line("old", OLD))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [child.name for child in tmp_path.iterdir()] == ["s"]


def test_rotation_of_a_faulty_file_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "s", "nonsense")
    with pytest.raises(SecretsError, match="is no secret"):
        rotate_secrets(path)
    assert path.read_text() == "nonsense"


def test_rotation_follows_a_link(tmp_path: Path) -> None:
    target = written(tmp_path / "target", line("old", OLD))
    (tmp_path / "s").symlink_to(target)
    rotate_secrets(tmp_path / "s")
    assert (tmp_path / "s").is_symlink()
    assert len(load_secrets(target)) == 2


def test_unset_paths_are_under_the_state_directory_and_named_ones_must_exist(tmp_path: Path) -> None:
    config = Config(stores=Stores(state_dir=str(tmp_path)), secrets=Secrets(key_hash=str(tmp_path / "named")))
    assert secret_path(config, "cache-salt") == tmp_path / "secrets" / "cache-salt"
    assert len(secrets_of(config, "cache-salt")) == 1
    with pytest.raises(SecretsError, match="named: cannot be read"):
        secrets_of(config, "key-hash")


@given(st.binary(min_size=32, max_size=64), st.text())
def test_salts_fit_every_engine(secret: bytes, project: str) -> None:
    salt = cache_salt(secret, project)
    assert len(salt) == 64
    assert set(salt) <= set("0123456789abcdef")


def test_salts_differ_by_project_and_secret_and_stay_the_same() -> None:
    salts = {cache_salt(secret, project) for secret in (OLD, NEW) for project in ("proj_a", "proj_b", "")}
    assert len(salts) == 6
    # Fixed for ever: another value would empty every project's prefix cache at an upgrade.
    assert cache_salt(OLD, "proj_a") == "9fa2861279c3d20c6837bc592909c10d7f6437d0867c0fe6f738700ab4b5ac24"

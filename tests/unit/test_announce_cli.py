"""`forebay announce` as it is typed: what it refuses before it starts anything."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from forebay.platform.cli.announce import announce

FILE = """\
apiVersion: forebay.dev/v1
pools:
  - {name: a, discovery: {local: {}}}
  - {name: b, discovery: {local: {directory: shared}}}
  - {name: c, endpoints: [{url: "http://h:1"}]}
models: [{name: a, pool: a}, {name: b, pool: b}, {name: c, pool: c}]
"""
HERE = ("--url", "http://127.0.0.1:9201")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("forebay.yaml").write_text(FILE)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (HERE, "pools with discovery.local: a, b; name one of them with --pool"),
        ((*HERE, "--pool", "c"), "pools with discovery.local: a, b; name one of them with --pool"),
        (("--pool", "a", "--url", "http://10.0.0.5:1"), "the engine names http://10.0.0.5:1, which is not on this"),
        (("--pool", "a", "--url", "http://127.0.0.1:9201/v1"), "the engine cannot be used: url: is not a base URL"),
        (("--pool", "a", "--url", "http://127.0.0.1:no"), "Port could not be cast to integer"),
        (("--pool", "a", *HERE, "--role", "both"), "the engine cannot be read: Invalid enum value 'both' - at"),
        (("--pool", "a", *HERE, "--name", "a/b"), "the engine's name is that of a file: it may not have a /"),
    ],
    ids=range(7),
)
def test_what_cannot_be_announced_is_not_started(options: tuple[str, ...], why: str) -> None:
    result = CliRunner().invoke(announce, [*options, "--", sys.executable, "-c", "open('started', 'w')"])
    assert result.exit_code == 2, result.output
    assert why in " ".join(result.output.replace("│", "").split())
    assert not Path("started").exists()


def test_an_engine_that_ends_before_it_answers_is_said_with_its_log_and_never_announced() -> None:
    engine = (sys.executable, "-c", "print('no such model'); raise SystemExit(3)")
    result = CliRunner().invoke(announce, ["--pool", "b", *HERE, "--", *engine])
    assert result.exit_code == 1, result.output
    assert "engine-9201 ended with status 3 before it was ready." in result.output
    assert "no such model" in result.output
    assert not list(Path().glob("shared/*"))

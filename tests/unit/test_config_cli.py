"""`forebay config …` as it is typed."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from forebay.platform.cli.config import config
from forebay.platform.config.secrets import load_secrets

GOOD = """\
apiVersion: forebay.dev/v1
pools:
  - name: p
    endpoints: [{url: "http://h:1"}, {url: "http://h:2"}]
models:
  - {name: m, pool: p}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: str) -> Result:
    return CliRunner().invoke(config, args)


def test_check_sums_up_a_sound_file() -> None:
    Path("my.yaml").write_text(GOOD)
    result = run("check", "my.yaml")
    assert (result.exit_code, result.stdout) == (0, "ok: my.yaml: 1 model, 1 pool, 2 endpoints, stores embedded\n")


def test_check_without_a_file_says_that_defaults_apply() -> None:
    result = run("check")
    assert result.exit_code == 0
    expected = "ok: no forebay.yaml here, so the defaults apply: 0 models, 0 pools, 0 endpoints, stores embedded\n"
    assert result.stdout == expected


def test_check_finds_forebay_yaml_and_prints_every_fault() -> None:
    Path("forebay.yaml").write_text(GOOD.replace("pool: p", "pool: q").replace("h:2", "h:2/v1"))
    result = run("check")
    assert result.exit_code == 1
    assert result.stdout == (
        "forebay.yaml:4: pools[0].endpoints[1].url: is not a base URL: Forebay adds /v1 itself; write http://h:2\n"
        "forebay.yaml:6: models[0].pool: there is no pool 'q'; the pools are p\n"
    )
    assert result.stderr == "2 faults\n"


def test_check_of_a_missing_file() -> None:
    result = run("check", "none.yaml")
    assert result.exit_code == 1
    assert result.stdout == "none.yaml: cannot be read: No such file or directory; name a file that Forebay may read\n"


def test_warnings_are_printed_and_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    Path("forebay.yaml").write_text(GOOD.replace('"http://h:1"', '"http://h:1", apiKeyEnv: NOT_SET'))
    result = run("check")
    assert result.exit_code == 0
    assert "warning: pools[0].endpoints[0].apiKeyEnv: the variable NOT_SET is not set here" in result.stdout


def test_schema_is_json() -> None:
    assert json.loads(run("schema").stdout)["$id"] == "https://forebay.dev/schema/v1.json"


def test_show_prints_the_whole_configuration_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hunter2")
    Path("forebay.yaml").write_text(GOOD + "stores: {postgres: 'postgresql://u:${PW}@db/d'}\n")
    result = run("show")
    shown = yaml.safe_load(result.stdout)
    assert shown["stores"]["postgres"] == "postgresql://***@db/d"
    assert shown["server"]["port"] == 8080
    assert shown["models"][0]["apis"] == ["chat", "completions"]
    assert "hunter2" not in result.output


def test_show_refuses_a_faulty_file() -> None:
    Path("forebay.yaml").write_text("server: {port: x}")
    result = run("show")
    assert result.exit_code == 1
    assert "forebay.yaml:1: server.port: 'x' is not a whole number" in result.stderr


def test_rotate_secret_creates_then_prepends() -> None:
    result = run("rotate-secret", "key-hash")
    assert result.exit_code == 0, result.output
    secrets = load_secrets(Path(".forebay/secrets/key-hash"))
    assert len(secrets) == 2
    assert f"{secrets[0][0]} is the newest secret" in result.stdout
    assert run("rotate-secret", "key-hash").exit_code == 0
    assert load_secrets(Path(".forebay/secrets/key-hash"))[1:] == secrets


def test_rotate_secret_finds_a_state_directory_that_the_environment_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_STATE_DIR", "moved")
    assert run("rotate-secret", "key-hash").exit_code == 0
    assert len(load_secrets(Path("moved/secrets/key-hash"))) == 2
    assert yaml.safe_load(run("show").stdout)["stores"]["stateDir"] == "moved"


def test_rotate_secret_says_what_is_wrong() -> None:
    Path("s").write_text("x")
    Path("s").chmod(0o644)
    Path("forebay.yaml").write_text(GOOD + "secrets: {cacheSalt: s}\n")
    result = run("rotate-secret", "cache-salt")
    assert result.exit_code == 1
    assert result.stderr == "Error: s: can be read by others; run: chmod 600 s\n"

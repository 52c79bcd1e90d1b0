"""`forebay tenant|project|key`, as a person or a script runs them, on a real database."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forebay.platform.cli import tenancy as commands
from forebay.platform.cli.limits import limits
from forebay.platform.stores import embedded
from tests.stores import state_directory

Run = Callable[..., Result]


@pytest.fixture
def forebay(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; checks its exit status."""
    monkeypatch.setenv("FOREBAY_TEST_DATABASE", database)
    config = tmp_path / "forebay.yaml"
    config.write_text(
        "apiVersion: forebay.dev/v1\n"
        "tiers: [{name: fast, rank: 0, access: granted}, {name: default, rank: 1}]\n"
        f"stores: {{postgres: '${{FOREBAY_TEST_DATABASE}}', stateDir: {tmp_path}}}\n"
    )

    def run(group: str, *arguments: str, status: int = 0, feed: str | None = None) -> Result:
        command = limits if group == "limits" else getattr(commands, group)
        result = CliRunner().invoke(command, [*arguments, "--config", str(config)], input=feed)
        assert result.exit_code == status, result.output
        return result

    return run


def test_from_tenant_to_key_and_back(forebay: Run) -> None:
    tenant = json.loads(forebay("tenant", "create", "Acme Corp", "--weight", "0.5", "--json").stdout)
    assert tenant["id"] in forebay("tenant", "list").stdout
    assert tenant["weight"] == 0.5
    assert json.loads(forebay("tenant", "weight", "Acme Corp", "2.5", "--json").stdout)["weight"] == 2.5
    assert " 2.5 " in forebay("tenant", "weight", "Acme Corp").stdout
    forebay("project", "create", "Acme Corp", "chat", "--model", "tiny")
    project = json.loads(forebay("project", "list", tenant["id"], "--json").stdout)[0]
    assert (project["name"], project["models"]) == ("chat", ["tiny"])
    assert "other, tiny" in forebay("project", "models", project["id"], "tiny", "other").stdout
    assert " all " in forebay("project", "models", "Acme Corp/chat", "--all").stdout
    assert "fast, default" in forebay("project", "tiers", "Acme Corp/chat", "default", "fast").stdout
    assert json.loads(forebay("project", "tiers", project["id"], "--json").stdout)["tiers"] == ["fast", "default"]
    assert " open " in forebay("project", "tiers", "Acme Corp/chat", "--open").stdout
    granted = json.loads(forebay("project", "create", "Acme Corp", "urgent", "--tier", "fast", "--json").stdout)
    assert (granted["models"], granted["tiers"]) == (None, ["fast"])

    made = forebay("key", "create", "Acme Corp/chat", "--name", "ci", "--scopes", "inference,usage.read",
                   "--expires", "30d")  # fmt: skip
    secret = made.stdout.strip()  # nothing but the key: KEY=$(forebay key create …)
    assert secret.startswith("sk-fb-")
    listed = forebay("key", "list", "Acme Corp/chat").stdout
    assert "ci" in listed
    assert "inference, usage.read" in listed
    assert secret not in listed

    key = json.loads(forebay("key", "list", tenant["id"], "--json").stdout)[0]
    assert key["expires_at"] == pytest.approx(time.time() + 30 * 86_400, abs=30)
    rotated = json.loads(forebay("key", "rotate", key["id"], "--grace", "15m", "--json").stdout)
    assert rotated["key"]["expires_at"] == pytest.approx(time.time() + 30 * 86_400, abs=30)
    old = json.loads(forebay("key", "revoke", key["prefix"] + "-…", "--json").stdout)
    assert (old["id"], old["status"], old["replaced_by"]) == (key["id"], "revoked", rotated["key"]["id"])

    assert "suspended" in forebay("tenant", "suspend", "Acme Corp").stdout
    assert "active" in forebay("tenant", "resume", "Acme Corp").stdout
    export = json.loads(forebay("tenant", "export", "Acme Corp").stdout)
    assert (len(export["projects"]), len(export["keys"]), export["usage"]) == (2, 2, [])

    assert "Aborted" in forebay("tenant", "delete", "Acme Corp", feed="n\n", status=1).output
    forebay("tenant", "delete", "Acme Corp", feed="y\n")
    assert json.loads(forebay("tenant", "list", "--json").stdout) == []
    assert "deleted" in forebay("tenant", "list", "--deleted").stdout


def test_admin_keys(forebay: Run) -> None:
    assert forebay("key", "create", "--admin").stdout.startswith("sk-fb-admin-")
    assert "admin" in forebay("key", "list", "--admin").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("tenant", "suspend", "nobody"), 1, "there is no tenant 'nobody'"),
        (("tenant", "create", ""), 1, "1 to 128 printable characters"),
        (("tenant", "create", "taken"), 1, "already has this name"),
        (("tenant", "weight", "taken", "0"), 1, "weight is between 0.01 and 100"),
        (("tenant", "create", "heavy", "--weight", "nan"), 1, "weight is between 0.01 and 100"),
        (("tenant", "weight", "nobody", "2"), 1, "there is no tenant 'nobody'"),
        (("project", "create", "ten_000000000000000000000000", "x"), 1, "there is no tenant 'ten_0000"),
        (("project", "create", "taken", "q", "--tier", "fst"), 1, "there is no tier 'fst'; did you mean fast?"),
        (("project", "tiers", "taken/p", "fast", "--open"), 2, "name tiers or give --open, not both"),
        (("key", "create", "taken/none"), 1, "there is no project 'taken/none'"),
        (("project", "models", "nobody/p"), 1, "there is no tenant 'nobody'"),
        (("limits", "show", "key_0"), 1, "there is no key 'key_0'"),
        (("key", "create", "taken/p", "--scopes", "root"), 1, "not a scope of a project key"),
        (("key", "create", "taken/p", "--expires", "2001-01-01"), 1, "in the past"),
        (("key", "create", "taken/p", "--expires", "soon"), 2, "neither a duration"),
        (("key", "create"), 2, "name a project, or give --admin"),
        (("key", "revoke", "key_000000000000000000000000"), 1, "there is no key 'key_000000000000000000000000'"),
        (("key", "revoke", "sk-fb-" + "a" * 12 + "-" + "b" * 49), 1, "there is no key 'sk-fb-aaaaaaaaaaaa"),
        (("key", "rotate", "\udcff"), 1, "there is no key '\\udcff'"),
    ],
)
def test_refusals_are_one_clear_line(forebay: Run, arguments: tuple[str, ...], status: int, said: str) -> None:
    forebay("tenant", "create", "taken")
    forebay("project", "create", "taken", "p")
    result = forebay(*arguments, status=status)
    assert said in result.stderr
    if status == 1:
        assert len(result.stderr.splitlines()) == 1
    assert "b" * 49 not in result.output


def test_unreachable_database_is_one_clear_line(tmp_path: Path) -> None:
    config = tmp_path / "forebay.yaml"
    config.write_text("apiVersion: forebay.dev/v1\nstores: {postgres: 'postgresql://u:hidden@127.0.0.1:1/x'}\n")
    result = CliRunner().invoke(commands.tenant, ["list", "--config", str(config)])
    assert result.exit_code == 1
    assert "hidden" not in result.output
    assert "Postgres" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_a_file_the_embedded_database_runs_for_the_command(tmp_path: Path) -> None:
    with state_directory() as state:
        def run(*arguments: str) -> str:
            done = subprocess.run([sys.executable, "-m", "forebay.platform.cli", *arguments], cwd=state, check=True,
                                  capture_output=True, text=True)  # fmt: skip
            return done.stdout

        run("tenant", "create", "acme")
        assert embedded.postgres_url(state / ".forebay") is None
        assert "acme" in run("tenant", "list")


def test_limits_are_set_shown_and_cleared(forebay: Run) -> None:
    forebay("tenant", "create", "Acme Corp")
    forebay("project", "create", "Acme Corp", "chat")
    secret = forebay("key", "create", "Acme Corp/chat").stdout.strip()
    public = secret.rpartition("-")[0]
    forebay("limits", "set", "Acme Corp", "--input-tokens", "2M", "--concurrent", "50")
    forebay("limits", "set", "Acme Corp/chat", "--model", "tiny", "--requests", "60")
    forebay("limits", "set", public, "--queued", "5")
    forebay("limits", "set", public, "--requests", "10k", "--json")
    found = json.loads(forebay("limits", "show", public, "--json").stdout)
    assert [(one["level"], one["model"]) for one in found] == [("key", None), ("project", "tiny"), ("tenant", None)]
    assert [found[0]["limits"][name] for name in ("requests_per_minute", "queued_requests")] == [10_000, 5]
    assert found[2]["limits"]["input_tokens_per_minute"] == 2_000_000
    assert "2000000" in forebay("limits", "show", "Acme Corp").stdout

    forebay("limits", "set", "Acme Corp", "--input-tokens", "none")
    tenant = json.loads(forebay("limits", "show", "Acme Corp", "--json").stdout)
    assert tenant[0]["limits"]["input_tokens_per_minute"] is None
    assert tenant[0]["limits"]["concurrent_requests"] == 50
    forebay("limits", "clear", "Acme Corp")
    forebay("limits", "clear", "Acme Corp/chat", "--all")
    assert json.loads(forebay("limits", "show", "Acme Corp/chat", "--json").stdout) == []
    for wrong in ("-1", "many", "1.5", "9999G"):
        forebay("limits", "set", "Acme Corp", f"--requests={wrong}", status=2)
    forebay("limits", "set", "Acme Corp", status=2)
    forebay("limits", "show", "Nobody", status=1)


def test_models_and_tiers_are_named_by_the_configuration_everywhere(forebay: Run, tmp_path: Path) -> None:
    config = tmp_path / "forebay.yaml"
    bare = config.read_text()
    forebay("tenant", "create", "acme")
    made = forebay("project", "create", "acme", "p", "--model", "gone")
    assert "not checked, since the configuration has no models: gone" in made.stderr
    assert "not checked" in forebay("limits", "set", "acme", "--model", "gone", "--requests", "5").stderr

    config.write_text(bare + "models: [{name: tiny, aliases: [small], pool: a}]\npools: [{name: a, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n")
    known = "there is no model 'smal'; did you mean small? The models are tiny (small)"
    for command in (
        ("project", "create", "acme", "q", "--model", "smal"),
        ("project", "models", "acme/p", "tiny", "smal"),
        ("limits", "set", "acme", "--model", "smal", "--requests", "5"),
    ):
        refused = forebay(*command, status=1)
        assert refused.stderr.strip() == f"Error: {known}", command
    kept = forebay("project", "models", "acme/p", "gone", "small")  # what stands there may stay
    assert "gone, tiny" in kept.stdout
    assert kept.stderr == ""
    forebay("limits", "set", "acme", "--model", "gone", "--requests", "6")
    forebay("limits", "clear", "acme", "--model", "gone")
    forebay("limits", "set", "acme", "--model", "gone", "--requests", "6", status=1)

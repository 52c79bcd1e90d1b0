"""`forebay --help`: every command that the documentation promises is there and says in a sentence what it does."""

import click
import pytest
from click.testing import CliRunner

from forebay.platform.cli import main

PROMISED = [
    ("up",), ("serve",), ("announce",), ("doctor",), ("demo",), ("usage",), ("config", "check"), ("config", "schema"),
    ("tenant",), ("project",), ("key", "create"), ("key", "list"), ("key", "revoke"), ("key", "rotate"),
]  # fmt: skip


def test_the_first_help_names_every_command_with_a_whole_sentence() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=100)
    assert shown.exit_code == 0
    names = main.list_commands(click.Context(main))
    for name in names:
        (line,) = [line for line in shown.output.splitlines() if line.split()[:1] == [name]]
        assert line.endswith(".")
        assert len(line.split()) >= 4, line
    assert {command[0] for command in PROMISED} <= set(names)


@pytest.mark.parametrize("command", PROMISED, ids=" ".join)
def test_every_promised_command_explains_itself_and_its_options(command: tuple[str, ...]) -> None:
    found: click.Command | None = main
    for name in command:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name)
    assert found is not None
    assert found.help
    assert CliRunner().invoke(main, [*command, "--help"]).exit_code == 0
    for option in found.params:
        if isinstance(option, click.Option):
            assert option.help, f"{option.name} of {command}"

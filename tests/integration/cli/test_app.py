"""The command tree: help that teaches, exit codes that mean something."""

import platform
import subprocess
import sys

import pytest

from millstream.compilation import description, why_plain
from millstream.version import VERSION
from tests.integration.cli.conftest import Run

COMMANDS = [
    ["serve"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "alter"],
    ["topic", "delete"],
    ["produce"],
    ["consume"],
    ["bench"],
    ["log", "dump"],
    ["settings"],
    ["version"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_shows_an_example(offline: Run, command: list[str]) -> None:
    outcome = offline(*command, "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out
    assert f"millstream {' '.join(command)}" in outcome.out


@pytest.mark.parametrize("command", [one for one in COMMANDS if one != ["serve"]], ids=" ".join)
def test_every_command_has_json(offline: Run, command: list[str]) -> None:
    assert "--json" in offline(*command, "--help").out


def test_help_names_the_exit_codes(offline: Run) -> None:
    outcome = offline("--help")
    assert "3 no broker at the address" in " ".join(outcome.out.split())
    assert offline().code == 2


def test_the_version_names_python_and_the_form_of_the_modules(offline: Run) -> None:
    why = why_plain()
    reason = "" if why is None else f" ({why})"
    assert offline("version").out == f"millstream {VERSION}, {description()}{reason}\n"
    assert offline("version", "--json").json() == {
        "millstream": VERSION,
        "python": platform.python_version(),
        "modules": description(),
        **({} if why is None else {"why_plain": why}),
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "list", "--nonsense"],
        ["serve", "--nonsense"],
        ["serve", "--listen"],
        ["consume", "t", "--count", "many"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2_and_print_nothing_on_stdout(offline: Run, arguments: list[str]) -> None:
    outcome = offline(*arguments)
    assert outcome.code == 2
    assert outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    "arguments", [["topic", "list"], ["consume", "t"], ["produce", "t", "x"], ["bench"]], ids=" ".join
)
def test_a_command_without_a_broker_exits_with_3_and_names_the_address(offline: Run, arguments: list[str]) -> None:
    outcome = offline(*arguments, "--bootstrap", "127.0.0.1:1")
    assert outcome.code == 3
    assert outcome.err.count("\n") == 1
    assert "no broker at 127.0.0.1:1" in outcome.err
    assert "millstream serve" in outcome.err


def test_the_short_way_of_serve_needs_no_heavy_imports() -> None:
    script = (
        "import sys\n"
        "from millstream.cli.serve import parse\n"
        "from millstream.cli import main\n"
        "import millstream.node.runtime.running\n"
        "assert parse(['--listen', '127.0.0.1:0']) is not None\n"
        "print(sorted({'typer', 'rich', 'confluent_kafka', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_building_the_command_tree_needs_no_client() -> None:
    script = "import sys, millstream.cli.app; print(sorted({'rich.table', 'confluent_kafka'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"

"""What the scripts have in common: options, connection, and errors as Kafka's scripts report them."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from millstream.cli import exit_codes

if TYPE_CHECKING:
    from millstream.raw_client import Cluster

_TIMEOUT_SECONDS = 30.0
_CLIENT_ID = "millstream-kafka-script"


class UsageError(Exception):
    """What is wrong with the options."""


class Options(argparse.ArgumentParser):
    def __init__(self, name: str) -> None:
        super().__init__(prog=f"{name}.sh", allow_abbrev=False, add_help=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        found, unknown = self.parse_known_args(list(words))
        if unknown:
            known = sorted(each for action in self._actions for each in action.option_strings)
            raise UsageError(f"{unknown[0]} is not supported. Supported: {' '.join(known)}")
        return found

    def flags(self, *names: str) -> None:
        for name in names:
            self.add_argument(name, action="store_true")

    def values(self, *names: str) -> None:
        for name in names:
            self.add_argument(name)

    def lists(self, *names: str) -> None:
        for name in names:
            self.add_argument(name, action="append", default=[])

    def connection(self) -> None:
        self.add_argument("--bootstrap-server", required=True)
        self.values("--command-config")


def failed(name: str, reason: str) -> int:
    print(f"{name}: {reason}", file=sys.stderr)
    return exit_codes.FAILED


def open_cluster(options: argparse.Namespace) -> "Cluster":
    from millstream.raw_client import Cluster
    from millstream.raw_client.client_properties import read_client_properties

    settings = read_client_properties(options.command_config) if options.command_config else {}
    return Cluster(options.bootstrap_server, settings, client_id=_CLIENT_ID, timeout_s=_TIMEOUT_SECONDS)


def one_of(options: argparse.Namespace, *names: str) -> str:
    """The action that was chosen; usage error unless it is exactly one."""
    chosen = [name for name in names if getattr(options, name)]
    if len(chosen) != 1:
        raise UsageError(f"give exactly one of {', '.join('--' + name.replace('_', '-') for name in names)}")
    return chosen[0]


def number_of(options: argparse.Namespace, name: str) -> int:
    text = getattr(options, name)
    if text is None:
        return -1
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise UsageError(f"--{name.replace('_', '-')} {text}: give a number from 1 on")
    return int(text)


def topics_of(options: argparse.Namespace) -> "re.Pattern[str] | None":
    """`--topic`, which is a regular expression as in Kafka; None without it."""
    if not options.topic:
        return None
    try:
        return re.compile(options.topic)
    except re.error as error:
        raise UsageError(f"--topic {options.topic} is no regular expression: {error}") from None


def assigned(words: Sequence[str]) -> dict[str, str]:
    """`a=b` and Kafka's `a=b,c=[d,e]`."""
    found = {}
    for word in words:
        for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", word):
            name, equals, value = part.partition("=")
            if not equals or not name.strip():
                raise UsageError(f"{part}: write NAME=VALUE")
            found[name.strip()] = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return found


def assigned_whole(words: Sequence[str]) -> dict[str, str]:
    """`name=value`; a comma may be the value."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{word}: write NAME=VALUE")
        found[name.strip()] = value
    return found


def config_of(options: argparse.Namespace, older: str = "command_config") -> list[str]:
    file = options.command_config or getattr(options, older)
    return ["--command-config", file] if file else []


def run_millstream(words: Sequence[str]) -> int:
    from millstream.cli.app import run_app

    return exit_codes.OK if run_app(list(words)) == exit_codes.OK else exit_codes.FAILED

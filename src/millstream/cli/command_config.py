"""`--command-config FILE`: the client properties of a command, as Kafka's tools take them, and secrets in options.

Every command with `-X` gets the option `--command-config` here, so no command declares it. The file can also be named
in $MILLSTREAM_COMMAND_CONFIG. `-X` takes precedence over the file; `bootstrap.servers` of the file is the default of
`--bootstrap`.

A process list shows options to every user of a machine. So a secret in an option is refused, except as a reference to a
file or to the environment (`common/secret_references.py`).
"""

from contextvars import ContextVar
from typing import Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.gateway_process import CONNECTION_VARIABLE as VARIABLE
from millstream.cli.terminal import CommandFailedError
from millstream.common.secret_references import SecretError, has_reference, resolve_all

OPTION = "--command-config"
_file: ContextVar[str | None] = ContextVar("command_config", default=None)
SECRETS = (
    "password",
    "secret",
    "sasl.jaas.config",
    "sasl.oauthbearer.token",
    "ssl.key.pem",
    "ssl.keystore.key",
    "delegation.token.master.key",
)
"""Endings of the names of settings that are secret."""


def is_secret(name: str) -> bool:
    return name.endswith(SECRETS)


def add_to_all(command: Any) -> Any:
    """Adds the option to each command below that connects to a cluster, that is, to each with `-X`.

    The commands are click's, which typer has under a private name: hence no types.
    """
    _file.set(None)
    (option,) = (each for each in typer.main.get_command(_declaring).params if OPTION in each.opts)
    _add(command, option)
    return command


def _add(command: Any, option: Any) -> None:
    for each in getattr(command, "commands", {}).values():
        _add(each, option)
    taken = {name for parameter in command.params for name in parameter.opts}
    if "-X" in taken and OPTION not in taken:
        command.params.append(option)


def _remember(context: typer.Context, path: str | None) -> None:
    if not path or context.resilient_parsing:
        return
    from millstream.raw_client.client_properties import read_bootstrap

    _file.set(path)
    bootstrap = read_bootstrap(path)
    if bootstrap:
        context.default_map = {**(context.default_map or {}), "bootstrap": bootstrap}


_declaring = typer.Typer()


@_declaring.command()
def _declaration(
    command_config: Annotated[
        str | None,
        typer.Option(
            OPTION,
            envvar=VARIABLE,
            metavar="FILE",
            help="Client properties: security.protocol, sasl.…, ssl.… in Kafka's format.",
            is_eager=True,
            expose_value=False,
            callback=_remember,
        ),
    ] = None,
) -> None:
    """Only declares the option."""


def file_of_command() -> str | None:
    """The file of the running command."""
    return _file.get()


def connection_settings(words: dict[str, str]) -> dict[str, str]:
    """The settings of the connection, for the raw client: the file, overridden by the words of `-X`."""
    path = file_of_command()
    given = without_secrets(words, "-X")
    if path is None:
        return given
    from millstream.raw_client.client_properties import read_client_properties

    settings: dict[str, str] = read_client_properties(path)
    return settings | given


def librdkafka_connection_settings(words: dict[str, str]) -> dict[str, Any]:
    """The same for librdkafka. Settings of `-X` that are not of the connection are passed as they are."""
    given = without_secrets(words, "-X")
    if file_of_command() is None and not any(name.startswith(("security.", "sasl.", "ssl.")) for name in given):
        return dict(given)
    from millstream.raw_client.client_properties import librdkafka_settings
    from millstream.raw_client.settings import USED

    settings = connection_settings(words)
    own = {name: value for name, value in given.items() if name not in USED}
    return librdkafka_settings({name: value for name, value in settings.items() if name in USED}) | own


def without_secrets(words: dict[str, str], option: str) -> dict[str, str]:
    """The words with references replaced. A usage error for a secret that is written out."""
    for name, value in words.items():
        if is_secret(name) and value and not has_reference(value):
            instead = (
                f"put it into a file for {OPTION}, or write" if option == "-X" else "put it into the file, or write"
            )
            raise CommandFailedError(
                f"{option} {name}=…: the process list would show this secret to every user of the machine: {instead}"
                f" {option} '{name}=${{file:/path:key}}' or '{name}=${{env:NAME}}'",
                exit_codes.USAGE,
            )
    try:
        return resolve_all(words)
    except SecretError as error:
        raise CommandFailedError(f"{option} {error}", exit_codes.USAGE) from error

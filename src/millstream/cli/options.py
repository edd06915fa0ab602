"""Options that several commands share, and how a command gets its client.

Options of the commands that serve HTTP, or have it served beside them.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.gateway_process import AUTH_VARIABLE, DEFAULT_HTTP
from millstream.cli.terminal import CommandFailedError

if TYPE_CHECKING:
    from millstream.client import Client


COMPLETION_TIMEOUT_S = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topic names for the shell; nothing if there is no broker, since completion must never complain."""
    try:
        from millstream.client import connect

        bootstrap = context.params.get("bootstrap") or "localhost:9092"
        with connect(bootstrap, timeout=COMPLETION_TIMEOUT_S) as client:
            return [name for name in client.list_topics() if name.startswith(incomplete)]
    except Exception:
        return []


Bootstrap = Annotated[
    str,
    typer.Option("--bootstrap", "-b", envvar="MILLSTREAM_BOOTSTRAP", metavar="HOST:PORT", help="Where the broker is."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text for people.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long the broker may take to answer.")]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="A librdkafka setting, e.g. -X security.protocol=ssl. Repeatable."),
]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic, show_default=False)
]

DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_TIMEOUT_S = 30.0


def assignments(words: list[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE` words as a dictionary; a usage error names the option."""
    result = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise CommandFailedError(f"{option} {word}: write NAME=VALUE", exit_codes.USAGE)
        result[name.strip()] = value
    return result


def open_client(bootstrap: str, timeout: float, settings: list[str] | None, **more: str) -> "Client":
    """A client for the shared options; what the user says with -X wins."""
    from millstream.client import connect

    return connect(bootstrap, settings={**more, **assignments(settings, "-X")}, timeout=timeout)


Http = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="HOST:PORT", help=f"Where HTTP is served; port 0 picks a free port. [default: {DEFAULT_HTTP}]"
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
AuthFile = Annotated[
    str | None,
    typer.Option(
        "--auth-file",
        metavar="FILE",
        help=f"Who may use HTTP: lines 'basic NAME:PASSWORD' or 'bearer TOKEN'; or in ${AUTH_VARIABLE}.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let everybody use HTTP, also at an address that others can reach.")
]
TlsCert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="Serve HTTPS: the certificate chain, PEM.")
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]

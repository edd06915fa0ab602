"""Options that several commands share, and the clients that they describe."""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import command_config, exit_codes
from millstream.cli.gateway_process import AUTH_VARIABLE, CONNECTION_VARIABLE, DEFAULT_HTTP
from millstream.cli.terminal import CommandFailedError

if TYPE_CHECKING:
    from datetime import datetime

    from millstream.client import Client
    from millstream.raw_client import Cluster

CLIENT_ID = "millstream-cli"
_REQUEST_TIMEOUT = "request.timeout.ms"
COMPLETION_TIMEOUT_SECONDS = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topic names for the shell. Empty on any error: completion must not print one."""
    try:
        from millstream.client import connect

        bootstrap = context.params.get("bootstrap") or "localhost:9092"
        settings = command_config.librdkafka_connection_settings({})
        with connect(bootstrap, settings=settings, timeout=COMPLETION_TIMEOUT_SECONDS) as client:
            return [name for name in client.list_topics() if name.startswith(incomplete)]
    except Exception:
        return []


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="MILLSTREAM_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Address of a broker, or several separated by commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Timeout of each request.")]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="NAME=VALUE", help="Client setting, e.g. -X security.protocol=ssl. Repeatable."),
]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic name.", autocompletion=complete_topic, show_default=False)
]

DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_TIMEOUT_SECONDS = 30.0


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
    """A client for the shared options. Settings of the user (-X, --command-config) override `more`.

    Before librdkafka starts, which would retry without a message until its timeout, one connection is tried: wrong
    credentials, an untrusted certificate or a wrong port are reported at once.
    """
    from millstream.client import connect

    given = assignments(settings, "-X")
    for_librdkafka = command_config.librdkafka_connection_settings(given)
    client = connect(bootstrap, settings={**more, **for_librdkafka}, timeout=timeout)
    try:
        if str(for_librdkafka.get("security.protocol", "plaintext")).lower() == "plaintext":
            client.connection.check_protocol()
        else:
            _try_connection(bootstrap, timeout, given)
    except BaseException:
        client.close()
        raise
    return client


def connection_settings(settings: list[str] | None) -> dict[str, str]:
    """The settings of -X and --command-config for the raw client, and for parts that make their own clients."""
    return command_config.connection_settings(assignments(settings, "-X"))


def _try_connection(bootstrap: str, timeout: float, given: dict[str, str]) -> None:
    from millstream.raw_client import Cluster

    settings = _of_connection(command_config.connection_settings(given))
    with Cluster(bootstrap, settings, client_id=CLIENT_ID, timeout_s=timeout) as cluster:
        cluster.brokers()


def _of_connection(settings: dict[str, str]) -> dict[str, str]:
    from millstream.raw_client.settings import USED

    return {name: value for name, value in settings.items() if name in USED}


def open_cluster(bootstrap: str, timeout: float, settings: list[str] | None) -> "Cluster":
    """A raw client for the shared options. Fails at once if no broker listens.

    The raw client is imported here, so that `millstream --help` does not wait for it.
    """
    from millstream.client.connection import Connection
    from millstream.raw_client import Cluster

    given = connection_settings(settings)
    Connection(bootstrap, given, timeout).probe()
    if not {_REQUEST_TIMEOUT, "socket.timeout.ms"} & given.keys():
        given[_REQUEST_TIMEOUT] = str(max(1, int(timeout * 1000)))  # one response may take the whole timeout
    return Cluster(bootstrap, given, client_id=CLIENT_ID, timeout_s=timeout)


def parsed_duration(option: str, text: str) -> int:
    """The duration of an option, such as 90s, 5m, 2h or 7d, in milliseconds."""
    from millstream.admin.errors import InvalidArgumentError
    from millstream.admin.offsets import parse_duration

    try:
        return int(parse_duration(text).total_seconds() * 1000)
    except InvalidArgumentError as error:
        raise CommandFailedError(f"{option} {error}", exit_codes.USAGE) from error


def parsed_time(option: str, text: str) -> "datetime":
    """The time of an option: ISO 8601 or @milliseconds."""
    from millstream.admin.errors import InvalidArgumentError
    from millstream.admin.offsets import parse_time

    try:
        return parse_time(text)
    except InvalidArgumentError as error:
        raise CommandFailedError(f"{option} {error}", exit_codes.USAGE) from error


Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help=f"Address of the HTTP server; port 0 selects a free port. [default: {DEFAULT_HTTP}]",
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Start no HTTP server.")]
AuthFile = Annotated[
    str | None,
    typer.Option(
        "--auth-file",
        metavar="FILE",
        help=f"Credentials for HTTP: lines 'basic NAME:PASSWORD' or 'bearer NAME:TOKEN'. Also in ${AUTH_VARIABLE}.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow addresses that other machines can reach without credentials.")
]
TlsCert = Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain for HTTPS (PEM).")]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate (PEM).")]
GatewayConnection = Annotated[
    str | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help=f"Client properties of the gateway's own connection to a secured cluster. Also in ${CONNECTION_VARIABLE}.",
    ),
]
PassThrough = Annotated[
    str | None,
    typer.Option(
        "--pass-through",
        metavar="MECHANISM",
        help="HTTP callers act as themselves on the cluster: names and passwords by PLAIN, SCRAM-SHA-256 or "
        "SCRAM-SHA-512, bearer tokens by OAUTHBEARER.",
    ),
]
AccessFile = Annotated[
    str | None,
    typer.Option(
        "--access-file",
        metavar="FILE",
        help="Roles, masked fields, permissions on subjects, client certificates and OpenID Connect (TOML).",
    ),
]
AllowedOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-origin",
        metavar="ORIGIN",
        help="Origin of a proxy in front, e.g. https://console.example.com; the first is the public one. Repeatable.",
    ),
]
TrustedProxies = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="ADDRESS",
        help="Address of a proxy whose headers X-Forwarded-For and X-Forwarded-Proto are trusted. Repeatable.",
    ),
]
FurtherClusters = Annotated[
    list[str] | None,
    typer.Option("--cluster", metavar="NAME=HOST:PORT,…", help="A further cluster of the console. Repeatable."),
]
ClusterConfigs = Annotated[
    list[str] | None,
    typer.Option("--cluster-config", metavar="NAME=FILE", help="Client properties of a further cluster. Repeatable."),
]
ClusterAccess = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-access",
        metavar="NAME=FILE",
        help="Roles, masked fields and permissions on subjects of a further cluster (TOML); without it, those of "
        "--access-file. Repeatable.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster-name", metavar="NAME", help="Name of the first cluster, if there are several. [default: main]"
    ),
]
TlsClientCa = Annotated[
    str | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="CA certificates for HTTPS clients (PEM). With it, clients are requested to send a certificate.",
    ),
]

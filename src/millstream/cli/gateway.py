"""`millstream gateway`: HTTP in front of a cluster, in a process of its own; for now the schema registry.

Promises: one line on stdout, `ready http=HOST:PORT`, when requests are answered.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    ClientSettings,
    Timeout,
    assignments,
)
from millstream.cli.terminal import CommandFailedError

if TYPE_CHECKING:
    from millstream.gateway.credentials import Credentials
    from millstream.gateway.server import Gateway, GatewayOptions

DEFAULT_HTTP = "127.0.0.1:8081"
AUTH_VARIABLE = "MILLSTREAM_HTTP_AUTH"


def gateway(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Port 0 picks a free port.")] = DEFAULT_HTTP,
    auth_file: Annotated[
        str | None,
        typer.Option(
            "--auth-file",
            metavar="FILE",
            help=f"Who may ask: lines 'basic NAME:PASSWORD' or 'bearer TOKEN'; ${AUTH_VARIABLE} may hold them instead.",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everybody in, also when bound to an address others can reach.")
    ] = False,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")] = None,
    schemas_topic: Annotated[
        str, typer.Option("--schemas-topic", metavar="TOPIC", help="Where schemas are kept.")
    ] = "_schemas",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
) -> None:
    """Serve the schema registry over HTTP; SIGTERM or Ctrl-C stops it.

    Prints one line, 'ready http=HOST:PORT'. Any number of gateways may serve the same cluster.

    \b
    Examples:
      millstream gateway
      millstream gateway -b broker1:9092 --http 0.0.0.0:8081 --auth-file people.txt
    """
    host, port = address(http)
    if (tls_cert is None) != (tls_key is None):
        raise CommandFailedError("--tls-cert and --tls-key go together: give both", exit_codes.USAGE)
    try:
        from millstream.gateway.server import Gateway, GatewayOptions
    except ImportError as error:
        raise CommandFailedError(
            f"the gateway needs more packages ({error.name}): pip install 'millstream[gateway]'"
        ) from error
    from millstream.cli.serve import exit_with_parent, log_to_stderr
    from millstream.gateway.listening import GatewayError
    from millstream.registry.errors import RegistryError

    if exit_with_stdin:
        exit_with_parent()
    log_to_stderr()
    options = GatewayOptions(
        bootstrap,
        host,
        port,
        assignments(settings, "-X"),
        _credentials(auth_file),
        insecure,
        tls_cert,
        tls_key,
        schemas_topic,
        timeout,
    )
    try:
        Gateway(options).serve(lambda ready: _announce(ready, options))
    except GatewayError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error
    except RegistryError as error:
        raise CommandFailedError(error.message) from error


def address(text: str) -> tuple[str, int]:
    """`HOST:PORT`; a lone port means loopback, an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = "", text
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandFailedError(f"--http {text}: write HOST:PORT, such as {DEFAULT_HTTP}", exit_codes.USAGE)
    return host.strip("[]") or "127.0.0.1", int(port)


def _credentials(auth_file: str | None) -> "Credentials":
    import os

    from millstream.gateway.credentials import Credentials, CredentialsError, read_credentials

    text, where = os.environ.get(AUTH_VARIABLE), f"${AUTH_VARIABLE}"
    if auth_file is not None:
        where = auth_file
        with open(auth_file, encoding="utf-8") as file:
            text = file.read()
    if text is None:
        return Credentials()
    try:
        return read_credentials(text)
    except CredentialsError as error:
        raise CommandFailedError(f"{where}: {error}", exit_codes.USAGE) from error


def _announce(gateway: "Gateway", options: "GatewayOptions") -> None:
    import sys

    print(f"ready http={gateway.address}", flush=True)
    if sys.stderr.isatty():
        print(
            f"\nThe schema registry of {options.bootstrap} answers at {gateway.url}. Try, in another terminal:\n"
            f"  curl {gateway.url}/subjects\n"
            f"  millstream schema list --registry {gateway.url}\n"
            "Ctrl-C stops it.",
            file=sys.stderr,
            flush=True,
        )

"""`millstream gateway`: HTTP in front of a cluster, in a process of its own.

Promises: one line on stdout, `ready http=HOST:PORT`, when requests are answered.
"""

import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.gateway_process import (
    DEFAULT_HTTP,
    HOW_TO_INSTALL,
    LIMITS_VARIABLE,
    named_credentials,
    named_limits,
)
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    AuthFile,
    Bootstrap,
    ClientSettings,
    Http,
    Insecure,
    Timeout,
    TlsCert,
    TlsKey,
    assignments,
)
from millstream.cli.terminal import CommandFailedError
from millstream.gateway.http.configuration import GatewayError, parse_address

if TYPE_CHECKING:
    from millstream.gateway.server import Gateway, GatewayOptions

_log = logging.getLogger("millstream.gateway")
_NICENESS = 5
"""Of a gateway beside a broker: when both want the processor, the broker has it."""


def gateway(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Http = None,
    auth_file: AuthFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    schemas_topic: Annotated[
        str, typer.Option("--schemas-topic", metavar="TOPIC", help="Where schemas are kept.")
    ] = "_schemas",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help=f"How much to take on, e.g. --limit max_streams=5000; or in ${LIMITS_VARIABLE}. Repeatable.",
        ),
    ] = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    settings: ClientSettings = None,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Serve console, REST and schema registry of a cluster over HTTP; SIGTERM or Ctrl-C stops it.

    `millstream serve` and `millstream cluster start` run one of their own.
    Prints one line, 'ready http=HOST:PORT'. Any number of gateways may serve
    the same cluster, also one of Apache Kafka; it need not be up yet.

    \b
    Examples:
      millstream gateway
      millstream gateway -b broker1:9092 --http 0.0.0.0:8081 --auth-file people.txt
    """
    try:
        host, port = parse_address(http or DEFAULT_HTTP)
        credentials = named_credentials(auth_file)
        limits = named_limits(limit or ())
    except GatewayError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error
    try:
        from millstream.gateway.server import Gateway, GatewayOptions
    except ImportError as error:
        raise CommandFailedError(f"the gateway needs more packages ({error.name}): {HOW_TO_INSTALL}") from error
    from millstream.cli.serve import exit_with_parent, log_to_stderr
    from millstream.registry.errors import RegistryError

    listener = None
    if supervised is not None:
        listener = socket.socket(fileno=supervised)
        os.nice(_NICENESS)
    if exit_with_stdin or supervised is not None:
        exit_with_parent()
    log_to_stderr()
    options = GatewayOptions(
        bootstrap,
        host,
        port,
        assignments(settings, "-X"),
        credentials,
        insecure,
        tls_cert,
        tls_key,
        schemas_topic,
        timeout,
        listener,
        limits,
    )
    try:
        Gateway(options).serve(lambda ready: _announce(ready, options))
    except GatewayError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error
    except RegistryError as error:
        raise CommandFailedError(error.message) from error


def _announce(gateway: "Gateway", options: "GatewayOptions") -> None:
    if options.listener is not None:  # whoever opened it has told of it
        _log.info("gateway_ready address=%s bootstrap=%s", gateway.address, options.bootstrap)
        return
    print(f"ready http={gateway.address}", flush=True)
    if sys.stderr.isatty():
        print(
            f"\nOpen {gateway.url}/console for the console of {options.bootstrap}. Try, in another terminal:\n"
            f"  curl {gateway.url}/topics\n"
            f"  millstream schema list --registry {gateway.url}\n"
            "Ctrl-C stops it.",
            file=sys.stderr,
            flush=True,
        )

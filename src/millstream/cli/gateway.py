"""`millstream gateway`: serves console, REST and schema registry of a cluster over HTTP.

Prints one line on stdout, `ready http=HOST:PORT`, when it accepts requests.
"""

import contextlib
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.command_config import file_of_command
from millstream.cli.gateway_process import (
    DEFAULT_HTTP,
    FIRST_CLUSTER,
    HOW_TO_INSTALL,
    LIMITS_VARIABLE,
    check_command_config,
    named_clusters,
    named_credentials,
    named_limits,
    named_rules,
)
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    AccessFile,
    AllowedOrigins,
    AuthFile,
    Bootstrap,
    ClientSettings,
    ClusterAccess,
    ClusterConfigs,
    ClusterName,
    FurtherClusters,
    Http,
    Insecure,
    PassThrough,
    Timeout,
    TlsCert,
    TlsClientCa,
    TlsKey,
    TrustedProxies,
    connection_settings,
)
from millstream.cli.terminal import CommandFailedError
from millstream.gateway.http.configuration import GatewayError, check_mechanism, parse_address, parse_origin

if TYPE_CHECKING:
    from millstream.gateway.server import Gateway, GatewayOptions

_log = logging.getLogger("millstream.gateway")
_NICENESS = 5
"""The gateway beside a broker has a lower priority than the broker."""


def gateway(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Http = None,
    auth_file: AuthFile = None,
    insecure: Insecure = False,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    schemas_topic: Annotated[
        str, typer.Option("--schemas-topic", metavar="TOPIC", help="Topic of the schema registry.")
    ] = "_schemas",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help=f"Limit, e.g. --limit max_streams=5000. Also in ${LIMITS_VARIABLE}. Repeatable.",
        ),
    ] = None,
    pass_through: PassThrough = None,
    access_file: AccessFile = None,
    allowed_origin: AllowedOrigins = None,
    trusted_proxy: TrustedProxies = None,
    tls_client_ca: TlsClientCa = None,
    cluster: FurtherClusters = None,
    cluster_config: ClusterConfigs = None,
    cluster_access: ClusterAccess = None,
    cluster_name: ClusterName = None,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
    exit_with_stdin: Annotated[bool, typer.Option("--exit-with-stdin", hidden=True)] = False,
    supervised: Annotated[int | None, typer.Option("--supervised", hidden=True)] = None,
) -> None:
    """Serve console, REST and schema registry of a cluster over HTTP. SIGTERM or Ctrl-C stops it.

    `millstream serve` and `millstream cluster start` start a gateway themselves.
    Prints one line, 'ready http=HOST:PORT'. A cluster, also one of Apache Kafka,
    can have several gateways. It need not run yet.

    \b
    Examples:
      millstream gateway
      millstream gateway -b broker1:9092 --http 0.0.0.0:8081 --auth-file people.txt
      millstream gateway --cluster east=east1:9092 --cluster-config east=east.properties
    """
    first_name = cluster_name or FIRST_CLUSTER
    try:
        host, port = parse_address(http or DEFAULT_HTTP)
        credentials = named_credentials(auth_file)
        limits = named_limits(limit or ())
        rules = named_rules(access_file)
        check_mechanism(pass_through)
        origins = tuple(parse_origin(text) for text in allowed_origin or ())
        check_command_config(file_of_command())
        connection = connection_settings(settings)
        clusters = named_clusters(first_name, cluster or (), cluster_config or (), cluster_access or ())
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
        with contextlib.suppress(PermissionError):  # a service may be forbidden to change it
            os.nice(_NICENESS)
    if exit_with_stdin or supervised is not None:
        exit_with_parent()
    log_to_stderr()
    options = GatewayOptions(
        bootstrap,
        host,
        port,
        connection,
        credentials,
        insecure,
        tls_cert,
        tls_key,
        schemas_topic,
        timeout,
        listener,
        limits,
        pass_through,
        rules,
        origins,
        tuple(trusted_proxy or ()),
        tls_client_ca,
        first_name,
        clusters,
    )
    try:
        Gateway(options).serve(lambda ready: _announce(ready, options))
    except GatewayError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error
    except RegistryError as error:
        raise CommandFailedError(error.message) from error


def _announce(gateway: "Gateway", options: "GatewayOptions") -> None:
    if options.listener is not None:  # the parent process has printed the address
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

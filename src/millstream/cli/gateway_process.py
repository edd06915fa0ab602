"""Runs the gateway as a child process beside a broker or a local cluster.

The listening socket is opened here, before the process starts. So errors are reported at once, and connections that
arrive while the gateway starts or restarts wait instead of being refused. Imports none of the gateway's packages.
"""

import errno
import logging
import os
import re
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from millstream.access.rules_file import AccessFileError, AccessRules, parse_rules
from millstream.common.lazy_dataclass import dataclass
from millstream.common.secret_references import SecretError, resolve_all
from millstream.gateway.http.configuration import (
    ClusterOptions,
    Credentials,
    CredentialsError,
    GatewayError,
    Limits,
    address_of,
    check_certificate,
    check_client_ca,
    check_exposure,
    check_mechanism,
    check_modes,
    listen,
    parse_address,
    parse_origin,
    read_credentials,
    read_limits,
    read_secret_file,
)
from millstream.node.runtime.supervised_process import SupervisedProcess

_log = logging.getLogger("millstream.http")
DEFAULT_HTTP = "127.0.0.1:8081"
"""The usual address of a schema registry."""
FIRST_CLUSTER = "main"
"""The name of the first cluster in a console with several, unless another is given."""
AUTH_VARIABLE = "MILLSTREAM_HTTP_AUTH"
LIMITS_VARIABLE = "MILLSTREAM_HTTP_LIMITS"
CONNECTION_VARIABLE = "MILLSTREAM_COMMAND_CONFIG"
HOW_TO_INSTALL = "pip install 'millstream[gateway]'"
_PACKAGES = (
    "confluent_kafka",
    "starlette",
    "uvicorn",
    "fastavro",
    "jsonschema",
    "grpc_tools",
    "pyarrow",
    "numpy",
    "orjson",
    "msgspec",
    "nicegui",
    "httpx",
    "cel",
)
"""The packages of the extra `gateway`, by the names of their modules."""
_BIND_TIMEOUT_SECONDS = 2.0
"""The gateway of a broker that was just killed may still have the port."""
_STOP_TIMEOUT_SECONDS = 2.0


@dataclass(slots=True)
class HttpOptions:
    """The options for HTTP of the command line."""

    address: str | None = None
    off: bool = False
    auth_file: str | None = None
    insecure: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    command_config: str | None = None
    """Client properties of the gateway's own connection to the cluster."""
    pass_through: str | None = None
    access_file: str | None = None
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    tls_client_ca: str | None = None
    clusters: tuple[str, ...] = ()
    """Further clusters of the console, as NAME=HOST:PORT."""
    cluster_configs: tuple[str, ...] = ()
    cluster_access: tuple[str, ...] = ()
    cluster_name: str | None = None

    @property
    def connection_file(self) -> str | None:
        return self.command_config or os.environ.get(CONNECTION_VARIABLE) or None

    def words(self) -> list[str]:
        """The options of `millstream gateway` that say the same, except for the address."""
        valued = (
            ("--auth-file", self.auth_file),
            ("--tls-cert", self.tls_cert),
            ("--tls-key", self.tls_key),
            ("--command-config", self.connection_file),
            ("--pass-through", self.pass_through),
            ("--access-file", self.access_file),
            *(("--allowed-origin", origin) for origin in self.allowed_origins),
            *(("--trusted-proxy", proxy) for proxy in self.trusted_proxies),
            ("--tls-client-ca", self.tls_client_ca),
            *(("--cluster", each) for each in self.clusters),
            *(("--cluster-config", each) for each in self.cluster_configs),
            *(("--cluster-access", each) for each in self.cluster_access),
            ("--cluster-name", self.cluster_name),
        )
        words = [word for name, value in valued if value is not None for word in (name, value)]
        return [*words, "--insecure"] if self.insecure else words


class GatewayProcess:
    def __init__(self, listener: socket.socket, options: HttpOptions, cluster_listener: int = 0) -> None:
        """`cluster_listener`: the place of the listener of the cluster that the gateway connects to."""
        self.cluster_listener = cluster_listener
        self._listener = listener
        self._options = options
        self._process: SupervisedProcess | None = None
        self.address = address_of(listener)

    @property
    def url(self) -> str:
        """The URL to open on this machine."""
        host, _, port = self.address.rpartition(":")
        host = {"0.0.0.0": "localhost", "[::]": "localhost"}.get(host, host)  # nosec B104: compared, not bound
        return f"{'https' if self._options.tls_cert else 'http'}://{host}:{port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, bootstrap: str, log_file: Path | None = None) -> None:
        """Starts the process, without waiting until it is ready."""
        descriptor = self._listener.fileno()
        arguments = ["gateway", "--bootstrap", bootstrap, "--http", self.address, "--supervised", str(descriptor)]
        arguments += self._options.words()
        self._process = SupervisedProcess("gateway", arguments, descriptors=(descriptor,), log_file=log_file)
        self._process.start()
        _log.info("http_served console=%s/console registry=%s", self.url, self.url)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(_STOP_TIMEOUT_SECONDS)
        self._listener.close()


def open_gateway_process(
    options: HttpOptions, *, by_default: bool, protocols: Sequence[str] = ("PLAINTEXT",)
) -> GatewayProcess | None:
    """Opens the socket. `protocols` are the security protocols of the cluster's listeners for clients, in their order.

    None if HTTP is off; and if HTTP was not requested, and packages or the connection to a secured cluster are missing.
    GatewayError if HTTP was requested and is not possible.
    """
    if options.off:
        _check_unused_options(options)
        return None
    requested = options.address is not None
    if not requested and not by_default:
        _check_unused_options(options)
        return None
    if not (requested or _without_address(options)):
        requested = True  # credentials or a certificate were given, so they must be used
    missing = missing_package()
    if missing is not None:
        if requested:
            raise GatewayError(f"HTTP needs more packages ({missing}): {HOW_TO_INSTALL}, or add --no-http")
        _log.info("http_left_out missing=%s hint=%s", missing, HOW_TO_INSTALL)
        return None
    try:
        place = listener_to_use(options, protocols)
    except GatewayError as error:
        if requested:
            raise
        _log.warning("http_left_out reason=%s", error)
        return None
    host, port = parse_address(options.address or DEFAULT_HTTP)
    check_exposure(host, demands_credentials=_check_options(options), insecure=options.insecure)
    if options.address is not None:
        return GatewayProcess(_listen_with_retries(host, port), options, place)
    try:
        return GatewayProcess(listen(host, port), options, place)
    except GatewayError as error:
        listener = listen(host, 0)
        _log.warning("http_elsewhere address=%s reason=%s", address_of(listener), error)
        return GatewayProcess(listener, options, place)


def listener_to_use(options: HttpOptions, protocols: Sequence[str]) -> int:
    """The place of the listener to connect to: the first one with the protocol of the connection file.

    Never falls back to a listener without authentication: callers would get rights that were not given to the gateway.
    """
    file, wanted = options.connection_file, "PLAINTEXT"
    where = f"--command-config {file}" if options.command_config else f"${CONNECTION_VARIABLE} {file}"
    if file is not None:
        from millstream.raw_client import SetupError
        from millstream.raw_client.client_properties import read_client_properties

        check_command_config(file)
        try:
            wanted = read_client_properties(file).get("security.protocol", wanted).upper()
        except SetupError as error:
            raise GatewayError(f"{where.split()[0]} {error}") from error
    elif protocols[0] != wanted:
        raise GatewayError(
            f"clients of this cluster connect by {protocols[0]}, and the gateway has no connection settings: give "
            "--command-config FILE with its client properties, or --no-http"
        )
    if wanted not in protocols:
        raise GatewayError(
            f"{where}: security.protocol is {wanted}, but clients of this cluster connect by "
            f"{' or '.join(dict.fromkeys(protocols))}: change it, or give --no-http"
        )
    return list(protocols).index(wanted)


def _check_options(options: HttpOptions) -> bool:
    """Whether callers need credentials. The gateway reads the files itself; errors are reported here at once."""
    check_certificate(options.tls_cert, options.tls_key)
    check_client_ca(options.tls_client_ca, options.tls_cert)
    check_mechanism(options.pass_through)
    for origin in options.allowed_origins:
        parse_origin(origin)
    credentials = named_credentials(options.auth_file)
    rules = named_rules(options.access_file)
    named_limits()
    named_clusters(
        options.cluster_name or FIRST_CLUSTER, options.clusters, options.cluster_configs, options.cluster_access
    )
    check_modes(options.pass_through, options.tls_client_ca, credentials, rules)
    return bool(credentials or options.pass_through or rules.oidc)


def named_credentials(auth_file: str | None) -> Credentials:
    """The credentials of the file, or of the environment variable, or none."""
    text, where = os.environ.get(AUTH_VARIABLE), f"${AUTH_VARIABLE}"
    if auth_file is not None:
        where = f"--auth-file {auth_file}"
        text = read_secret_file(auth_file, "--auth-file")
    if text is None:
        return Credentials()
    try:
        return read_credentials(text)
    except CredentialsError as error:
        raise GatewayError(f"{where}: {error}") from error


def named_rules(access_file: str | None, option: str = "--access-file") -> AccessRules:
    """The rules of the access file; without one, every authenticated caller may do everything."""
    if access_file is None:
        return AccessRules()
    try:
        return _with_secrets(parse_rules(read_secret_file(access_file, option)))
    except (AccessFileError, SecretError) as error:
        raise GatewayError(f"{option} {access_file}: {error}") from error


def _with_secrets(rules: AccessRules) -> AccessRules:
    """The rules with the secrets that they refer to (`${file:…}`, `${env:…}`)."""

    def resolved(name: str, value: str) -> str:
        return resolve_all({name: value})[name]

    oidc = rules.oidc
    if oidc is not None:
        oidc = replace(oidc, client_secret=resolved("oidc.client_secret", oidc.client_secret))
    certificates = tuple(
        replace(each, password=resolved("certificates.password", each.password)) for each in rules.certificates
    )
    return replace(rules, oidc=oidc, certificates=certificates)


_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OF_FIRST = ("oidc", "certificates", "tokens")


def named_clusters(
    first: str, clusters: Sequence[str], configs: Sequence[str], access_files: Sequence[str]
) -> tuple[ClusterOptions, ...]:
    """The further clusters of the console. `first`: the name of the first one."""
    from millstream.raw_client import SetupError
    from millstream.raw_client.client_properties import read_client_properties

    _check_cluster_name("--cluster-name", first)
    addresses = _by_name("--cluster", clusters, "HOST:PORT")
    if first in addresses:
        raise GatewayError(f"--cluster {first}: the first cluster has this name: give another, or --cluster-name")
    files = _by_name("--cluster-config", configs, "FILE")
    rules = _by_name("--cluster-access", access_files, "FILE")
    for option, given in (("--cluster-config", files), ("--cluster-access", rules)):
        if unknown := next((name for name in given if name not in addresses), None):
            raise GatewayError(f"{option} {unknown}=…: there is no --cluster {unknown}=HOST:PORT")
    found = []
    for name, bootstrap in addresses.items():
        settings: dict[str, str] = {}
        if name in files:
            read_secret_file(files[name], "--cluster-config")
            try:
                settings = read_client_properties(files[name])
            except SetupError as error:
                raise GatewayError(f"--cluster-config {error}") from error
        own = _rules_of_cluster(rules[name]) if name in rules else None
        found.append(ClusterOptions(name, bootstrap, settings, own))
    return tuple(found)


def _rules_of_cluster(path: str) -> AccessRules:
    rules = named_rules(path, "--cluster-access")
    if rules.oidc is not None or rules.certificates or rules.tokens != AccessRules().tokens:
        raise GatewayError(
            f"--cluster-access {path}: {', '.join(_OF_FIRST)} are for all clusters: write them into --access-file"
        )
    return rules


def _by_name(option: str, words: Sequence[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise GatewayError(f"{option} {word}: write NAME={what}")
        _check_cluster_name(option, name)
        if name in found:
            raise GatewayError(f"{option} {name}=… is given twice")
        found[name] = value
    return found


def _check_cluster_name(option: str, name: str) -> None:
    if not _CLUSTER_NAME.fullmatch(name):
        raise GatewayError(f"{option} {name}: a name has up to 64 letters, digits, '.', '_' and '-'")


def check_command_config(path: str | None) -> None:
    """Refuses a file of client properties that other users can read: the gateway runs for long, with its secrets."""
    if path is not None:
        read_secret_file(path, "--command-config")


def named_limits(words: Sequence[str] = ()) -> Limits:
    """The limits of the environment variable, overridden by `words` of the command line."""
    usual = os.environ.get(LIMITS_VARIABLE, "").split()
    read_limits(usual, f"${LIMITS_VARIABLE}")
    return read_limits((*usual, *words))


def _without_address(options: HttpOptions) -> bool:
    return options == HttpOptions(off=options.off)


def _check_unused_options(options: HttpOptions) -> None:
    if not _without_address(options):
        wanted = "remove --no-http" if options.off else "add --http HOST:PORT"
        raise GatewayError(f"options for HTTP are given, but HTTP is off: {wanted}, or remove them")


def missing_package() -> str | None:
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


def _listen_with_retries(host: str, port: int) -> socket.socket:
    give_up_at = time.monotonic() + (_BIND_TIMEOUT_SECONDS if port else 0.0)
    while True:
        try:
            return listen(host, port)
        except GatewayError as error:
            taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
            if not taken or time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)

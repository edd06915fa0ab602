"""The gateway beside a broker or a local cluster: a process of its own, on a socket that is open from the beginning.

The socket is opened here, before anything is started: what is wrong with it is told at once, and whoever connects while
the gateway still loads, or starts anew, waits instead of being refused. Imports none of the gateway's packages.
"""

import errno
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from millstream.gateway.http.configuration import (
    Credentials,
    CredentialsError,
    GatewayError,
    Limits,
    address_of,
    check_certificate,
    check_exposure,
    listen,
    parse_address,
    read_credentials,
    read_limits,
)
from millstream.node.runtime.supervised_process import SupervisedProcess

_log = logging.getLogger("millstream.http")
DEFAULT_HTTP = "127.0.0.1:8081"
"""Where clients look for a schema registry."""
AUTH_VARIABLE = "MILLSTREAM_HTTP_AUTH"
LIMITS_VARIABLE = "MILLSTREAM_HTTP_LIMITS"
HOW_TO_INSTALL = "pip install 'millstream[gateway]'"
_PACKAGES = (
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
)
"""What the extra brings, by the names of its modules."""
_TAKEN_FOR_S = 2.0
"""The gateway of a broker that was killed a moment ago may still be on its way out."""
_GRACE_S = 2.0


@dataclass(slots=True)
class HttpOptions:
    """What was said on the command line."""

    address: str | None = None
    off: bool = False
    auth_file: str | None = None
    insecure: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None


class GatewayProcess:
    def __init__(self, listener: socket.socket, options: HttpOptions) -> None:
        self._listener = listener
        self._options = options
        self._process: SupervisedProcess | None = None
        self.address = address_of(listener)

    @property
    def url(self) -> str:
        """To open on this machine."""
        host, _, port = self.address.rpartition(":")
        host = {"0.0.0.0": "localhost", "[::]": "localhost"}.get(host, host)
        return f"{'https' if self._options.tls_cert else 'http'}://{host}:{port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, bootstrap: str, log_file: Path | None = None) -> None:
        """Without waiting for it."""
        options, descriptor = self._options, self._listener.fileno()
        arguments = ["gateway", "--bootstrap", bootstrap, "--http", self.address, "--supervised", str(descriptor)]
        for name, value in (
            ("--auth-file", options.auth_file),
            ("--tls-cert", options.tls_cert),
            ("--tls-key", options.tls_key),
        ):
            if value is not None:
                arguments += [name, value]
        if options.insecure:
            arguments.append("--insecure")
        self._process = SupervisedProcess("gateway", arguments, descriptors=(descriptor,), log_file=log_file)
        self._process.start()
        _log.info("http_served console=%s/console registry=%s", self.url, self.url)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(_GRACE_S)
        self._listener.close()


def open_gateway_process(options: HttpOptions, *, by_default: bool) -> GatewayProcess | None:
    """None if there is to be none. GatewayError if it was asked for and cannot be; a log line if it was only usual."""
    if options.off:
        _refuse_what_has_no_use(options)
        return None
    asked_for = options.address is not None
    if not asked_for and not by_default:
        _refuse_what_has_no_use(options)
        return None
    if not (asked_for or _without_address(options)):
        asked_for = True  # who names credentials or a certificate wants them used
    missing = _missing_package()
    if missing is not None:
        if asked_for:
            raise GatewayError(f"HTTP needs more packages ({missing}): {HOW_TO_INSTALL}, or say --no-http")
        _log.info("http_left_out missing=%s hint=%s", missing, HOW_TO_INSTALL)
        return None
    host, port = parse_address(options.address or DEFAULT_HTTP)
    check_certificate(options.tls_cert, options.tls_key)
    credentials = named_credentials(options.auth_file)
    named_limits()  # the gateway reads them itself; what is wrong with them is told at once
    check_exposure(host, demands_credentials=bool(credentials), insecure=options.insecure)
    if options.address is not None:
        return GatewayProcess(_listen_soon(host, port), options)
    try:
        return GatewayProcess(listen(host, port), options)
    except GatewayError as error:
        listener = listen(host, 0)
        _log.warning("http_elsewhere address=%s reason=%s", address_of(listener), error)
        return GatewayProcess(listener, options)


def named_credentials(auth_file: str | None) -> Credentials:
    """Those of the file, or else of the environment; none if neither is there."""
    text, where = os.environ.get(AUTH_VARIABLE), f"${AUTH_VARIABLE}"
    if auth_file is not None:
        where = f"--auth-file {auth_file}"
        try:
            text = Path(auth_file).read_text(encoding="utf-8")
        except OSError as error:
            raise GatewayError(f"{where}: {error.strerror}: name a file with credentials") from error
        except UnicodeDecodeError:
            raise GatewayError(f"{where}: this is not text in UTF-8: name a file with credentials") from None
    if text is None:
        return Credentials()
    try:
        return read_credentials(text)
    except CredentialsError as error:
        raise GatewayError(f"{where}: {error}") from error


def named_limits(words: Sequence[str] = ()) -> Limits:
    """Those of the environment, and over them `words` of the command line."""
    usual = os.environ.get(LIMITS_VARIABLE, "").split()
    read_limits(usual, f"${LIMITS_VARIABLE}")
    return read_limits((*usual, *words))


def _without_address(options: HttpOptions) -> bool:
    return options == HttpOptions(off=options.off)


def _refuse_what_has_no_use(options: HttpOptions) -> None:
    if not _without_address(options):
        wanted = "leave --no-http out" if options.off else "say --http HOST:PORT as well"
        raise GatewayError(f"options for HTTP are given, and no HTTP is served: {wanted}, or leave them out")


def _missing_package() -> str | None:
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


def _listen_soon(host: str, port: int) -> socket.socket:
    give_up_at = time.monotonic() + (_TAKEN_FOR_S if port else 0.0)
    while True:
        try:
            return listen(host, port)
        except GatewayError as error:
            taken = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
            if not taken or time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)

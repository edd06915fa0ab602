"""Runs the gateway: connects to the cluster, reads the schemas, serves HTTP until it is told to stop."""

import contextlib
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import uvicorn
from starlette.types import ASGIApp

from millstream.gateway.access import Credentials
from millstream.gateway.app import make_app, registry_routes
from millstream.registry.log import TOPIC, SchemaLog
from millstream.registry.registry import Registry
from millstream.wire import Cluster

CLIENT_ID = "millstream-gateway"
_BACKLOG = 256
_GOODBYE_S = 5


class GatewayError(Exception):
    """The gateway cannot start as it is asked to; the text says what to do."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    bootstrap: str
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free one."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the client to the cluster, by the names of Kafka's or librdkafka's."""
    credentials: Credentials = field(default_factory=Credentials)
    insecure: bool = False
    """Serve everybody, wherever they are."""
    certificate: str | None = None
    key: str | None = None
    schemas_topic: str = TOPIC
    timeout_s: float = 30.0


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gateway:
    """A running gateway. `with Gateway(options) as gateway: gateway.url`"""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._close = contextlib.ExitStack()
        self.address = ""

    @property
    def url(self) -> str:
        return f"{'https' if self._options.certificate else 'http'}://{self.address}"

    def start(self) -> None:
        """Returns when requests are answered."""
        try:
            listener = self._open()
            self._thread = threading.Thread(target=self._run, args=(listener,), name="gateway", daemon=True)
            self._thread.start()
        except BaseException:
            self._close.close()
            raise

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._close.close()

    def __enter__(self) -> "Gateway":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve(self, ready: Callable[["Gateway"], None]) -> None:
        """In this thread, until SIGTERM or SIGINT."""
        with self._close:
            listener = self._open()
            server = self._server
            assert server is not None

            def leave(number: int, frame: object) -> None:
                server.force_exit, server.should_exit = server.should_exit, True  # the second time at once

            before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
            try:
                ready(self)
                server.run([listener])
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _open(self) -> socket.socket:
        """Everything but serving: the listener is open, so whoever connects from now on is answered."""
        options = self._options
        loopback = is_loopback(options.host)
        if not loopback and not options.credentials and not options.insecure:
            raise GatewayError(
                f"{options.host} can be reached from other machines: name who may ask with --auth-file FILE, "
                "or say --insecure to let everybody in"
            )
        listener = self._close.enter_context(_listen(options.host, options.port))
        cluster = self._close.enter_context(
            Cluster(options.bootstrap, options.settings, client_id=CLIENT_ID, timeout_s=options.timeout_s)
        )
        log = SchemaLog(cluster, options.schemas_topic)
        self._close.callback(log.close)
        log.start()
        registry = Registry(log)
        app = make_app(
            [registry_routes(registry)],
            trouble=lambda: registry.trouble,
            credentials=options.credentials,
            loopback=loopback and not options.insecure,
        )
        self._server = _server(app, options)
        host, port = listener.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return listener

    def _run(self, listener: socket.socket) -> None:
        assert self._server is not None
        self._server.run([listener])


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again at its end, before the rest is closed."""
        yield


def _server(app: ASGIApp, options: GatewayOptions) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_GOODBYE_S,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
    )


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    try:
        ((family, kind, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind)
    except OSError as error:
        raise GatewayError(f"{host}: {error.strerror}: name an address of this machine") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise GatewayError(
                f"cannot listen on {host}:{port}: {error.strerror}: choose another address with --http HOST:PORT"
            ) from error
        listener.listen(_BACKLOG)
        yield listener

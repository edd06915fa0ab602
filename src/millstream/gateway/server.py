"""Runs the gateway: connects to the cluster, reads the schemas, serves HTTP until it is stopped."""

import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from millstream.gateway.app import ROUTE_GROUPS, make_app
from millstream.gateway.context import GatewayContext, GatewayOptions
from millstream.gateway.http.audit import AuditTrail, report_to
from millstream.gateway.http.configuration import (
    ClusterOptions,
    GatewayError,
    address_of,
    check_certificate,
    check_client_ca,
    check_exposure,
    check_mechanism,
    check_modes,
    exposure_warnings,
    is_loopback,
    key_warnings,
    listen,
)
from millstream.gateway.http.protocol import BoundedHttpProtocol
from millstream.gateway.http.server_certificate import ServerCertificate
from millstream.gateway.identity.authentication import Authentication
from millstream.gateway.identity.caller import Connection
from millstream.gateway.identity.pool import CallerPool
from millstream.raw_client import Cluster, WireError
from millstream.registry.errors import RegistryError
from millstream.registry.log import SchemaLog
from millstream.registry.registry import Registry

__all__ = ["Gateway", "GatewayError", "GatewayOptions"]

_log = logging.getLogger("millstream.gateway")
CLIENT_ID = "millstream-gateway"
_SHUTDOWN_TIMEOUT_SECONDS = 5
_START_TIMEOUT_SECONDS = 10.0
"""How long the start waits for the cluster. Then the gateway serves, and is not ready until it can connect."""


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
        """Returns when requests are served."""
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
                server.force_exit, server.should_exit = server.should_exit, True  # a second signal ends it at once

            before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
            _collect_rarely()
            try:
                ready(self)
                server.run([listener])
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _open(self) -> socket.socket:
        """Prepares everything but serving. The listener is open: connections from now on are queued."""
        options = self._options
        check_certificate(options.certificate, options.key)
        check_mechanism(options.pass_through)
        check_client_ca(options.client_ca, options.certificate)
        check_exposure(options.host, demands_credentials=options.demands_credentials, insecure=options.insecure)
        for rules in (options.rules, *(other.rules for other in options.clusters if other.rules is not None)):
            check_modes(options.pass_through, options.client_ca, options.credentials, rules)
        _warn(options)
        listener = self._close.enter_context(options.listener or listen(options.host, options.port))
        cluster = Cluster(options.bootstrap, options.settings, client_id=CLIENT_ID, timeout_s=options.timeout_s)
        own = Connection(cluster)
        self._close.callback(own.close)
        log = SchemaLog(cluster, options.schemas_topic)
        self._close.callback(log.close)
        # A parent process would start the gateway again and again: instead it serves, and /readyz has the reason.
        log.start(_START_TIMEOUT_SECONDS, may_be_refused=options.listener is not None)
        registry = Registry(log)
        pool = CallerPool(
            options.bootstrap, options.settings, options.limits, client_id=CLIENT_ID, timeout_s=options.timeout_s
        )
        trail = AuditTrail(report_to(cluster))
        trail.start()
        self._close.callback(trail.close)
        authentication = Authentication(
            own,
            options.credentials,
            options.pass_through,
            options.rules,
            pool,
            schemas_topic=options.schemas_topic,
            trail=trail,
        )
        certificate = None
        if options.certificate is not None and options.key is not None:
            certificate = ServerCertificate(options.certificate, options.key, options.client_ca)
        parts = GatewayContext(
            options,
            cluster,
            registry,
            authentication,
            certificate_ends_at=lambda: None if certificate is None else certificate.ends_at,
        )
        parts.lifespans.append(pool.lifespan)
        if certificate is not None:
            parts.lifespans.append(certificate.lifespan)
        self._close.enter_context(parts.closing)
        add_clusters(parts, CLIENT_ID)
        families = [family(parts) for family in ROUTE_GROUPS]
        app = make_app(
            families,
            not_ready_reason=lambda: registry.not_ready_reason,
            authentication=authentication,
            loopback=is_loopback(options.host) and not options.insecure,
            origins=options.origins,
            strict_transport=options.certificate is not None and not is_loopback(options.host),
            mounts=parts.mounts,
            lifespans=parts.lifespans,
            certificate_ends_at=parts.certificate_ends_at,
        )
        self._server = _server(app, options, parts.on_stop, certificate)
        self.address = address_of(listener)
        return listener

    def _run(self, listener: socket.socket) -> None:
        assert self._server is not None
        self._server.run([listener])


def _warn(options: GatewayOptions) -> None:
    """Loud: these lines stand out in any log."""
    warnings = exposure_warnings(
        options.host,
        demands_credentials=options.demands_credentials,
        has_tls=options.certificate is not None,
        is_secured=any(map(_has_login, (options.settings, *(other.settings for other in options.clusters)))),
    )
    warnings += key_warnings(options.key)
    if warnings:
        for line in ("*" * 80, *(f"WARNING: {text}" for text in warnings), "*" * 80):
            _log.warning("%s", line)


def _has_login(settings: Mapping[str, str]) -> bool:
    return settings.get("security.protocol", "").upper().startswith("SASL") or any(
        name.startswith("ssl.keystore") or name == "ssl.certificate.location" for name in settings
    )


def _collect_rarely() -> None:
    """Makes garbage collection rare. A request with hundreds of records makes thousands of objects without cycles, and
    each collection would scan all modules of the console: a fifth of the time of a batch."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Sequence[Callable[[], None]]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn waits for active requests, so polls and streams are ended first."""
        for callback in self._on_stop:
            callback()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: uvicorn would raise signals again at its end, before the rest is closed."""
        yield


def _server(
    app: ASGIApp,
    options: GatewayOptions,
    on_stop: Sequence[Callable[[], None]],
    certificate: "ServerCertificate | None",
) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            log_config=None,
            log_level="warning",  # at "info" each websocket of the console is logged
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="websockets-sansio",
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_SECONDS,
            # Without a trusted proxy, X-Forwarded-For would let callers choose the address in the log of sign-ins.
            proxy_headers=bool(options.trusted_proxies),
            forwarded_allow_ips=list(options.trusted_proxies) or None,
            ssl_context_factory=None if certificate is None else lambda config, default: certificate.context,
        ),
        on_stop,
    )


# Clusters of the console beside the first one
#
# Each has a connection, a registry, rules and an audit trail of its own. Its pages are below /console/clusters/NAME.
# The HTTP API, the schema registry for programs and `/readyz` belong to the first cluster alone. A cluster that is down
# delays and disturbs no other: nothing here waits for it.


_REGISTRY_TIMEOUT_SECONDS = 30.0


def add_clusters(parts: GatewayContext, client_id: str) -> None:
    """Adds the further clusters of the options to the console."""
    options, first = parts.options, parts.authentication
    if not options.clusters:
        return
    first.cluster_name = options.cluster_name
    first.by_cluster[options.cluster_name] = first
    parts.registries[options.cluster_name] = parts.registry
    for other in options.clusters:
        _add_cluster(other, parts, client_id)


def _add_cluster(other: ClusterOptions, parts: GatewayContext, client_id: str) -> None:
    options, first, closing = parts.options, parts.authentication, parts.closing
    cluster = Cluster(other.bootstrap, other.settings, client_id=client_id, timeout_s=options.timeout_s)
    own = Connection(cluster)
    closing.callback(own.close)
    log = SchemaLog(cluster, options.schemas_topic)
    closing.callback(log.close)
    threading.Thread(target=_read_schemas, args=(other.name, log), name="schemas-start", daemon=True).start()
    pool = CallerPool(other.bootstrap, other.settings, options.limits, client_id=client_id, timeout_s=options.timeout_s)
    parts.lifespans.append(pool.lifespan)
    trail = AuditTrail(report_to(cluster))
    trail.start()
    closing.callback(trail.close)
    rules = first.rules
    if other.rules is not None:
        # How users sign in is the same for all clusters.
        rules = replace(other.rules, oidc=rules.oidc, tokens=rules.tokens, certificates=rules.certificates)
    first.by_cluster[other.name] = first.on_cluster(other.name, own, rules, pool, trail)
    parts.registries[other.name] = Registry(log)


def _read_schemas(name: str, log: SchemaLog) -> None:
    try:
        log.start(_REGISTRY_TIMEOUT_SECONDS, may_be_refused=True)
    except (RegistryError, WireError) as error:
        _log.warning("schemas_not_read cluster=%s reason=%s", name, error)

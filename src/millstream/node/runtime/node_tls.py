"""TLS of a node: the certificates of its listeners, its connections to other nodes, and new certificates.

Files are checked every few seconds in a thread. SIGHUP, and dynamic settings of this broker, are taken over at once.
"""

import asyncio
import datetime
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.broker_config import BrokerConfig, ListenerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import ssl as settings
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.environment import Environment
from millstream.node.server.handshakes import HandshakeLimits
from millstream.node.server.listener import ListenerTls
from millstream.node.server.network import Network
from millstream.node.server.tls import TlsNetwork, TlsRuntime

if TYPE_CHECKING:
    from millstream.node.security.certificates import Certificates

_CHECK_SECONDS = 3.0

_log = logging.getLogger("millstream.security")


class NodeTls:
    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        """Reads the certificates; ConfigError if they cannot be used."""
        self._config = config
        self._environment = environment
        self._runtime = TlsRuntime(environment.loop, environment.offload)
        served = [each.name for each in (*config.listeners, *config.controller_listeners)]
        reached = [config.inter_broker_listener, *([config.controller_listener] if config.controller_listener else [])]
        self.certificates: dict[str, Certificates] = {}
        """By the name of the listener: those of this node, and those of other nodes that it connects to."""
        for name in dict.fromkeys((*served, *reached)):
            if name in config.protocols and config.listener(name).uses_tls:
                self.certificates[name] = _certificates(
                    name, config.listener(name), is_server=name in served, tickets=environment.tls_tickets
                )
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._turn = asyncio.Lock()

    @property
    def is_used(self) -> bool:
        return bool(self.certificates)

    def secured(self) -> Environment:
        """The environment with the networks to brokers and controllers, encrypted where their listener is."""
        config, environment = self._config, self._environment
        return replace(
            environment,
            to_brokers=self._network(config.inter_broker_listener),
            to_controllers=self._network(config.controller_listener),
        )

    def _network(self, listener: str | None) -> Network:
        network = self._environment.network
        certificates = self.certificates.get(listener) if listener is not None else None
        if certificates is None:
            return network
        timeout_s = self._config[settings.HANDSHAKE_TIMEOUT_MS] / 1000
        return TlsNetwork(network, certificates.client, self._runtime, timeout_s=timeout_s)

    def of_listener(self, name: str) -> ListenerTls | None:
        """TLS of a listener of this node; None if it does not use TLS."""
        certificates = self.certificates.get(name)
        if certificates is None:
            return None
        config = self._config
        limits = HandshakeLimits(
            timeout_s=config[settings.HANDSHAKE_TIMEOUT_MS] / 1000,
            max_under_way=config[settings.MAX_HANDSHAKES],
            per_second=config[settings.HANDSHAKE_RATE],
            per_second_of_address=config[settings.HANDSHAKE_RATE_PER_IP],
        )
        return ListenerTls(certificates, self._runtime, limits)

    # New certificates

    def start(self) -> None:
        """Begins to check files and expiry."""
        if self.is_used:
            self._report_expiry()
            self._timer = self._environment.loop.call_later(_CHECK_SECONDS, self._look)

    def _look(self) -> None:
        self._tasks.start(self._check_files(), loop=self._environment.loop)
        self._timer = self._environment.loop.call_later(_CHECK_SECONDS, self._look)

    async def _check_files(self) -> None:
        self._report_expiry()
        for certificates in self.certificates.values():
            if await self._environment.offload(certificates.is_changed):
                await self._replace(certificates)

    def reload(self) -> None:
        """Reads all stores again, as SIGHUP requests."""
        _log.info("certificates_read_again listeners=%s", ",".join(self.certificates))
        self._tasks.start(self._reload(), loop=self._environment.loop)

    async def _reload(self) -> None:
        for certificates in self.certificates.values():
            await self._replace(certificates)

    def settings_changed(self, config: BrokerConfig) -> None:
        """Takes dynamic settings over. The controller's broker has checked them; a bad one is refused here too."""
        if self.is_used:
            self._tasks.start(self._take_settings(config), loop=self._environment.loop)

    async def check(self, config: BrokerConfig) -> None:
        """Checks the certificates of new settings. KafkaError says what is wrong."""
        for name, certificates in self.certificates.items():
            if _values(config, name) != _values_of(certificates):
                await self._check(certificates, config.listener(name))

    async def _check(self, certificates: "Certificates", config: ListenerConfig) -> None:
        try:
            await self._environment.offload(lambda: certificates.prepare(config))
        except ConfigError as error:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Listener {certificates.name}: {error.message}. The old certificate stays."
            ) from None

    async def _take_settings(self, config: BrokerConfig) -> None:
        self._config = config
        for name, certificates in self.certificates.items():
            if _values(config, name) != _values_of(certificates):
                await self._replace(certificates, config)

    async def _replace(self, certificates: "Certificates", config: BrokerConfig | None = None) -> None:
        async with self._turn:
            listener = config.listener(certificates.name) if config is not None else certificates.config
            fresh = await self._environment.offload(lambda: certificates.reload(listener))
            if fresh is None:
                return
            before = certificates.fingerprint
            certificates.take(listener, fresh)
            if certificates.fingerprint != before:
                _log.info(
                    "certificate_replaced listener=%s sha256=%s expires=%s",
                    certificates.name, certificates.fingerprint, certificates.expires_at,
                )  # fmt: skip
            self._report_expiry()

    def _report_expiry(self) -> None:
        now = datetime.datetime.fromtimestamp(self._environment.clock.now_ms() / 1000, datetime.UTC)
        for certificates in self.certificates.values():
            certificates.report_expiry(now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()


_REPLACEABLE = (
    settings.SSL_KEYSTORE_TYPE,
    settings.SSL_KEYSTORE_LOCATION,
    settings.SSL_KEYSTORE_PASSWORD,
    settings.SSL_KEY_PASSWORD,
    settings.SSL_KEYSTORE_KEY,
    settings.SSL_KEYSTORE_CERTIFICATE_CHAIN,
    settings.SSL_TRUSTSTORE_TYPE,
    settings.SSL_TRUSTSTORE_LOCATION,
    settings.SSL_TRUSTSTORE_PASSWORD,
    settings.SSL_TRUSTSTORE_CERTIFICATES,
)


def _values(config: BrokerConfig, name: str) -> Mapping[str, object]:
    listener = config.listener(name)
    return {setting.name: listener[setting] for setting in _REPLACEABLE}


def _certificates(name: str, config: ListenerConfig, *, is_server: bool, tickets: int) -> "Certificates":
    # `cryptography` takes a tenth of a start, and only TLS needs it.
    from millstream.node.security.certificates import Certificates

    return Certificates(name, config, is_server=is_server, tickets=tickets)


def _values_of(certificates: "Certificates") -> Mapping[str, object]:
    return {setting.name: certificates.config[setting] for setting in _REPLACEABLE}

"""The source of a link: connections to its brokers, its metadata, and everything that is read from it except records.

The connection is described by settings of the link, as Kafka's clients name them. References to secrets are resolved
and certificates are read in a thread, when the first connection is made. A failure is an OSError.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.common.secret_references import SecretError, resolve_all
from millstream.config.addresses import parse_bootstrap_servers
from millstream.config.broker_config import BrokerConfig, ConfigSource
from millstream.config.catalog import BROKER_SETTINGS, LISTENER_PREFIX
from millstream.config.jaas import parse_jaas
from millstream.config.setting import ConfigError
from millstream.config.table import mirror, sasl, ssl
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.replica_fetch import FIRST_CONSUMER_VERSION
from millstream.formats.protocol.schema import Message
from millstream.node.environment import Environment
from millstream.node.mirror.core.links import Link
from millstream.node.security.sasl_listeners import node_login
from millstream.node.server.channel import Channel, Login
from millstream.node.server.network import Network
from millstream.node.server.tls import TlsNetwork, TlsRuntime

TIMEOUT_SECONDS = 10.0
_LARGEST_SECRET_BYTES = 1 << 20
_LISTENER = "source"
_EARLIEST, _LATEST = -2, -1
_CONSUMER = -1


class SourceError(ConnectionError):
    """The source cannot be used: the message says what to change."""


def in_words(error: OSError, address: tuple[str, int]) -> OSError:
    """An error of the operating system in words: with the address, and "connection refused" for `[Errno 111]`."""
    if error.errno is None or error.filename is not None:
        return error
    reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno)
    what = (reason or type(error).__name__).lower()
    return SourceError(
        f"{address[0]}:{address[1]}: {what}; check that this broker of the source runs and can be reached from here"
    )


@dataclass(frozen=True, slots=True)
class SourcePartition:
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SourceTopic:
    name: str
    id: UUID
    partitions: tuple[SourcePartition, ...]

    @property
    def latest_epoch(self) -> int:
        return max((partition.leader_epoch for partition in self.partitions), default=-1)


@dataclass(frozen=True, slots=True)
class SourceMetadata:
    cluster_id: str
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, SourceTopic]


class SourceCluster:
    def __init__(self, link: Link, config: BrokerConfig, environment: Environment, client_id: str) -> None:
        self._link = link
        self._config = config
        self._environment = environment
        self._client_id = client_id
        self._channels: dict[tuple[str, int], Channel] = {}
        self._way: tuple[Network, Login | None] | None = None
        self._closed = False
        self.metadata: SourceMetadata | None = None

    def close(self) -> None:
        self._closed = True
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    # Metadata

    async def refresh(self) -> SourceMetadata:
        """Reads the metadata of all topics from the first broker that responds."""
        problem: OSError | None = None
        for address in self._addresses():
            try:
                response = await self._ask(address, "metadata", {"topics": None, "allow_auto_topic_creation": False})
                self.metadata = _metadata(response)
            except OSError as error:
                problem = error
                continue
            return self.metadata
        self._forget_connections()
        raise problem or SourceError("bootstrap.servers names no broker")

    def _forget_connections(self) -> None:
        """The next connections read secrets and certificates again: they may have been replaced."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
        self._way = None

    def _addresses(self) -> list[tuple[str, int]]:
        known = list(self.metadata.brokers.values()) if self.metadata is not None else []
        try:
            first = parse_bootstrap_servers(self._link.bootstrap_servers)
        except ConfigError:
            given = ",".join(self._link.bootstrap_servers)
            raise SourceError(f"bootstrap.servers={given} must be host:port, separated by commas") from None
        return list(dict.fromkeys((*known, *first)))

    # Requests

    async def request(self, broker_id: int, api: str, fields: Mapping[str, Any]) -> Message:
        """The response of one broker."""
        return await self._ask(self._address(broker_id), api, fields)

    async def request_as_of(self, broker_id: int, api: str, fields: Mapping[str, Any], version: int) -> Message:
        """The same in a given version: later ones have other fields. SourceError if the source does not support it."""
        channel = await self._channel(self._address(broker_id))
        if await channel.best_version(api, timeout_s=TIMEOUT_SECONDS) < version:
            raise SourceError(f"the source does not support version {version} of {api}")
        return await channel.request(api, fields, timeout_s=TIMEOUT_SECONDS, version=version)

    async def any_request(self, api: str, fields: Mapping[str, Any]) -> Message:
        """The response of some broker: the first that responds."""
        problem: OSError | None = None
        for address in self._addresses():
            try:
                return await self._ask(address, api, fields)
            except OSError as error:
                problem = error
        raise problem or SourceError("no broker of the source is known")

    async def _ask(self, address: tuple[str, int], api: str, fields: Mapping[str, Any]) -> Message:
        try:
            channel = await self._channel(address)
            return await channel.request(api, fields, timeout_s=TIMEOUT_SECONDS)
        except OSError as error:
            raise in_words(error, address) from error

    async def fetch_channel(self, broker_id: int) -> tuple[Channel, int]:
        """A channel of its own for fetches, which wait at the source; and the version of Fetch."""
        host, port = self._address(broker_id)
        network, login = await self._connection()
        loop = self._environment.loop
        channel = Channel(host, port, network, loop, client_id=self._client_id, login=login)
        try:
            version = await channel.best_version("fetch", timeout_s=TIMEOUT_SECONDS)
        except BaseException as error:
            channel.close()
            if isinstance(error, OSError):
                raise in_words(error, (host, port)) from error
            raise
        if version < FIRST_CONSUMER_VERSION:
            channel.close()
            raise SourceError(
                f"the source supports Fetch up to version {version}: mirroring needs {FIRST_CONSUMER_VERSION} (Kafka "
                "3.1 and later); use MirrorMaker 2"
            )
        return channel, version

    def _address(self, broker_id: int) -> tuple[str, int]:
        address = self.metadata.brokers.get(broker_id) if self.metadata is not None else None
        if address is None:
            raise SourceError(f"broker {broker_id} of the source is not known")
        return address

    async def _channel(self, address: tuple[str, int]) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            network, login = await self._connection()
            channel = self._channels.get(address)
            if channel is None:
                loop = self._environment.loop
                channel = Channel(*address, network, loop, client_id=self._client_id, login=login)
                self._channels[address] = channel
        if self._closed:
            channel.close()
        return channel

    async def _connection(self) -> tuple[Network, Login | None]:
        if self._way is None:
            settings = {name: value for name, value in self._link.settings.items() if value != ""}
            needs_files = any("${" in value or name.startswith("ssl.") for name, value in settings.items())
            prepare = _Prepared(settings, self._config, self._environment)
            self._way = await self._environment.offload(prepare) if needs_files else prepare()
        return self._way

    # Offsets

    async def range_of(self, topic: str, index: int, leader: int) -> tuple[int, int]:
        """The first offset and the high watermark of a partition."""
        ends = []
        for timestamp in (_EARLIEST, _LATEST):
            found = await self.list_offsets(leader, {topic: [index]}, timestamp)
            if (topic, index) not in found:
                raise SourceError(f"the source returned no offsets of {topic}-{index}")
            ends.append(found[topic, index])
        return ends[0], ends[1]

    async def ends(self, topics: Iterable[SourceTopic]) -> dict[tuple[str, int], int]:
        """The high watermarks of all partitions that have a leader."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        for topic in topics:
            for index, partition in enumerate(topic.partitions):
                if partition.leader >= 0:
                    by_leader.setdefault(partition.leader, {}).setdefault(topic.name, []).append(index)
        found: dict[tuple[str, int], int] = {}
        for leader, wanted in by_leader.items():
            found |= await self.list_offsets(leader, wanted, _LATEST)
        return found

    async def list_offsets(
        self, leader: int, wanted: Mapping[str, Iterable[int]], timestamp: int
    ) -> dict[tuple[str, int], int]:
        fields = {
            "replica_id": _CONSUMER,
            "isolation_level": 0,
            "topics": [
                {
                    "name": name,
                    "partitions": [{"partition_index": index, "timestamp": timestamp} for index in indexes],
                }
                for name, indexes in wanted.items()
            ],
        }
        response = await self.request(leader, "list_offsets", fields)
        return {
            (topic.name, row.partition_index): row.offset
            for topic in response.topics
            for row in topic.partitions
            if not row.error_code
        }


class _Prepared:
    """How to connect: resolves references, reads certificates; may block. Raises SourceError."""

    def __init__(self, settings: Mapping[str, str], config: BrokerConfig, environment: Environment) -> None:
        self._settings = settings
        self._config = config
        self._environment = environment

    def __call__(self) -> tuple[Network, Login | None]:
        environment = self._environment
        try:
            config = _connection_config(self._with_secrets(), self._config)
            own = config.listener(_LISTENER)
            network: Network = environment.network
            if own.uses_tls:
                from millstream.node.security.certificates import (
                    Certificates,  # needs `cryptography`, as TLS alone does
                )

                certificates = Certificates(_LISTENER, own, is_server=False)
                runtime = TlsRuntime(environment.loop, environment.offload)
                timeout_s = config[ssl.HANDSHAKE_TIMEOUT_MS] / 1000
                network = TlsNetwork(network, certificates.client, runtime, timeout_s=timeout_s)
            login = node_login(config, _LISTENER.upper(), sasl.SASL_MECHANISM_INTER_BROKER_PROTOCOL, environment)
        except SecretError as error:
            raise SourceError(str(error)) from None
        except ConfigError as error:
            raise SourceError(error.message) from None
        except ValueError as error:  # an address or a path that is none
            raise SourceError(f"the settings of the connection are not valid: {error}") from None
        return network, login

    def _with_secrets(self) -> dict[str, str]:
        """The settings with references replaced, in secrets alone: values of others are shown in messages."""
        secrets = {name: value for name, value in self._settings.items() if mirror.is_secret(name)}
        allowed = {name: value for name, value in os.environ.items() if name.startswith(mirror.SECRET_VARIABLES)}
        values = {**self._settings, **resolve_all(secrets, allowed, self._read)}
        self._check_files(values)
        return values

    def _check_files(self, values: Mapping[str, str]) -> None:
        """The same for files that are sent, or prove who this broker is: of a token, of a private key, a keytab; and
        for the address that tokens are requested from."""
        # Imported here: it needs a library that a node without OAUTHBEARER does not load.
        from millstream.node.security.jwks import file_of

        jaas = sasl.SASL_JAAS_CONFIG.name
        options = parse_jaas(values[jaas], name=jaas).options if jaas in values else {}
        used = (
            file_of(values.get(sasl.SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL.name, "")),
            values.get(ssl.SSL_KEYSTORE_LOCATION.name),
            options.get("keyTab", "").removeprefix("file:").removeprefix("FILE:"),
        )
        for path in filter(None, used):
            self._real_path(path)
        url = values.get(sasl.SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL.name)
        if url and file_of(url) is None and url not in self._config[mirror.TOKEN_URLS]:
            raise SecretError(f"{url} is not requested: it is not in {mirror.TOKEN_URLS.name} of this broker")

    def _read(self, path: str) -> bytes:
        """A file that a secret refers to. A client that creates links must not be able to send any file to a source."""
        with open(self._real_path(path), "rb") as file:
            return file.read(_LARGEST_SECRET_BYTES)

    def _real_path(self, path: str) -> str:
        """SecretError if it is not in the directory that the broker's operator allows."""
        directory = self._config[mirror.SECRETS_DIR]
        if directory is None:
            raise SecretError(f"{path} is not read: set {mirror.SECRETS_DIR.name} of this broker to its directory")
        real, root = os.path.realpath(path), os.path.realpath(directory)
        if os.path.commonpath((real, root)) != root:
            raise SecretError(f"{path} is not read: it is not in {mirror.SECRETS_DIR.name}={directory}")
        return real


def _connection_config(settings: Mapping[str, str], base: BrokerConfig) -> BrokerConfig:
    """The settings of the connection as those of a listener of this node, which TLS and SASL are made from."""
    values: dict[str, Any] = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
    mechanism = mirror.SASL_MECHANISM.parse(settings.get("sasl.mechanism", mirror.SASL_MECHANISM.default))
    protocol = mirror.SECURITY_PROTOCOL.parse(settings.get("security.protocol", mirror.SECURITY_PROTOCOL.default))
    values[sasl.SASL_MECHANISM_INTER_BROKER_PROTOCOL.name] = mechanism
    for name, text in settings.items():
        setting = BROKER_SETTINGS.get(name)
        if setting is None or not name.startswith(("ssl.", "sasl.")):
            continue
        of_mechanism = f"{mechanism.lower()}." if name == sasl.SASL_JAAS_CONFIG.name else ""
        values[f"{LISTENER_PREFIX}{_LISTENER}.{of_mechanism}{name}"] = setting.parse(text)
    return replace(
        base,
        layers=MappingProxyType({ConfigSource.STATIC_BROKER_CONFIG: MappingProxyType({})}),
        values=MappingProxyType(values),
        protocols=MappingProxyType({_LISTENER.upper(): protocol}),
    )


def _metadata(response: Message) -> SourceMetadata:
    topics: dict[str, SourceTopic] = {}
    for row in response.topics:
        if row.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) or row.name is None:
            continue
        rows = sorted(row.partitions, key=lambda each: int(each.partition_index))
        topics[row.name] = SourceTopic(
            row.name,
            row.topic_id,
            tuple(SourcePartition(each.leader_id, each.leader_epoch) for each in rows),
        )
    brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    return SourceMetadata(response.cluster_id or "", brokers, topics)

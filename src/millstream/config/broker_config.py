"""The settings of one broker: values of files and of dynamic settings over defaults, checked together.

`config[SETTING]` is the typed value. The object is immutable; `with_dynamic` returns a new one. Files are read in
`loading.py`; `topic_config.py` has the values for topics. The timeouts of brokers at the end combine several settings.
"""

import os.path
from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

from millstream.common.lazy_dataclass import dataclass
from millstream.config.addresses import (
    Listener,
    VoterAddress,
    effective_protocol_map,
    parse_bootstrap_servers,
    parse_listeners,
    parse_voters,
)
from millstream.config.catalog import BROKER_SETTINGS, LISTENER_PREFIX, broker_setting
from millstream.config.setting import ConfigError, Setting
from millstream.config.table import cluster, network, node, tier
from millstream.formats.model.identifiers import BrokerId

T = TypeVar("T")

_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # nosec B104: compared, not bound


class ConfigSource(IntEnum):
    """The sources of values, with the numbers of DescribeConfigs. The lower number takes precedence, except for group
    settings."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class UnknownSetting:
    """A setting with an unknown name."""

    name: str
    place: str
    hint: str

    def __str__(self) -> str:
        return f"{self.place}: unknown setting {self.name}" + (f" ({self.hint})" if self.hint else "")


class ListenerConfig:
    """The settings of one listener: `listener.name.<listener>.<setting>` if it is set, else `<setting>`."""

    __slots__ = ("_config", "_prefix", "name")

    def __init__(self, config: "BrokerConfig", name: str, mechanism: str = "") -> None:
        self._config = config
        self.name = name.upper()
        self._prefix = f"{LISTENER_PREFIX}{name.lower()}." + (f"{mechanism.lower()}." if mechanism else "")

    def __getitem__(self, setting: Setting[T]) -> T:
        values = self._config.values
        own = self._prefix + setting.name
        return values[own] if own in values else values[setting.name]  # type: ignore[no-any-return]

    def own(self, setting: Setting[T]) -> T | None:
        """The value that is set for this listener alone; None if there is none."""
        return self._config.values.get(self._prefix + setting.name)

    def is_set(self, setting: Setting[Any]) -> bool:
        """Whether the value was written somewhere, and is not just the default."""
        return self._prefix + setting.name in self._config.values or self._config.is_set(setting)

    def mechanism(self, mechanism: str) -> "ListenerConfig":
        """The settings of one SASL mechanism: `listener.name.<listener>.<mechanism>.<setting>`, else `<setting>`.

        `own` has those of the mechanism alone, as Kafka requires for `sasl.jaas.config`.
        """
        return ListenerConfig(self._config, self.name, mechanism)

    @property
    def security_protocol(self) -> str:
        return self._config.protocols[self.name]

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BrokerConfig:
    layers: Mapping[ConfigSource, Mapping[str, str]]
    """The values as text, by source, in order of precedence."""
    values: Mapping[str, Any]
    """The typed values by name, also those of `listener.name.…` that are set."""
    protocols: Mapping[str, str]
    """The security protocol of each listener name, also of controller listeners that are not on this node."""
    listeners: tuple[Listener, ...]
    """The listeners for clients."""
    controller_listeners: tuple[Listener, ...]
    advertised_listeners: tuple[Listener, ...]
    """The value of `advertised.listeners`. `advertised()` adds the missing parts."""
    unknown: tuple[UnknownSetting, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getitem__(self, setting: Setting[T]) -> T:
        return self.values[setting.name]  # type: ignore[no-any-return]

    def is_set(self, setting: Setting[Any]) -> bool:
        """Whether the value was written somewhere, and is not just the default."""
        return any(setting.name in layer for layer in self.layers.values())

    @property
    def node_id(self) -> BrokerId:
        broker_id = self[node.BROKER_ID]
        return BrokerId(broker_id if broker_id >= 0 else self[node.NODE_ID])

    @property
    def is_broker(self) -> bool:
        return "broker" in self[node.PROCESS_ROLES]

    @property
    def is_controller(self) -> bool:
        return "controller" in self[node.PROCESS_ROLES]

    @property
    def voters(self) -> tuple[VoterAddress, ...]:
        """The voters of `controller.quorum.voters`."""
        return parse_voters(self[node.CONTROLLER_QUORUM_VOTERS])

    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        return parse_bootstrap_servers(self[node.CONTROLLER_QUORUM_BOOTSTRAP_SERVERS])

    @property
    def is_alone(self) -> bool:
        """Whether this node, on an empty disk, forms a cluster alone: it names no other controller."""
        if not self.is_controller:
            return False
        if self.voters:
            return len(self.voters) == 1
        own = {listener.port for listener in self.controller_listeners}
        servers = self.bootstrap_servers
        # No other node can name a port that the system selects (0).
        return not servers or (len(servers) == 1 and (servers[0][1] in own or not own or 0 in own))

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener for other brokers.

        Without `inter.broker.listener.name`, it is named as `security.inter.broker.protocol`. If that is not set and
        there is no such listener, the first listener is used.
        """
        named = self[node.INTER_BROKER_LISTENER_NAME]
        if named:
            return named.upper()
        protocol = self[node.SECURITY_INTER_BROKER_PROTOCOL]
        names = [listener.name for listener in self.listeners]
        return protocol if protocol in names or not names else names[0]

    @property
    def controller_listener(self) -> str | None:
        """The name of the listener of controllers that this node connects to: the first name, as in Kafka."""
        names = self[node.CONTROLLER_LISTENER_NAMES]
        return names[0].upper() if names else None

    def listener(self, name: str) -> ListenerConfig:
        """The settings of the listener with this name, in upper or lower case."""
        return ListenerConfig(self, name)

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The directories of the logs."""
        return self[node.LOG_DIRS] or self[node.LOG_DIR]

    @property
    def data_dir(self) -> str:
        """The directory of the metadata log: the first log directory by default."""
        return self[node.METADATA_LOG_DIR] or self.log_dirs[0]

    @property
    def without_effect(self) -> tuple[str, ...]:
        """A warning about settings that differ from Kafka's default and have no effect; at most one line."""
        idle = {
            name: setting.without_effect
            for name in self.layers[ConfigSource.STATIC_BROKER_CONFIG]
            if (setting := broker_setting(name)) is not None
            and setting.without_effect
            and (name != setting.name or self.values[name] != setting.default)
        }
        if len(idle) == 1:
            return tuple(f"{name} has no effect: {reason}" for name, reason in idle.items())
        return (f"settings without effect (docs/settings.md has the reasons): {', '.join(idle)}",) if idle else ()

    @property
    def connection_limits(self) -> Mapping[str, int]:
        """`max.connections.per.ip.overrides` as a dictionary."""
        return network.limits_of_addresses(self[network.MAX_CONNECTIONS_PER_IP_OVERRIDES])

    def advertised(
        self, bound_ports: Mapping[str, int], local_host: str, listeners: Iterable[Listener]
    ) -> tuple[Listener, ...]:
        """The advertised addresses of these listeners, with the ports that were bound."""
        given = {listener.name: listener for listener in self.advertised_listeners}
        result = []
        for listener in listeners:
            bound = Listener(listener.name, listener.host, bound_ports.get(listener.name, listener.port))
            shown = given.get(listener.name, bound)
            host = local_host if shown.host in _EVERY_INTERFACE else shown.host
            port = shown.port or bound.port
            result.append(Listener(listener.name, host, port, listener.security_protocol))
        return tuple(result)

    def with_dynamic(self, *, default: Mapping[str, str], own: Mapping[str, str]) -> "BrokerConfig":
        """The config with other dynamic settings: `default` for all brokers, `own` for this broker.

        Stored values that this version does not accept are ignored, so that the broker can start.
        """
        layers = {
            ConfigSource.DYNAMIC_BROKER_CONFIG: _usable(own),
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: _usable(default),
            ConfigSource.STATIC_BROKER_CONFIG: self.layers[ConfigSource.STATIC_BROKER_CONFIG],
        }
        return build_broker_config(layers, unknown=self.unknown, warnings=self.warnings)


def build_broker_config(
    layers: Mapping[ConfigSource, Mapping[str, str]],
    *,
    unknown: tuple[UnknownSetting, ...] = (),
    warnings: tuple[str, ...] = (),
) -> BrokerConfig:
    """Merges the layers and checks rules between settings. Raises ConfigError."""
    values: dict[str, Any] = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
    for source in sorted(layers, reverse=True):
        for name, text in layers[source].items():
            setting = broker_setting(name)
            assert setting is not None, name
            value = setting.parse(text)
            if name == setting.name or name.startswith(LISTENER_PREFIX):
                values[name] = value
    controller_names = {name.upper() for name in values[node.CONTROLLER_LISTENER_NAMES.name]}
    map_name = node.LISTENER_SECURITY_PROTOCOL_MAP.name
    protocols = effective_protocol_map(
        values[map_name],
        is_written=any(map_name in layer for layer in layers.values()),
        controller_names=values[node.CONTROLLER_LISTENER_NAMES.name],
        listeners=values[node.LISTENERS.name],
    )
    listeners = parse_listeners("listeners", values[node.LISTENERS.name], protocols)
    advertised = parse_listeners("advertised.listeners", values[node.ADVERTISED_LISTENERS.name] or (), protocols)
    config = BrokerConfig(
        layers=MappingProxyType({source: MappingProxyType(dict(layer)) for source, layer in layers.items()}),
        values=MappingProxyType(values),
        protocols=MappingProxyType(protocols),
        listeners=tuple(listener for listener in listeners if listener.name not in controller_names),
        controller_listeners=tuple(listener for listener in listeners if listener.name in controller_names),
        advertised_listeners=advertised,
        unknown=unknown,
        warnings=warnings,
    )
    _check_identity(config)
    _check_quorum(config)
    _check_listeners(config)
    _check_times(config)
    _check_directories(config)
    _check_tier(config)
    return config


def _usable(layer: Mapping[str, str]) -> dict[str, str]:
    usable = {}
    for name, text in layer.items():
        setting = broker_setting(name)
        if setting is None:
            continue
        try:
            setting.parse(text)
        except ConfigError:
            continue
        usable[name] = text
    return usable


def _check_identity(config: BrokerConfig) -> None:
    written = config.layers[ConfigSource.STATIC_BROKER_CONFIG]
    broker_id, node_id = config[node.BROKER_ID], config[node.NODE_ID]
    if "node.id" in written and broker_id >= 0 and broker_id != node_id:
        raise ConfigError(f"node.id={node_id} and broker.id={broker_id} differ: remove broker.id", name="node.id")


def _check_quorum(config: BrokerConfig) -> None:
    """Checks that roles, voters and listeners fit together. Each error names the setting to change."""
    voters = config.voters
    named = {voter.id for voter in voters}
    quorum, roles = "controller.quorum.voters", "process.roles"
    if not config.is_controller and not voters and not config.bootstrap_servers:
        raise ConfigError(
            "process.roles=broker needs controllers: name them in controller.quorum.voters (id@host:port,...) or "
            "controller.quorum.bootstrap.servers (host:port,...)",
            name=roles,
        )
    if config.is_controller and voters and config.node_id not in named:
        raise ConfigError(
            f"controller.quorum.voters does not name node {config.node_id}: add {config.node_id}@host:port on every "
            "node, or set process.roles=broker on this node",
            name=quorum,
        )
    if not config.is_controller and config.node_id in named:
        raise ConfigError(
            f"controller.quorum.voters names node {config.node_id}, but process.roles=broker: add controller to the "
            "roles, or give this broker another node.id",
            name=quorum,
        )
    if config.is_controller and named - {config.node_id} and not config.controller_listeners:
        own = next(voter for voter in voters if voter.id == config.node_id)
        raise ConfigError(
            f"the other voters cannot reach this node: add CONTROLLER://{own.host}:{own.port} to listeners and set "
            "controller.listener.names=CONTROLLER",
            name=quorum,
        )
    if not config.is_controller and config.controller_listeners:
        raise ConfigError(
            f"listeners has {config.controller_listeners[0]}, but process.roles=broker needs no controller listener: "
            "remove it from listeners, and keep controller.listener.names",
            name="listeners",
        )
    if (voters or config.bootstrap_servers) and not config.is_alone and not config[node.CONTROLLER_LISTENER_NAMES]:
        raise ConfigError(
            "controller.listener.names is missing: set it to the name of the controllers' listener, for example "
            "CONTROLLER",
            name=quorum if voters else "controller.quorum.bootstrap.servers",
        )


def _check_times(config: BrokerConfig) -> None:
    heartbeat, session = config[cluster.BROKER_HEARTBEAT_INTERVAL_MS], config[cluster.BROKER_SESSION_TIMEOUT_MS]
    if heartbeat * 2 > session:
        raise ConfigError(
            f"broker.heartbeat.interval.ms={heartbeat} must be at most half of broker.session.timeout.ms={session}",
            name="broker.heartbeat.interval.ms",
        )
    wait, lag = config[cluster.REPLICA_FETCH_WAIT_MAX_MS], config[cluster.REPLICA_LAG_TIME_MAX_MS]
    if wait > lag:
        raise ConfigError(
            f"replica.fetch.wait.max.ms={wait} must be at most replica.lag.time.max.ms={lag}: otherwise followers that "
            "have caught up would leave the ISR",
            name="replica.fetch.wait.max.ms",
        )


def _check_listeners(config: BrokerConfig) -> None:
    names = [listener.name for listener in config.listeners]
    if names and not config.is_broker:
        raise ConfigError(
            f"listeners has {config.listeners[0]}, but process.roles=controller serves no clients: name only the "
            "listeners of controller.listener.names",
            name="listeners",
        )
    if not config.is_broker and not config.controller_listeners:
        raise ConfigError(
            "listeners has no listener of controller.listener.names: add one, for example CONTROLLER://127.0.0.1:9093",
            name="listeners",
        )
    if config.is_broker and not names:
        raise ConfigError(
            "listeners has no listener for clients: add one that controller.listener.names does not name, "
            "for example PLAINTEXT://127.0.0.1:9092",
            name="listeners",
        )
    known = {*names, *(listener.name for listener in config.controller_listeners)}
    for listener in config.advertised_listeners:
        if listener.name not in known:
            raise ConfigError(
                f"advertised.listeners: {listener.name} is not one of listeners ({', '.join(names)})",
                name="advertised.listeners",
            )
        if listener.host in _EVERY_INTERFACE[1:]:
            raise ConfigError(
                f"advertised.listeners: clients cannot connect to {listener}; use a host name",
                name="advertised.listeners",
            )
    _check_inter_broker_listener(config, names)


def _check_inter_broker_listener(config: BrokerConfig, names: list[str]) -> None:
    setting, by_protocol = node.INTER_BROKER_LISTENER_NAME.name, node.SECURITY_INTER_BROKER_PROTOCOL.name
    named, protocol = config[node.INTER_BROKER_LISTENER_NAME], config[node.SECURITY_INTER_BROKER_PROTOCOL]
    protocol_is_set = config.is_set(node.SECURITY_INTER_BROKER_PROTOCOL)
    if named and protocol_is_set:
        raise ConfigError(f"{setting} and {by_protocol} are both set: remove one of them", name=setting)
    if named and named.upper() not in config.protocols:
        raise ConfigError(
            f"{setting}={named}: listener.security.protocol.map has no protocol for {named.upper()}; add it",
            name=setting,
        )
    if named and named.upper() in {name.upper() for name in config[node.CONTROLLER_LISTENER_NAMES]}:
        raise ConfigError(
            f"{setting}={named} is also in controller.listener.names: brokers need another listener", name=setting
        )
    if not config.is_broker:
        return
    if named and named.upper() not in names:
        raise ConfigError(f"{setting}={named} is not one of listeners ({', '.join(names)})", name=setting)
    if protocol_is_set and protocol not in names:
        raise ConfigError(
            f"{by_protocol}={protocol}: listeners ({', '.join(names)}) has no listener with this name; set {setting}",
            name=by_protocol,
        )
    if protocol not in names and not named and len({listener.security_protocol for listener in config.listeners}) > 1:
        raise ConfigError(
            f"the listeners ({', '.join(names)}) have different security protocols: set {setting} to the one for "
            "connections between brokers",
            name="listeners",
        )


def _check_directories(config: BrokerConfig) -> None:
    name = "log.dirs" if config[node.LOG_DIRS] else "log.dir"
    paths = [os.path.abspath(each) for each in config.log_dirs]
    if not paths or not all(each.strip() for each in config.log_dirs):
        raise ConfigError(f"{name} has an empty entry: write the directories with a comma between them", name=name)
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(f"{name} has {path} twice: write each directory once", name=name)
    for path in sorted({*paths, os.path.abspath(config.data_dir)}):
        around = next((other for other in paths if path.startswith(f"{other.rstrip('/')}/")), None)
        if around is not None:
            raise ConfigError(f"{path} is inside {around}: log directories must not be inside each other", name=name)
    cordoned = cluster.CORDONED_LOG_DIRS
    for each in cordoned.parse(config.layers[ConfigSource.STATIC_BROKER_CONFIG].get(cordoned.name, "")):
        path = os.path.abspath(each)
        if each != "*" and not any(own == path or own.startswith(f"{path.rstrip('/')}/") for own in paths):
            raise ConfigError(
                f"{cordoned.name} has {each}, which is none of the log directories: write entries of {name}, or *",
                name=cordoned.name,
            )


def _check_tier(config: BrokerConfig) -> None:
    if config[tier.REMOTE_LOG_STORAGE_SYSTEM_ENABLE] and config[tier.TIER_URL] is None:
        raise ConfigError(
            "remote.log.storage.system.enable=true needs millstream.tier.url, for example s3://bucket/prefix",
            name=tier.REMOTE_LOG_STORAGE_SYSTEM_ENABLE.name,
        )
    file, command = tier.TIER_ENCRYPTION_KEY_FILE, tier.TIER_ENCRYPTION_KEY_COMMAND
    if config[file] is not None and config[command] is not None:
        raise ConfigError(f"{file.name} and {command.name} are both set: remove one", name=file.name)


_HEARTBEATS_TO_MISS = 4
"""The number of heartbeats that a broker may miss before it is suspected."""


def suspect_after_s(config: BrokerConfig) -> float | None:
    """The time after which a broker that does not respond at all is fenced; None if only the session timeout counts.

    If an operator sets only broker.session.timeout.ms, Kafka's rule applies.
    """
    session_s = config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000
    wanted = cluster.MILLSTREAM_BROKER_SUSPECT_AFTER_MS
    if not config.is_set(wanted) and config.is_set(cluster.BROKER_SESSION_TIMEOUT_MS):
        return None
    suspect_s = config[wanted] / 1000
    return suspect_s if 0 < suspect_s < session_s else None


def contact_limit_s(config: BrokerConfig) -> float:
    """The time without a response from the controller after which a broker may have been fenced.

    The controller counts from the last heartbeat that it received, so this is three quarters of its timeout.
    """
    return 0.75 * (suspect_after_s(config) or config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000)


def heartbeat_interval_s(config: BrokerConfig) -> float:
    interval_s = config[cluster.BROKER_HEARTBEAT_INTERVAL_MS] / 1000
    suspect_s = suspect_after_s(config)
    if suspect_s is None or config.is_set(cluster.BROKER_HEARTBEAT_INTERVAL_MS):
        return interval_s
    return min(interval_s, suspect_s / _HEARTBEATS_TO_MISS)

"""Opens the listeners of a node, with their limits."""

import logging
import math
from collections.abc import Iterable

from millstream.config.addresses import Listener as ListenerConfig
from millstream.config.broker_config import BrokerConfig
from millstream.config.exposure import is_loopback
from millstream.config.setting import ConfigError
from millstream.config.table import network, sasl
from millstream.node.environment import Environment
from millstream.node.metrics.endpoints import LocalEndpoints, NodeEndpoints, Probes
from millstream.node.runtime.node_tls import NodeTls
from millstream.node.server.fair_turns import FairTurns
from millstream.node.server.limits import OpenConnections
from millstream.node.server.listener import DEFAULT_REQUEST_MEMORY_BYTES, ConnectionLimits, Listener

_log = logging.getLogger("millstream.node")


def bind(
    wanted: Iterable[ListenerConfig],
    into: list[Listener],
    config: BrokerConfig,
    environment: Environment,
    http: NodeEndpoints,
    tls: NodeTls,
    turns: FairTurns | None = None,
    open_connections: OpenConnections | None = None,
) -> dict[str, int]:
    """Binds the listeners and adds them to `into`, without accepting connections yet. Returns their ports by name.

    Raises ConfigError for an address that is in use.
    """
    ports: dict[str, int] = {}
    for each in wanted:
        listener = Listener(
            each.name,
            connection_limits(config, each.name),
            environment.network,
            environment.loop,
            environment.stopwatch,
            security_protocol=each.security_protocol,
            tls=tls.of_listener(each.name),
            turns=turns,
            open_connections=None if each.name == config.inter_broker_listener else open_connections,
        )
        try:
            _, ports[each.name] = listener.bind(each.host, each.port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {each.host or '*'}:{each.port}: {error.strerror or error}; "
                "choose another with --listen HOST:PORT (port 0 picks a free one)",
                name="listeners",
            ) from None
        if config.listener(each.name).uses_sasl:
            listener.http = Probes(http)
        else:
            listener.http = LocalEndpoints(http) if is_loopback(each.host) else http
        into.append(listener)
        _log.info(
            "listening listener=%s protocol=%s address=%s:%d",
            each.name, each.security_protocol, each.host or "*", ports[each.name],
        )  # fmt: skip
    return ports


def _idle_seconds(setting_ms: int) -> float:
    return setting_ms / 1000 if setting_ms >= 0 else math.inf


def connection_limits(config: BrokerConfig, listener: str) -> ConnectionLimits:
    request_bytes = config[network.QUEUED_MAX_REQUEST_BYTES]
    return ConnectionLimits(
        max_frame_bytes=config[network.SOCKET_REQUEST_MAX_BYTES],
        request_memory_bytes=request_bytes if request_bytes > 0 else DEFAULT_REQUEST_MEMORY_BYTES,
        max_connections=config.listener(listener)[network.MAX_CONNECTIONS],
        login_seconds=config[sasl.LOGIN_TIMEOUT_MS] / 1000,
        max_connections_per_address=config[network.MAX_CONNECTIONS_PER_IP],
        max_connections_of_address=config.connection_limits,
        max_idle_seconds=_idle_seconds(config[network.CONNECTIONS_MAX_IDLE_MS]),
        send_buffer_bytes=config[network.SOCKET_SEND_BUFFER_BYTES],
        receive_buffer_bytes=config[network.SOCKET_RECEIVE_BUFFER_BYTES],
        backlog=config[network.SOCKET_LISTEN_BACKLOG_SIZE],
    )

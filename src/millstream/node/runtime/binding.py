"""A node's listeners, bound as its settings say."""

import math
from collections.abc import Iterable

from millstream.config.broker_config import BrokerConfig
from millstream.config.errors import ConfigError
from millstream.config.listeners import Listener as ListenerConfig
from millstream.config.table import network
from millstream.node.environment import Environment
from millstream.node.server.listener import DEFAULT_REQUEST_MEMORY_BYTES, ConnectionLimits, Listener
from millstream.node.server.plain_http import HttpService


def bind(
    wanted: Iterable[ListenerConfig],
    into: list[Listener],
    config: BrokerConfig,
    environment: Environment,
    http: HttpService,
) -> dict[str, int]:
    """Adds the listeners to `into`, without accepting anybody yet; their ports by name. ConfigError for an address that
    is taken."""
    ports: dict[str, int] = {}
    for each in wanted:
        stopwatch = environment.stopwatch
        listener = Listener(each.name, _limits(config), environment.network, environment.loop, stopwatch)
        try:
            _, ports[each.name] = listener.bind(each.host, each.port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {each.host or '*'}:{each.port}: {error.strerror or error}; "
                "choose another with --listen HOST:PORT (port 0 picks a free one)",
                name="listeners",
            ) from None
        listener.http = http
        into.append(listener)
    return ports


def _idle_seconds(setting_ms: int) -> float:
    return setting_ms / 1000 if setting_ms >= 0 else math.inf


def _limits(config: BrokerConfig) -> ConnectionLimits:
    request_bytes = config[network.QUEUED_MAX_REQUEST_BYTES]
    return ConnectionLimits(
        max_frame_bytes=config[network.SOCKET_REQUEST_MAX_BYTES],
        request_memory_bytes=request_bytes if request_bytes > 0 else DEFAULT_REQUEST_MEMORY_BYTES,
        max_connections=config[network.MAX_CONNECTIONS],
        max_connections_per_address=config[network.MAX_CONNECTIONS_PER_IP],
        max_connections_of_address=config.connection_limits,
        max_idle_seconds=_idle_seconds(config[network.CONNECTIONS_MAX_IDLE_MS]),
        send_buffer_bytes=config[network.SOCKET_SEND_BUFFER_BYTES],
        receive_buffer_bytes=config[network.SOCKET_RECEIVE_BUFFER_BYTES],
        backlog=config[network.SOCKET_LISTEN_BACKLOG_SIZE],
    )

"""Settings of the network: limits on connections, requests and responses."""

from millstream.config.setting import INT_MAX, Allowed, Importance, Update, at_least, declared, integer, long, string


def limits_of_addresses(text: str) -> dict[str, int]:
    """`address:count,…` as a dictionary. Raises ValueError with the first item that is neither."""
    limits: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, _, count = item.rpartition(":")
        if not address or not (count.isascii() and count.isdigit() and len(count) <= 10):
            raise ValueError(item)
        limits[address.strip("[]")] = int(count)
    return limits


def _are_limits(text: str) -> bool:
    try:
        limits_of_addresses(text)
    except ValueError:
        return False
    return True


SOCKET_REQUEST_MAX_BYTES = integer(
    "socket.request.max.bytes",
    100 << 20,
    "The maximum size of a request. The broker closes the connection of a client that sends a larger one.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SOCKET_SEND_BUFFER_BYTES = integer(
    "socket.send.buffer.bytes",
    -1,
    "The size of a socket's send buffer. With -1 the operating system tunes it for each connection. Kafka's default is "
    "102400: a response of 1 MB then takes four calls, and more CPU.",
    unit="bytes",
    allowed=at_least(-1),
    importance=Importance.HIGH,
)
SOCKET_RECEIVE_BUFFER_BYTES = integer(
    "socket.receive.buffer.bytes",
    -1,
    "The size of a socket's receive buffer. With -1 the operating system tunes it for each connection. Kafka's default "
    "is 102400, with which large requests take more CPU.",
    unit="bytes",
    allowed=at_least(-1),
    importance=Importance.HIGH,
)
SOCKET_LISTEN_BACKLOG_SIZE = integer(
    "socket.listen.backlog.size",
    50,
    "The maximum number of connections that wait to be accepted.",
    allowed=at_least(1),
)
MAX_CONNECTIONS = integer(
    "max.connections",
    INT_MAX,
    "The maximum number of open connections of all listeners for clients; "
    "`listener.name.<listener>.max.connections` is that of one listener.",
    allowed=at_least(0),
    update=Update.CLUSTER_WIDE,
)
MAX_CONNECTIONS_PER_IP = integer(
    "max.connections.per.ip",
    INT_MAX,
    "The maximum number of open connections from one IP address. IPv6 addresses with the same first 64 bits count as "
    "one.",
    allowed=at_least(0),
    update=Update.CLUSTER_WIDE,
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = string(
    "max.connections.per.ip.overrides",
    "",
    "Limits for single IP addresses, as `address:count,…`.",
    allowed=Allowed("a list of address:count", _are_limits),
    update=Update.CLUSTER_WIDE,
)
CONNECTIONS_MAX_IDLE_MS = long(
    "connections.max.idle.ms",
    10 * 60 * 1000,
    "Connections without traffic for this time are closed. A negative value disables this.",
    unit="ms",
)
QUEUED_MAX_REQUEST_BYTES = long(
    "queued.max.request.bytes",
    -1,
    "The maximum size of all requests that are being received or processed. Above it, sockets are not read until "
    "memory is free. -1 uses the broker's default.",
    unit="bytes",
    allowed=at_least(-1),
)
FETCH_MAX_BYTES = integer(
    "fetch.max.bytes",
    55 << 20,
    "The maximum size of a fetch response, whatever the client requests.",
    unit="bytes",
    allowed=at_least(1024),
)
MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = integer(
    "max.incremental.fetch.session.cache.slots",
    1000,
    "The maximum number of fetch sessions. A client without a session sends its whole list of partitions with "
    "each fetch.",
    allowed=at_least(0),
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = integer(
    "max.request.partition.size.limit",
    2000,
    "The maximum number of partitions in one DescribeTopicPartitions response.",
    allowed=at_least(1),
)
TELEMETRY_MAX_BYTES = integer(
    "telemetry.max.bytes",
    1 << 20,
    "The maximum size of the metrics that a client pushes at a time (KIP-714), compressed and decompressed.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.LOW,
)

SETTINGS = declared(globals())

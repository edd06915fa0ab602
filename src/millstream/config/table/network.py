"""Bounds on connections, requests and answers."""

from millstream.config.setting import INT_MAX, Importance, at_least, declared, integer, long, string

SOCKET_REQUEST_MAX_BYTES = integer(
    "socket.request.max.bytes",
    100 << 20,
    "The largest request that is accepted; a longer one costs the client its connection.",
    unit="bytes",
    allowed=at_least(1),
    importance=Importance.HIGH,
)
SOCKET_SEND_BUFFER_BYTES = integer(
    "socket.send.buffer.bytes",
    100 << 10,
    "The kernel's send buffer of a connection; -1 leaves it to the operating system.",
    unit="bytes",
    allowed=at_least(-1),
    importance=Importance.HIGH,
)
SOCKET_RECEIVE_BUFFER_BYTES = integer(
    "socket.receive.buffer.bytes",
    100 << 10,
    "The kernel's receive buffer of a connection; -1 leaves it to the operating system.",
    unit="bytes",
    allowed=at_least(-1),
    importance=Importance.HIGH,
)
SOCKET_LISTEN_BACKLOG_SIZE = integer(
    "socket.listen.backlog.size",
    50,
    "How many connections the kernel holds before the broker accepts them.",
    allowed=at_least(1),
)
MAX_CONNECTIONS = integer(
    "max.connections",
    INT_MAX,
    "How many connections may be open at once.",
    allowed=at_least(0),
)
MAX_CONNECTIONS_PER_IP = integer(
    "max.connections.per.ip",
    INT_MAX,
    "How many connections one address may have open at once.",
    allowed=at_least(0),
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = string(
    "max.connections.per.ip.overrides",
    "",
    "Other limits for single addresses, as `address:count,…`.",
)
CONNECTIONS_MAX_IDLE_MS = long(
    "connections.max.idle.ms",
    10 * 60 * 1000,
    "A connection on which nothing happened for so long is closed; negative means never.",
    unit="ms",
)
QUEUED_MAX_REQUEST_BYTES = long(
    "queued.max.request.bytes",
    -1,
    "How many bytes of requests may be in work at once; past it, sockets are not read until there is room. "
    "-1 lets the broker choose.",
    unit="bytes",
    allowed=at_least(-1),
)
FETCH_MAX_BYTES = integer(
    "fetch.max.bytes",
    55 << 20,
    "The most bytes that one fetch is answered with, whatever the client asks for.",
    unit="bytes",
    allowed=at_least(1024),
)
MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = integer(
    "max.incremental.fetch.session.cache.slots",
    1000,
    "How many fetch sessions are remembered; a client without one sends its whole list of partitions each time.",
    allowed=at_least(0),
)
MAX_REQUEST_PARTITION_SIZE_LIMIT = integer(
    "max.request.partition.size.limit",
    2000,
    "The most partitions that one DescribeTopicPartitions answer holds.",
    allowed=at_least(1),
)

SETTINGS = declared(globals())

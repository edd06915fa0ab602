"""Asking a broker whether it is there: a new connection, and one request that every broker responds to at once."""

from enum import Enum

from millstream.node.environment import Environment
from millstream.node.metadata.records import Endpoint
from millstream.node.server.channel import Channel

_TIMEOUT_S = 2.0
"""Of the response. A broker that is only slow should have the time to give it."""


class Finding(Enum):
    RESPONDS = "the process runs, and bytes get there and back"
    REFUSES = "nothing listens at its address: the process is gone"
    SILENT = "it hangs, it is cut off, or it is only slow"


async def probe(endpoint: Endpoint, environment: Environment, *, client_id: str) -> Finding:
    """A connection alone proves little: the kernel accepts it for a process that is stopped."""
    channel = Channel(endpoint.host, endpoint.port, environment.network, environment.loop, client_id=client_id)
    try:
        await channel.best_version("api_versions", timeout_s=_TIMEOUT_S)
    except ConnectionRefusedError:
        return Finding.REFUSES
    except OSError:
        return Finding.SILENT
    finally:
        channel.close()
    return Finding.RESPONDS

"""Topics, partitions, brokers and addresses."""

from typing import NamedTuple
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.raw_client.errors import SetupError

NO_LEADER = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int
    """Node id, NO_LEADER if there is none."""
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: UUID
    """A topic that was deleted and created again has another id. All zeros from brokers before Kafka 2.8."""
    partitions: list[PartitionInfo]
    """By index, from 0 on."""
    is_internal: bool
    branch_of: str | None = None
    """The topic of which this is a branch, and its id; None if it is no branch, or the parent may not be described."""
    branch_of_id: UUID | None = None
    branch_offsets: tuple[int, ...] = ()
    """Of a branch, by partition: where its own records begin."""


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    node_id: int
    host: str
    port: int
    rack: str | None


DEFAULT_PORT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Addresses from `host:port,host:port`. A protocol (PLAINTEXT://) is ignored, as in Kafka."""
    found = tuple(dict.fromkeys(_parse(part.strip()) for part in text.split(",") if part.strip()))
    if not found:
        raise SetupError("bootstrap.servers is empty: give HOST:PORT, for example localhost:9092")
    return found


def _parse(text: str) -> Address:
    bare = text.rsplit("://", 1)[-1]
    host, port = bare, str(DEFAULT_PORT)
    if bare.count(":") == 1 or (bare.startswith("[") and not bare.endswith("]")):
        host, _, port = bare.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise SetupError(f"bootstrap.servers: {text!r} is not an address: give HOST:PORT, for example localhost:9092")
    return Address(host, int(port))

"""A controller on an in-memory quorum, in virtual time, with a network of which the test says who listens."""

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.heartbeats import Heartbeats
from millstream.node.environment import Environment
from millstream.node.metadata.features import SUPPORTED_FEATURES
from millstream.node.metadata.image import MetadataDelta, MetadataImage, apply
from millstream.node.metadata.records import MetadataRecord
from millstream.node.server.network import Listening, Transport
from millstream.node.server.request import Context
from millstream.node.server.service import Peer

T = TypeVar("T")
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
SESSION_SECONDS = 9.0


class _LeapingSelector(selectors.DefaultSelector):
    """Waits in no time: the loop's clock leaps to the next timer."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
        return super().select(0)


class LeapingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock_of_selector = _LeapingSelector()
        super().__init__(self.clock_of_selector)

    def time(self) -> float:
        return self.clock_of_selector.now_s


class FakeTransport:
    """A stream to a process that responds to ApiVersions, or to one that is stopped: the kernel takes what is sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, responds: bool) -> None:
        self._loop = loop
        self._responds = responds
        self._arrived = bytearray()
        self._on_readable: Callable[[], None] | None = None

    def send(self, data: memoryview) -> int:
        if self._responds:
            schema = response_schema("api_versions")
            api_keys = [{"api_key": 18, "min_version": 0, "max_version": 3}]
            body = bytes(data[8:12]) + schema.encode({"error_code": 0, "api_keys": api_keys}, 3)
            self._arrived += len(body).to_bytes(4, "big") + body
            self._loop.call_soon(self._tell)
        return len(data)

    def receive_into(self, buffer: memoryview) -> int:
        if not self._arrived:
            raise BlockingIOError
        count = min(len(buffer), len(self._arrived))
        buffer[:count] = self._arrived[:count]
        del self._arrived[:count]
        return count

    def watch_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback

    def watch_writable(self, callback: Callable[[], None] | None) -> None:
        return

    def _tell(self) -> None:
        if self._on_readable is not None:
            self._on_readable()

    def close(self) -> None:
        self._on_readable = None


class FakeNetwork:
    """Connections to ports: made, unless they are in `refused` or `unreachable`; no one responds at `stopped` ones."""

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self.unreachable: set[int] = set()
        self.stopped: set[int] = set()
        self.probed: list[int] = []

    def listen(self, host: str, port: int, **_: Any) -> Listening:
        raise NotImplementedError

    async def connect(self, host: str, port: int) -> Transport:
        self.probed.append(port)
        if port in self.refused:
            raise ConnectionRefusedError(f"{host}:{port}")
        if port in self.unreachable:
            await asyncio.sleep(3600)
        return FakeTransport(asyncio.get_running_loop(), responds=port not in self.stopped)  # type: ignore[return-value]


class FakeQuorum:
    """A metadata log in memory, committed at once or when told; the loader in one with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, commits: bool = True) -> None:
        self._loop = loop
        self.image = MetadataImage()
        self.epoch = 1
        self.is_leader = True
        self.leader_id: int | None = 1
        self.address: tuple[str, int] | None = None
        self.commits = commits
        self.log: list[MetadataRecord] = []
        self.batches: list[tuple[int, Sequence[MetadataRecord]]] = []
        self._subscribers: list[Callable[[MetadataDelta], None]] = []

    def leader_address(self) -> tuple[str, int] | None:
        return self.address

    @property
    def log_end_offset(self) -> int:
        return len(self.log)

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        self._subscribers.append(on_change)

    def append(self, records: Sequence[MetadataRecord]) -> int:
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "not the leader")
        self.log += records
        self.batches.append((len(self.log) - 1, records))
        if self.commits:
            self._loop.call_soon(self.commit)
        return len(self.log) - 1

    def commit(self) -> None:
        while self.batches:
            offset, records = self.batches.pop(0)
            self.image, delta = apply(self.image, records, offset=offset, epoch=self.epoch)
            for on_change in self._subscribers:
                on_change(delta)


class Clock:
    def now_ms(self) -> int:
        return 1_800_000_000_000


def environment(loop: asyncio.AbstractEventLoop, network: Any) -> Environment:
    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(function())
        return done

    return Environment(Clock(), loop, offload, random.Random(7), network)


class Bench:
    """Brokers are numbers: the test speaks for them."""

    def __init__(self, *settings: str) -> None:
        self.loop = LeapingLoop()
        self.network = FakeNetwork()
        self.environment = environment(self.loop, self.network)
        self.config: BrokerConfig = load_broker_config(overrides=settings)
        self.quorum = FakeQuorum(self.loop)
        self.controller = ActiveController(
            self.config, self.quorum, self.quorum, self.environment, new_cluster_id=lambda: CLUSTER_ID
        )
        self.last_leader: tuple[int, float] | None = None
        self.heartbeats = Heartbeats(self.controller, self.environment, last_leader=lambda: self.last_leader)
        self.peers: dict[int, Peer] = {}
        self.controller.leading(1)
        self.pass_time(0)

    def close(self) -> None:
        self.heartbeats.close()
        self.pass_time(0)
        self.loop.close()

    @property
    def image(self) -> MetadataImage:
        return self.quorum.image

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def context(self, api: str, peer: Peer) -> Context:
        return Context(request_schema(api).versions.high, "test", peer)

    def ask(self, api: str, fields: dict[str, Any], peer: Peer) -> Message:
        """The response to a request of a broker; KafkaError if it is refused."""
        schema, responses = request_schema(api), response_schema(api)
        version = schema.versions.high
        request = schema.decode(schema.encode(fields, version), version)
        handler = getattr(self.heartbeats, api)
        response = self.run(handler(request, self.context(api, peer)))
        return responses.decode(responses.encode(response, version), version)

    def peer(self, broker_id: int) -> Peer:
        found = self.peers.get(broker_id)
        if found is None or found.closed:
            found = self.peers[broker_id] = Peer(host="127.0.0.1", port=50_000 + broker_id, listener="CONTROLLER")
        return found

    def register(
        self,
        broker_id: int,
        *,
        process: int = 1,
        previous_epoch: int = -1,
        peer: Peer | None = None,
        own_directory: bool = True,
    ) -> int:
        """Registers the n-th process of a broker; its epoch. It may have another data directory than the broker's."""
        fields = {
            "broker_id": broker_id,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": UUID(int=(broker_id << 32) + process),
            "listeners": [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": port_of(broker_id)}],
            "features": [
                {
                    "name": each.name,
                    "min_supported_version": each.min_supported_version,
                    "max_supported_version": each.max_supported_version,
                }
                for each in SUPPORTED_FEATURES
            ],
            "log_dirs": [UUID(int=1000 + broker_id if own_directory else 5000 + process)],
            "previous_broker_epoch": previous_epoch,
        }
        epoch: int = self.ask("broker_registration", fields, peer or self.peer(broker_id)).broker_epoch
        return epoch

    def beat(self, broker_id: int, *, offset: int | None = None, **wishes: bool) -> Message:
        fields = {
            "broker_id": broker_id,
            "broker_epoch": self.image.brokers[broker_id].epoch,  # type: ignore[index]
            "current_metadata_offset": self.image.offset if offset is None else offset,
            **wishes,
        }
        return self.ask("broker_heartbeat", fields, self.peer(broker_id))

    def join(self, *broker_ids: int) -> None:
        """Brokers register and are let in."""
        for broker_id in broker_ids:
            self.register(broker_id)
            assert not self.beat(broker_id).is_fenced

    def fenced(self) -> set[int]:
        return {broker.id for broker in self.image.brokers.values() if broker.fenced}


def port_of(broker_id: int) -> int:
    return 9000 + broker_id

"""Several quorums in one process, on real logs, over loopback sockets."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.consensus.quorum.handlers import QuorumHandlers
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_log import MetadataLog
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.consensus.quorum.publication import MetadataRetention
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile
from millstream.node.consensus.raft.messages import Peer
from millstream.node.consensus.raft.settings import QuorumSettings
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.environment import Environment
from millstream.node.metadata.records import MetadataRecord
from millstream.node.runtime.disk import RealDisk
from millstream.node.server.channel import Channel
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.listener import ConnectionLimits, Listener
from millstream.node.server.request import ApiVersions, api
from millstream.node.storage.disk import Disk
from millstream.node.storage.log.directory import LogDirectory
from millstream.testing.node_process import free_ports
from tests.unit.node.consensus.quorum.conftest import make_environment, topic
from tests.waiting import TIMEOUT_SECONDS

LISTENER = "CONTROLLER"
QUICK = QuorumSettings(
    election_timeout_ms=200,
    fetch_timeout_ms=400,
    election_backoff_max_ms=100,
    request_timeout_ms=1000,
    fetch_max_wait_ms=100,
    fetch_max_bytes=4096,
    snapshot_chunk_bytes=1000,
)
CONFIG = LogConfig(retention_ms=-1, cleanup_policy=frozenset(), segment_bytes=20_000)


class Controller:
    """What a controller hears of the quorum."""

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.leaders: list[tuple[int | None, int]] = []
        self.on_leading: Callable[[], None] = lambda: None

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        return

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        return

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self.leaders.append((leader_id, epoch))

    def leading(self, epoch: int) -> None:
        self.epoch = epoch
        self.on_leading()

    def no_longer_leading(self) -> None:
        self.epoch = None


class QuorumNode:
    def __init__(
        self,
        cluster: "Cluster",
        node_id: int,
        *,
        port: int,
        voters: VoterSet,
        bootstrap: tuple[Peer, ...] = (),
        may_vote: bool = True,
        cluster_id: str | None = None,
        disk: Disk | None = None,
        directory: int = 0,
        retention: MetadataRetention | None = None,
        snapshot_bytes: int = 1 << 40,
    ) -> None:
        environment = self.environment = cluster.environment(node_id)
        self.id = node_id
        self.port = port
        self.fatal: list[str] = []
        self.root = cluster.root / f"node-{node_id}{f'-{directory}' if directory else ''}"
        self.directory_id = UUID(int=(directory << 64) + node_id + 1000)
        real = disk or RealDisk()
        self.logs = LogDirectory(real, str(self.root))
        self.logs.start(environment.clock.now_ms())
        self.listener: Listener | None = None
        log = MetadataLog.open(self.logs, real, CONFIG, environment)
        endpoint = Endpoint(LISTENER, "127.0.0.1", port)
        self.quorum = MetadataQuorum(
            node_id=node_id,
            directory_id=self.directory_id,
            cluster_id=cluster_id,
            log=log,
            state=QuorumStateFile(real, log.partition.directory),
            static_voters=voters,
            bootstrap_servers=bootstrap,
            may_vote=may_vote,
            endpoints=(endpoint,) if may_vote else (),
            listener_name=LISTENER,
            settings=QUICK,
            retention=retention or MetadataRetention(),
            environment=environment,
            on_fatal=self.fatal.append,
        )
        self.loader = MetadataLoader(
            self.quorum, environment, max_bytes_between_snapshots=snapshot_bytes, max_snapshot_interval_ms=0
        )
        self.controller = Controller()
        self.quorum.subscribe(self.controller)

    def start(self) -> None:
        self.quorum.start()
        environment = self.environment
        apis = QuorumHandlers(self.quorum).apis()
        apis.append(api("api_versions", lambda request, context: versions.handle(request, context)))
        versions = ApiVersions(apis, lambda: ({"kraft.version": (0, 1)}, {}, 0))
        listener = self.listener = Listener(LISTENER, ConnectionLimits(), environment.network, environment.loop)
        listener.bind("127.0.0.1", self.port)
        listener.serve(Dispatcher(apis, environment.loop))

    @property
    def topics(self) -> list[str]:
        return list(self.loader.image.topics)

    @property
    def leads(self) -> bool:
        return self.controller.epoch is not None and self.controller.epoch == self.quorum.epoch

    async def ask(self, name: str, fields: dict[str, Any], version: int | None = None) -> Message:
        environment = self.environment
        channel = Channel("127.0.0.1", self.port, environment.network, environment.loop, client_id="test")
        try:
            return await channel.request(name, fields, timeout_s=10, version=version)
        finally:
            channel.close()

    def kill(self) -> None:
        """The process is gone: no one is told, and its address refuses connections."""
        self.loader.close()
        self.quorum.close()
        if self.listener is not None:
            self.listener.close()
        if self.logs._lock is not None:
            self.logs._lock.release()

    async def stop(self) -> None:
        self.loader.close()
        await self.quorum.stop()
        if self.listener is not None:
            self.listener.close()
        self.logs.close(self.environment.clock.now_ms())


class Cluster:
    """Nodes 1, 2, ... as static voters; others can be added."""

    def __init__(self, root: Path, voters: int = 3) -> None:
        self.root = root
        self.threads = ThreadPoolExecutor(4)
        self.nodes: dict[int, QuorumNode] = {}
        self.ports = dict(enumerate(free_ports(8), 1))
        self.voters = self.voter_set(range(1, voters + 1))

    def voter_set(self, ids: Sequence[int]) -> VoterSet:
        return VoterSet(tuple(Voter(ReplicaKey(id), (Endpoint(LISTENER, "127.0.0.1", self.ports[id]),)) for id in ids))

    def environment(self, node_id: int) -> Environment:
        return make_environment(asyncio.get_running_loop(), self.threads, random.randrange(1 << 30) + node_id)

    def start(self, node_id: int, **options: Any) -> QuorumNode:
        options = {"voters": self.voters, "port": self.ports[node_id], **options}
        node = self.nodes[node_id] = QuorumNode(self, node_id, **options)
        node.start()
        return node

    def start_all(self, **options: Any) -> None:
        for voter in self.voters:
            self.start(voter.id, **options)

    def kill(self, node_id: int) -> None:
        self.nodes.pop(node_id).kill()

    @property
    def leader(self) -> QuorumNode | None:
        found = [node for node in self.nodes.values() if node.leads]
        return max(found, key=lambda node: node.quorum.epoch, default=None)

    async def elected(self) -> QuorumNode:
        await eventually(lambda: self.leader is not None)
        assert self.leader is not None
        return self.leader

    async def write(self, *numbers: int) -> None:
        """Topics, one batch each, through the leader."""
        for number in numbers:
            name = f"topic-{number}"
            # A leader that lost its office may have committed it without knowing; its successor knows.
            while name not in (leader := await self.elected()).topics:
                epoch = leader.quorum.epoch
                try:
                    leader.quorum.append([topic(number)])
                except KafkaError:
                    continue
                await eventually(partial(_is_settled, leader, epoch, name))

    async def all_have(self, numbers: Sequence[int]) -> None:
        wanted = [f"topic-{number}" for number in numbers]
        await eventually(lambda: all(node.topics == wanted for node in self.nodes.values()))

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node_id in list(self.nodes):
            self.kill(node_id)
        await asyncio.sleep(0)
        self.threads.shutdown(wait=True)


def _is_settled(leader: QuorumNode, epoch: int, name: str) -> bool:
    """Whether a topic was committed, or its leader of that epoch lost its office."""
    return name in leader.topics or not leader.leads or leader.quorum.epoch != epoch


async def eventually(holds: Callable[[], bool], seconds: float = TIMEOUT_SECONDS) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it did not come about in time"
        await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), TIMEOUT_SECONDS))

"""The metadata quorum as a node sees it: raft driven by a timer, a log, files and channels to the other nodes.

Raft decides, and blocks on nothing; here its requests are sent, its log is brought to stable storage in a thread, and
what it committed is published to listeners in order. One input of raft's at a time, and everything that follows from it
before the next. Raft's time is the event loop's, which no clock adjustment moves; the time of day is for records.

What this node cannot go on after (a log that is not durable, another cluster's id, metadata that makes no sense) ends
in `on_fatal`, once, with one line for a person.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.errors import ConfigError
from millstream.config.table import cluster, node
from millstream.config.topic_config import metadata_log_config
from millstream.environment import Environment
from millstream.metadata.image import MetadataImage
from millstream.metadata.records import CorruptMetadataError, MetadataRecord
from millstream.metadata.snapshot import snapshot_records
from millstream.model.errors import ErrorCode, KafkaError
from millstream.net.channel import Channel
from millstream.quorum.metadata_log import CommittedBatch, MetadataLog, new_batch, unreadable
from millstream.quorum.quorum_state import QuorumStateFile
from millstream.quorum.snapshots import SnapshotContent
from millstream.quorum.wire import read_answer, request_fields
from millstream.raft import events
from millstream.raft.messages import Fetch, LogPosition, Parked, ParkedAnswer, Peer, Send
from millstream.raft.replica import CommittedLostError, RaftReplica
from millstream.raft.settings import QuorumSettings
from millstream.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.storage.disk import Disk
from millstream.storage.job import Job
from millstream.storage.log_directory import LogDirectory

_log = logging.getLogger("millstream.quorum")
_FIRST_BOOTSTRAP_ID = -2
_RECORDS_PER_PUBLICATION = 20_000
_FAREWELL_SECONDS = 0.25
_LONGEST_WAIT_MS = 60_000
Answer = TypeVar("Answer")
Request = TypeVar("Request")


class QuorumListener(Protocol):
    """Whoever follows the quorum. Called in the order of subscription, on the event loop."""

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """The next records in order, one batch or several; the last has this offset and epoch."""
        ...

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """A snapshot replaces everything: the state as of `offset`."""
        ...

    def leader_changed(self, leader_id: int | None, epoch: int) -> None: ...

    def leading(self, epoch: int) -> None:
        """This node leads, and everything that earlier leaders committed was published before this call."""
        ...

    def no_longer_leading(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much of the past is kept behind the newest snapshot; -1 is no limit."""

    bytes: int = 100 << 20
    ms: int = 7 * 24 * 60 * 60 * 1000


class MetadataQuorum:
    def __init__(
        self,
        *,
        node_id: int,
        directory_id: UUID,
        cluster_id: str | None,
        log: MetadataLog,
        state: QuorumStateFile,
        static_voters: VoterSet,
        bootstrap_servers: tuple[Peer, ...],
        may_vote: bool,
        endpoints: tuple[Endpoint, ...],
        listener_name: str,
        settings: QuorumSettings,
        retention: Retention,
        environment: Environment,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.log = log
        self._cluster_id = cluster_id
        self._state = state
        self._static_voters = static_voters
        self._bootstrap_servers = bootstrap_servers
        self._may_vote = may_vote
        self._endpoints = endpoints
        self._listener_name = listener_name
        self._settings = settings
        self._retention = retention
        self._environment = environment
        self._on_fatal = on_fatal
        self._listeners: list[QuorumListener] = []
        self._replica: RaftReplica | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._channels: dict[tuple[str, int, bool], Channel] = {}
        self._exchanges: set[asyncio.Future[None]] = set()
        self._parked: dict[int, asyncio.Future[ParkedAnswer]] = {}
        self._appended: deque[CommittedBatch] = deque()
        """What this leader appended and has not published, so that it need not read it back."""
        self._published = 0
        """The next offset to publish."""
        self._published_epoch = 0
        self._published_ms = 0
        self.bytes_since_snapshot = 0
        self._snapshot_under_way = False
        self._told_leading = False
        self._following = False
        self._flushing = False
        self._flush_scheduled = False
        self._is_starting = False
        self._is_closed = False
        self._failure: str | None = None

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        logs: LogDirectory,
        disk: Disk,
        environment: Environment,
        *,
        directory_id: UUID,
        cluster_id: str | None,
        endpoints: tuple[Endpoint, ...],
        on_fatal: Callable[[str], None],
    ) -> "MetadataQuorum":
        """The quorum of a node with these settings and this data directory.

        `endpoints` are the controller listeners of this node as others reach them. A node that names no voter but
        itself is a quorum of one.
        """
        log = MetadataLog.open(logs, disk, metadata_log_config(config), environment)
        listener_name = endpoints[0].name if endpoints else _controller_listener_name(config)
        voters = VoterSet(
            tuple(
                Voter(ReplicaKey(voter.id), (Endpoint(listener_name, voter.host, voter.port),))
                for voter in config.voters
            )
        )
        if not voters and config.is_alone:
            voters = VoterSet((Voter(ReplicaKey(config.node_id), endpoints),))
        return cls(
            node_id=config.node_id,
            directory_id=directory_id,
            cluster_id=cluster_id,
            log=log,
            state=QuorumStateFile(disk, log.partition.directory),
            static_voters=voters,
            bootstrap_servers=tuple(
                Peer(_FIRST_BOOTSTRAP_ID - at, (Endpoint(listener_name, host, port),))
                for at, (host, port) in enumerate(config.bootstrap_servers)
            ),
            may_vote=config.is_controller,
            endpoints=endpoints,
            listener_name=listener_name,
            settings=_settings(config),
            retention=Retention(
                bytes=config[cluster.METADATA_MAX_RETENTION_BYTES], ms=config[cluster.METADATA_MAX_RETENTION_MS]
            ),
            environment=environment,
            on_fatal=on_fatal,
        )

    # What others look at

    @property
    def leader_id(self) -> int | None:
        return self._raft.leader_id

    @property
    def epoch(self) -> int:
        return self._raft.epoch

    @property
    def is_leader(self) -> bool:
        return self._raft.is_leader and not self._is_closed

    @property
    def is_voter(self) -> bool:
        return self._raft.is_voter

    @property
    def high_watermark(self) -> int:
        return self._raft.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        return self.log.end.offset

    @property
    def voters(self) -> VoterSet:
        return self._raft.voters

    @property
    def kraft_version(self) -> int:
        return self._raft.kraft_version

    def leader_address(self) -> tuple[str, int] | None:
        """Where the active controller listens."""
        raft = self._raft
        endpoints = self._endpoints if raft.leader_id == self.node_id else raft.leader_endpoints
        return self.address_of(endpoints) if raft.leader_id is not None and endpoints else None

    @property
    def cluster_id(self) -> str | None:
        return self._cluster_id

    @cluster_id.setter
    def cluster_id(self, cluster_id: str | None) -> None:
        self._cluster_id = cluster_id
        if self._replica is not None:
            self._replica.cluster_id = cluster_id

    @property
    def _raft(self) -> RaftReplica:
        assert self._replica is not None, "the quorum was not started"
        return self._replica

    def now_ms(self) -> int:
        """Raft's time."""
        return int(self._environment.loop.time() * 1000)

    @property
    def wall_ms_ahead(self) -> int:
        """What to add to raft's times to have the time of day."""
        return self._environment.clock.now_ms() - self.now_ms()

    # Life

    def subscribe(self, listener: QuorumListener) -> None:
        """To be done before `start`: a listener hears everything from the beginning."""
        assert self._replica is None, "subscribe before the start"
        self._listeners.append(listener)

    def start(self) -> None:
        """Begins from what is on disk; a quorum of one leads when this returns. ConfigError if it must not begin."""
        self._check_voters()
        self._state.static_voters = self._voters_to_store
        self._is_starting = True
        try:
            self._replica = RaftReplica(
                key=ReplicaKey(self.node_id, self.directory_id),
                static_voters=self._static_voters,
                bootstrap_servers=self._bootstrap_servers,
                may_vote=self._may_vote,
                endpoints=self._endpoints,
                cluster_id=self._cluster_id,
                log=self.log,
                store=self._state,
                settings=self._settings,
                randomness=self._environment.randomness,
                now_ms=self.now_ms(),
            )
            latest = self.log.snapshots.latest
            if latest is not None:
                self._reset(latest, self.log.snapshots.read(latest))
            self._run(self._replica.tick)
            if self._replica.is_leader and len(self._replica.voters) == 1:
                # Nobody is kept waiting yet, and nothing can be done before this is on disk.
                while (job := self.log.flush_job()) is not None:
                    self._flushed(job, job.run())
                    if self._failure is not None:
                        raise CorruptMetadataError(self._failure)
        except (CorruptMetadataError, KafkaError, OSError) as error:
            self.close()
            raise unreadable(self.log.partition.directory, error) from error
        finally:
            self._is_starting = False

    def _check_voters(self) -> None:
        stored = self._state.read()
        if stored is None or not stored.voters or not self._may_vote or not self._static_voters:
            return
        configured = self._static_voters.ids
        if set(stored.voters) != set(configured):
            was, named = (", ".join(map(str, sorted(ids))) for ids in (stored.voters, configured))
            raise ConfigError(
                f"controller.quorum.voters names nodes {named}, but this node's quorum has the voters {was} "
                f"({self._state.path}): name the same voters as before on every node; voters are added and removed "
                "with kafka-metadata-quorum, once kraft.version is 1",
                name="controller.quorum.voters",
            )

    def _voters_to_store(self) -> tuple[int, ...] | None:
        if self._replica is not None and self._replica.kraft_version > 0:
            return None
        return self._static_voters.ids

    async def stop(self) -> None:
        """Hands leadership over, if this node has it, and closes."""
        if self._replica is not None and not self._is_closed:
            self._run(self._replica.shutdown)
            if self._exchanges:
                await asyncio.wait(list(self._exchanges), timeout=_FAREWELL_SECONDS)
        self.close()

    def close(self) -> None:
        """Ends everything at once; the log belongs to its directory."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for exchange in list(self._exchanges):
            exchange.cancel()
        for channel in self._channels.values():
            channel.close()
        for waiting in self._parked.values():
            waiting.cancel()
        self._parked.clear()
        self.log.snapshots.close()

    # Inputs

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Appends one batch in this leader's epoch; its last offset. NOT_CONTROLLER when this node does not lead."""
        if self._is_closed:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} is stopping")
        now_ms = self._environment.clock.now_ms()
        batch = new_batch(records, now_ms)
        last_offset = self._raft.append(batch, self.now_ms())
        self._appended.append(CommittedBatch(last_offset, self._raft.epoch, now_ms, len(batch), list(records)))
        self._follow()
        return last_offset

    def ask(
        self, step: "Callable[[Request, int], Answer | Parked]", request: Request
    ) -> "Answer | asyncio.Future[ParkedAnswer]":
        """Gives raft somebody's request: the answer, or a future of it. `step` is a method of `replica`'s."""
        result = self._step(lambda now_ms: step(request, now_ms))
        if not isinstance(result, Parked):
            self._follow()
            return result
        future: asyncio.Future[ParkedAnswer] = self._environment.loop.create_future()
        self._parked[result.token] = future
        token = result.token
        future.add_done_callback(lambda done: self._given_up(token) if done.cancelled() else None)
        self._follow()
        return future

    @property
    def replica(self) -> RaftReplica:
        return self._raft

    def upgrade_kraft_version(self, version: int) -> int:
        """As leader, moves from static voters to voters in the log; the offset that has to be committed."""
        offset = self._raft.upgrade_kraft_version(version, self.now_ms())
        self._follow()
        return offset

    def resign(self) -> None:
        self._run(self._raft.resign)

    def _given_up(self, token: int) -> None:
        if self._parked.pop(token, None) is not None and not self._is_closed:
            self._raft.cancel(token)

    def _run(self, step: Callable[[int], None]) -> None:
        self._step(step)
        self._follow()

    def _step(self, step: Callable[[int], Answer]) -> Answer:
        """One input of raft's. What fails in it (the quorum-state file, the log) leaves raft in no state to go on."""
        try:
            return step(self.now_ms())
        except (OSError, KafkaError) as error:
            self._fail(f"the metadata quorum cannot write to {self.log.partition.directory}: {error}", error)
            raise
        except CommittedLostError as error:
            self._fail(
                f"the quorum has lost metadata that was committed ({error}): another node was started with an empty or "
                "older data directory; restore it there",
                error,
            )
            raise

    def _from_loop(self, step: Callable[[int], None]) -> None:
        """An input that the loop brings: there is nobody to raise to."""
        if self._is_closed:
            return
        try:
            self._run(step)
        except (OSError, KafkaError, CommittedLostError):
            pass  # `_fail` has said so

    # Outputs

    def _follow(self) -> None:
        """Does what raft wants done. Listeners may append meanwhile; what follows from that is done here as well."""
        if self._following:
            return
        self._following = True
        raft = self._raft
        try:
            while True:
                sends, happened = raft.drain_sends(), raft.drain_events()
                if not sends and not happened:
                    break
                for send in sends:
                    self._send(send)
                for event in happened:
                    self._take(event)
        except CorruptMetadataError as error:
            self._fail(unreadable(self.log.partition.directory, error).message, error)
        finally:
            self._following = False
        if not self._is_closed:
            self._flush_soon()
            self._arm()

    def _take(self, event: events.Event) -> None:
        match event:
            case events.HighWatermarkAdvanced(offset):
                self._publish(offset)
            case events.LeaderChanged(leader_id, epoch):
                _log.info("leader_changed node=%d leader=%s epoch=%d", self.node_id, leader_id, epoch)
                for listener in self._listeners:
                    listener.leader_changed(leader_id, epoch)
            case events.BecameLeader(epoch, start_offset):
                _log.info("became_leader node=%d epoch=%d start_offset=%d", self.node_id, epoch, start_offset)
            case events.Leading(epoch, high_watermark):
                self._publish(high_watermark)
                self._told_leading = True
                for listener in self._listeners:
                    listener.leading(epoch)
            case events.LostLeadership(epoch):
                _log.info("lost_leadership node=%d epoch=%d", self.node_id, epoch)
                self._appended.clear()
                if self._told_leading:
                    self._told_leading = False
                    for listener in self._listeners:
                        listener.no_longer_leading()
            case events.Truncated():
                self._appended.clear()
            case events.SnapshotInstalled(snapshot):
                content, self.log.installed = self.log.installed, None
                assert content is not None
                self._reset(snapshot, content)
            case events.VotersChanged(voters):
                _log.info("voters_changed node=%d voters=%s", self.node_id, ",".join(map(str, voters.ids)))
            case events.Answered(token, answer):
                future = self._parked.pop(token, None)
                if future is not None and not future.done():
                    future.set_result(answer)
            case events.Refused(error, by):
                self._fail(self._refusal(error, by))

    def _refusal(self, error: ErrorCode, by: int) -> str:
        if error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"node {by} belongs to another cluster than this node's data directory ({self._cluster_id}): check "
                "controller.quorum.voters, or start this node with an empty data directory"
            )
        return (
            f"node {by} refuses this node as a voter ({error.name}): name the same controller.quorum.voters on every "
            "node"
        )

    # Publishing

    def _publish(self, end_offset: int) -> None:
        """Tells the listeners of everything below an offset that they have not heard of."""
        log = self.log
        end_offset = min(end_offset, log.end.offset)
        if self._published < log.start.offset:
            return  # a snapshot was installed, and the event that says so is yet to come
        # A checkpoint of the high watermark must not say more than is on disk.
        log.partition.high_watermark = max(min(end_offset, log.flushed_offset), log.start.offset)
        if self._published >= end_offset:
            return
        batches = self._own_batches(end_offset) or log.batches(self._published, end_offset)
        records: list[MetadataRecord] = []
        for batch in batches:
            self._published = batch.last_offset + 1
            self._published_ms = batch.timestamp
            self.bytes_since_snapshot += batch.size
            if not batch.records:
                continue
            if records and batch.epoch != self._published_epoch:
                self._tell(records)
                records = []
            self._published_epoch = batch.epoch
            self._last_record_offset = batch.last_offset
            records += batch.records
            if len(records) >= _RECORDS_PER_PUBLICATION:
                self._tell(records)
                records = []
        if records:
            self._tell(records)

    _last_record_offset = -1

    def _own_batches(self, end_offset: int) -> list[CommittedBatch] | None:
        """What this leader appended, if that is all that is to be published."""
        found: list[CommittedBatch] = []
        appended = self._appended
        while appended and appended[0].last_offset < end_offset:
            found.append(appended.popleft())
        next_offset = self._published
        for batch in found:
            if batch.last_offset + 1 - len(batch.records) != next_offset:
                return None  # control records are in between
            next_offset = batch.last_offset + 1
        return found if next_offset == end_offset else None

    def _tell(self, records: list[MetadataRecord]) -> None:
        for listener in self._listeners:
            listener.committed(records, offset=self._last_record_offset, epoch=self._published_epoch)

    def _reset(self, snapshot: LogPosition, content: SnapshotContent) -> None:
        _log.info("snapshot_loaded node=%d snapshot=%s records=%d", self.node_id, snapshot, len(content.records))
        self._appended.clear()
        self._published = snapshot.offset
        self._published_epoch = snapshot.epoch
        self._last_record_offset = snapshot.offset - 1
        self._published_ms = content.last_contained_log_timestamp
        self.bytes_since_snapshot = 0
        for listener in self._listeners:
            listener.reset(content.records, offset=snapshot.offset - 1, epoch=snapshot.epoch)

    # Snapshots

    async def write_snapshot(self, image: MetadataImage) -> bool:
        """Writes down the committed image, and lets go of what need not be kept any more; False if it was not due."""
        snapshot = LogPosition(image.offset + 1, image.epoch)
        latest = self.log.latest_snapshot
        if self._snapshot_under_way or image.offset < 0 or (latest is not None and latest.offset >= snapshot.offset):
            return False
        raft = self._raft
        kraft_version = raft.kraft_version_at(snapshot.offset)
        voters = raft.voters_at(snapshot.offset) if kraft_version > 0 else None
        timestamp = self._published_ms
        now_ms = self._environment.clock.now_ms()
        snapshots = self.log.snapshots
        self._snapshot_under_way = True
        counted = self.bytes_since_snapshot

        def write() -> int:
            content = SnapshotContent(timestamp, kraft_version, voters, tuple(snapshot_records(image)))
            return snapshots.write(snapshot, content, now_ms)

        try:
            size = await self._environment.offload(write)
        except OSError as error:
            # The log is as it was, only longer than it need be.
            _log.error("snapshot_not_written node=%d snapshot=%s error=%s", self.node_id, snapshot, error)
            return False
        finally:
            self._snapshot_under_way = False
        if self._is_closed or snapshot.offset < self.log.start.offset:
            return False
        snapshots.add(snapshot)
        self.bytes_since_snapshot = max(self.bytes_since_snapshot - counted, 0)
        _log.info("snapshot_written node=%d snapshot=%s bytes=%d", self.node_id, snapshot, size)
        self._trim()
        return True

    def _trim(self) -> None:
        """Moves the log's start to the next snapshot while there is more than may be kept, or it is too old."""
        log, retention = self.log, self._retention
        moved = False
        while len(log.snapshots.ids) > 1:
            oldest, following = log.snapshots.ids[:2]
            kept = log.partition.size_bytes + sum(map(log.snapshots.size, log.snapshots.ids))
            age_ms = self._environment.clock.now_ms() - log.snapshots.last_contained_ms(oldest)
            if not (0 <= retention.bytes < kept or 0 <= retention.ms < age_ms):
                break
            if following.offset > max(log.partition.high_watermark or 0, log.start.offset):
                break
            log.begin_at(following)
            moved = True
        if moved:
            self._raft.on_log_trimmed()
            self._follow()

    # The disk

    def _flush_soon(self) -> None:
        # At the end of this turn of the loop, when more may have been appended: one fsync serves all.
        if not self._flushing and not self._flush_scheduled and not self._is_starting:
            self._flush_scheduled = True
            self._environment.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._is_closed or self._flushing:
            return
        job = self.log.flush_job()
        if job is None:
            return
        self._flushing = True
        self._environment.offload(job.run).add_done_callback(lambda done: self._flushed(job, done.result()))

    def _flushed(self, job: Job, failure: OSError | None) -> None:
        self._flushing = False
        job.done(failure)
        if self._is_closed:
            return
        if failure is not None:
            self._fail(
                f"the metadata log in {self.log.partition.directory} cannot be brought to disk: {failure}; look at the "
                "disk, then start this node again",
                failure,
            )
            return
        self._from_loop(self._raft.on_flushed)

    # Time

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = max(self._raft.next_deadline_ms - self.now_ms(), 0)
        delay_ms = min(wait_ms + 1, _LONGEST_WAIT_MS)  # never a moment too early
        self._timer = self._environment.loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._from_loop(self._raft.tick)

    # The wire

    def _send(self, send: Send) -> None:
        exchange = asyncio.ensure_future(self._exchange(send))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(self, send: Send) -> None:
        request = send.request
        api, fields = request_fields(request)
        timeout_ms = self._settings.request_timeout_ms
        if isinstance(request, Fetch):
            timeout_ms += request.max_wait_ms
        try:
            channel = self._channel(send.peer, is_fetch=isinstance(request, Fetch))
            message = await channel.request(api, fields, timeout_s=timeout_ms / 1000)
        except OSError as error:
            _log.debug("request_failed node=%d api=%s to=%d error=%s", self.node_id, api, send.peer.id, error)
            refused = isinstance(error, ConnectionRefusedError)
            self._from_loop(lambda now_ms: self._raft.on_request_failed(send, refused=refused, now_ms=now_ms))
            return
        answer = read_answer(request, message, self._listener_name)
        self._from_loop(lambda now_ms: self._raft.on_response(send, answer, now_ms))

    def _channel(self, peer: Peer, *, is_fetch: bool) -> Channel:
        """Fetches wait at the other side, and answers come in order: everything else has a connection of its own."""
        if not peer.endpoints:
            raise ConnectionError(f"no address of node {peer.id} is known")
        host, port = self.address_of(peer.endpoints)
        channel = self._channels.get((host, port, is_fetch))
        if channel is None:
            channel = self._channels[host, port, is_fetch] = self._new_channel(host, port)
        return channel

    async def supported_features(self, host: str, port: int, *, timeout_s: float) -> dict[str, tuple[int, int]]:
        """What the node at an address can do, as its ApiVersions says; OSError if it does not answer."""
        channel = self._new_channel(host, port)
        try:
            fields = {"client_software_name": "millstream", "client_software_version": "node"}
            answer = await channel.request("api_versions", fields, timeout_s=timeout_s)
        finally:
            channel.close()
        return {each.name: (each.min_version, each.max_version) for each in answer.supported_features}

    def _new_channel(self, host: str, port: int) -> Channel:
        environment = self._environment
        return Channel(host, port, environment.network, environment.loop, client_id=f"quorum-{self.node_id}")

    def address_of(self, endpoints: Iterable[Endpoint]) -> tuple[str, int]:
        by_name = {each.name: each for each in endpoints}
        chosen = by_name.get(self._listener_name) or next(iter(by_name.values()))
        return chosen.host, chosen.port

    # The end

    def _fail(self, message: str, error: Exception | None = None) -> None:
        """Leaves the quorum and says why, once."""
        if self._failure is not None or self._is_closed:
            return
        self._failure = message
        if self._is_starting:
            raise CorruptMetadataError(message) from error
        _log.error("quorum_failed node=%d reason=%s", self.node_id, message)
        self._environment.loop.call_soon(self._leave)

    def _leave(self) -> None:
        assert self._failure is not None
        try:
            self._run(self._raft.shutdown)
        except (OSError, KafkaError, AssertionError) as error:
            _log.error("quorum_not_left node=%d error=%s", self.node_id, error)
        self._on_fatal(self._failure)


def _settings(config: BrokerConfig) -> QuorumSettings:
    return QuorumSettings(
        election_timeout_ms=config[cluster.CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS],
        fetch_timeout_ms=config[cluster.CONTROLLER_QUORUM_FETCH_TIMEOUT_MS],
        election_backoff_max_ms=config[cluster.CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS],
        request_timeout_ms=config[cluster.CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS],
        retry_backoff_ms=config[cluster.CONTROLLER_QUORUM_RETRY_BACKOFF_MS],
        fetch_max_bytes=config[cluster.CONTROLLER_QUORUM_FETCH_MAX_BYTES],
        snapshot_chunk_bytes=config[cluster.CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES],
    )


def _controller_listener_name(config: BrokerConfig) -> str:
    names = config[node.CONTROLLER_LISTENER_NAMES]
    return names[0].upper() if names else "CONTROLLER"

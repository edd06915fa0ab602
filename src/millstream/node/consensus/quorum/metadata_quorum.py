"""The metadata quorum of a node: runs raft with a timer, a log, files and connections to the other nodes.

Raft decides and never blocks. Here its requests are sent, its log is flushed in a thread, and committed records are
published to listeners in order. Raft gets one input at a time, and all its outputs are handled before the next. Raft's
time is the event loop's, which clock adjustments do not move; the time of day is only in records.

After errors with which this node cannot go on (a log that is not durable, another cluster's id, damaged metadata),
`on_fatal` is called once with a message.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from millstream.config.setting import ConfigError
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.quorum.metadata_log import CommittedBatch, MetadataLog, new_batch, unreadable
from millstream.node.consensus.quorum.peers import Peers
from millstream.node.consensus.quorum.publication import MetadataRetention, Publication, QuorumListener, SnapshotWriter
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile
from millstream.node.consensus.raft import events
from millstream.node.consensus.raft.messages import Parked, ParkedResponse, Peer
from millstream.node.consensus.raft.replica import CommittedLostError, RaftReplica
from millstream.node.consensus.raft.settings import QuorumSettings
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, VoterSet
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import CorruptMetadataError, MetadataRecord
from millstream.node.storage.disk import Job

_log = logging.getLogger("millstream.quorum")
_END_EPOCH_TIMEOUT_SECONDS = 0.25
_MAX_WAIT_MS = 60_000
_FAILURE_BACKOFF_MS = 500
Result = TypeVar("Result")
Request = TypeVar("Request")


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
        retention: MetadataRetention,
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
        self._settings = settings
        self._environment = environment
        self._on_fatal = on_fatal
        self._snapshots = SnapshotWriter(log, retention, environment)
        self._publication = Publication(log, environment.loop, self._guarded)
        self.peers = Peers(
            node_id,
            listener_name,
            settings.request_timeout_ms,
            environment,
            responded=lambda send, response: self._from_loop(
                lambda now_ms: self._raft.on_response(send, response, now_ms)
            ),
            failed=lambda send, refused: self._from_loop(
                lambda now_ms: self._raft.on_request_failed(send, refused=refused, now_ms=now_ms)
            ),
        )
        self._replica: RaftReplica | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parked: dict[int, asyncio.Future[ParkedResponse]] = {}
        self._following = False
        self._flushing = False
        self._flush_scheduled = False
        self._is_starting = False
        self._is_closed = False
        self._failure: str | None = None
        self._refused_by: set[int] = set()
        """Nodes that have refused this node since a leader was last known."""

    # State

    @property
    def is_started(self) -> bool:
        return self._replica is not None

    @property
    def leader_id(self) -> int | None:
        return self._raft.leader_id

    @property
    def last_leader(self) -> tuple[int, float] | None:
        """The last leader that this node followed, and when it last responded, in seconds of the loop's time."""
        heard = self._replica.leader_heard if self._replica is not None else None
        return (heard[0], heard[1] / 1000) if heard is not None else None

    def metadata_as_of_s(self) -> float:
        """Until when this node has surely received all committed metadata, in seconds of the loop's time."""
        as_of_ms = self._replica.current_as_of_ms(self.now_ms()) if self._replica is not None else None
        return -math.inf if as_of_ms is None else as_of_ms / 1000

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

    @property
    def published_offset(self) -> int:
        """The offset up to which committed records were published to this node's listeners."""
        return self._publication.next_offset

    @property
    def bytes_since_snapshot(self) -> int:
        """Bytes that were committed since the last snapshot."""
        return self._publication.bytes_since_snapshot

    def leader_address(self) -> tuple[str, int] | None:
        """The address of the active controller."""
        raft = self._raft
        endpoints = self._endpoints if raft.leader_id == self.node_id else raft.leader_endpoints
        return self.peers.address_of(endpoints) if raft.leader_id is not None and endpoints else None

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
        """The time of day minus raft's time."""
        return self._environment.clock.now_ms() - self.now_ms()

    # Start and stop

    def subscribe(self, listener: QuorumListener) -> None:
        """Called before `start`: a listener gets all records from the beginning."""
        assert self._replica is None, "subscribe before the start"
        self._publication.listeners.append(listener)

    def start(self) -> None:
        """Starts from the state on disk; a quorum of one leads when this returns. ConfigError if it must not start."""
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
            self._check_voters()
            latest = self.log.snapshots.latest
            if latest is not None:
                self._publication.reset(latest, self.log.snapshots.read(latest))
            self._run(self._replica.tick)
            if self._replica.is_leader and len(self._replica.voters) == 1:
                # May block here: the node serves no requests yet, and needs this on disk first.
                while (job := self.log.flush_job()) is not None:
                    self._flushed(job, job.run())
                    if self._failure is not None:
                        raise CorruptMetadataError(self._failure)
        except (CorruptMetadataError, KafkaError, OSError) as error:
            self.close()
            raise unreadable(self.log.partition.directory, error) from error
        finally:
            self._is_starting = self._publication.is_starting = False

    def _check_voters(self) -> None:
        """With static voters that are not the same on all nodes, two leaders could be elected."""
        stored = self._state.read() if self._raft.kraft_version == 0 else None
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
        """Resigns, if this node leads, and closes."""
        if self._replica is not None and not self._is_closed:
            self._from_loop(self._replica.shutdown)
            await self.peers.settle(_END_EPOCH_TIMEOUT_SECONDS)
        self.close()

    def close(self) -> None:
        """Closes everything but the log, which belongs to its directory."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.peers.close()
        for waiting in self._parked.values():
            waiting.cancel()
        self._parked.clear()
        self.log.snapshots.close()

    # Inputs

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """As leader, appends one batch; its last offset. NOT_CONTROLLER when this node does not lead."""
        if self._is_closed:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"node {self.node_id} is stopping")
        now_ms = self._environment.clock.now_ms()
        batch = new_batch(records, now_ms)
        try:
            last_offset = self._raft.append(batch, self.now_ms())
        except KafkaError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR and len(self.voters) > 1:
                _log.error("leader_resigns node=%d reason=%s", self.node_id, error)
                self.resign()  # another node may be able to write
            raise
        self._publication.appended(CommittedBatch(last_offset, self._raft.epoch, now_ms, len(batch), list(records)))
        self._follow()
        return last_offset

    def handle(
        self, step: "Callable[[Request, int], Result | Parked]", request: Request
    ) -> "Result | asyncio.Future[ParkedResponse]":
        """Gives a request to raft: the response, or a future of it. `step` is a method of `replica`."""
        result = self._step(lambda now_ms: step(request, now_ms))
        if not isinstance(result, Parked):
            self._follow()
            return result
        future: asyncio.Future[ParkedResponse] = self._environment.loop.create_future()
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

    def _step(self, step: Callable[[int], Result]) -> Result:
        """One input of raft. If a write fails, the input has no effect, and raft tries it again when it is due
        again."""
        try:
            return step(self.now_ms())
        except OSError as error:
            self._not_written(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.log.partition.directory}: {error}") from error
        except KafkaError as error:
            self._not_written(error)
            raise
        except CommittedLostError as error:
            self._fail(
                f"the quorum has lost metadata that was committed ({error}): another node was started with an empty or "
                "older data directory; restore the data directory of that node",
                error,
            )
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    def _not_written(self, error: OSError | KafkaError) -> None:
        log, raft = self.log, self._raft
        if log.partition.failure is not None:
            self._fail(_not_durable(log, log.partition.failure), error)
        elif isinstance(error, KafkaError) and error.code == ErrorCode.CORRUPT_MESSAGE:
            self._fail(unreadable(log.partition.directory, error.message).message, error)
        elif not self._is_starting:
            _log.error("quorum_not_written node=%d directory=%s error=%s", self.node_id, log.partition.directory, error)
            if raft.is_leader and log.end.epoch != raft.epoch:
                raft.resign(self.now_ms())  # the LeaderChange record of its epoch is missing

    def _from_loop(self, step: Callable[[int], None]) -> None:
        """An input of the event loop: errors are not raised, because there is no caller."""
        if self._is_closed:
            return
        try:
            self._run(step)
        except KafkaError:
            if self._is_starting:
                raise
            self._follow()
            self._arm(at_least_ms=_FAILURE_BACKOFF_MS)

    # Outputs

    def _follow(self) -> None:
        """Handles the outputs of raft, also those of appends that listeners make meanwhile."""
        if self._following:
            return
        self._following = True
        raft = self._raft
        try:
            while True:
                sends, happened = raft.drain_sends(), raft.drain_events()
                if not sends and not happened:
                    break
                for send in sends if not self._is_closed else ():
                    self.peers.send(send)
                for event in happened:
                    self._take(event)
        except Exception as error:
            self._cannot_follow(error)
        finally:
            self._following = False
        if not self._is_closed:
            self._flush_soon()
            self._arm()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a step of the publication that the loop calls."""
        if not self._is_closed:
            try:
                step()
            except Exception as error:
                self._cannot_follow(error)
            else:
                self._follow()

    def _cannot_follow(self, error: Exception) -> None:
        """An event was not handled: the metadata of this node would be wrong from here on."""
        if self._is_starting and isinstance(error, CorruptMetadataError):
            raise error
        if not isinstance(error, CorruptMetadataError | OSError):
            _log.exception("metadata_not_followed node=%d", self.node_id, exc_info=error)
        self._fail(unreadable(self.log.partition.directory, error).message, error)

    def _take(self, event: events.Event) -> None:
        publication = self._publication
        match event:
            case events.HighWatermarkAdvanced(offset):
                self._refused_by.clear()
                publication.advance(offset)
            case events.LeaderChanged(leader_id, epoch):
                _log.info("leader_changed node=%d leader=%s epoch=%d", self.node_id, leader_id, epoch)
                if leader_id is not None:
                    self._refused_by.clear()
                publication.leader_changed(leader_id, epoch)
            case events.BecameLeader(epoch, start_offset):
                _log.info("became_leader node=%d epoch=%d start_offset=%d", self.node_id, epoch, start_offset)
            case events.Leading(epoch, high_watermark):
                publication.leading(epoch, high_watermark)
            case events.LostLeadership(epoch):
                _log.info("lost_leadership node=%d epoch=%d", self.node_id, epoch)
                publication.no_longer_leading()
            case events.Truncated():
                publication.forget_appended()
            case events.SnapshotInstalled(snapshot):
                content, self.log.installed = self.log.installed, None
                assert content is not None
                publication.reset(snapshot, content)
            case events.VotersChanged(voters):
                _log.info("voters_changed node=%d voters=%s", self.node_id, ",".join(map(str, voters.ids)))
            case events.Responded(token, response):
                future = self._parked.pop(token, None)
                if future is not None and not future.done():
                    future.set_result(response)
            case events.Refused(error, by):
                self._refused(error, by)

    def _refused(self, error: ErrorCode, by: int) -> None:
        """The node that refuses may be wrong itself: only the leader, or most voters, can exclude this node."""
        raft = self._raft
        self._refused_by.add(by)
        if not raft.is_leader and (by == raft.leader_id or len(self._refused_by) > len(raft.voters) // 2):
            self._fail(self._refusal(error, by))
        else:
            _log.warning("refused node=%d by=%d error=%s", self.node_id, by, error.name)

    def _refusal(self, error: ErrorCode, by: int) -> str:
        if error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            # The id of a bootstrap server is not known.
            who, setting = (f"node {by}", "voters") if by >= 0 else ("a bootstrap server", "bootstrap.servers")
            return (
                f"{who} has another cluster id than this node's data directory ({self._cluster_id}): check "
                f"controller.quorum.{setting}, or start this node with an empty data directory"
            )
        return (
            f"node {by} leads a quorum in which another node has node.id={self.node_id}, or of other voters than "
            f"controller.quorum.voters names here ({', '.join(map(str, self.voters.ids))}): give each node its own "
            "node.id, and name the same voters on every node"
        )

    # Snapshots

    async def write_snapshot(self, image: MetadataImage) -> bool:
        """Writes the committed image as a snapshot, and removes old parts of the log; False if nothing was written."""
        raft, publication = self._raft, self._publication
        end_offset = image.offset + 1
        kraft_version = raft.kraft_version_at(end_offset)
        voters = raft.voters_at(end_offset) if kraft_version > 0 else None
        counted = publication.bytes_since_snapshot
        if not await self._snapshots.write(image, publication.last_record_ms, kraft_version, voters):
            return False
        publication.bytes_since_snapshot -= counted
        if not self._is_closed and self._snapshots.trim():
            raft.on_log_trimmed()
            self._follow()
        return True

    # The disk

    def _flush_soon(self) -> None:
        # At the end of this turn of the loop: one fsync serves all appends of the turn.
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
            self._fail(_not_durable(self.log, failure), failure)
            return
        self._from_loop(self._raft.on_flushed)

    # Time

    def _arm(self, at_least_ms: int = 0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = max(self._raft.next_deadline_ms - self.now_ms(), at_least_ms)
        delay_ms = min(wait_ms + 1, _MAX_WAIT_MS)  # not before the deadline
        self._timer = self._environment.loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._from_loop(self._raft.tick)

    # Failure

    def _fail(self, message: str, error: Exception | None = None) -> None:
        """Leaves the quorum and reports the reason, once."""
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
        except KafkaError as error:
            _log.error("quorum_not_left node=%d error=%s", self.node_id, error)
        self._on_fatal(self._failure)


def _not_durable(log: MetadataLog, failure: OSError | str) -> str:
    return (
        f"the metadata log in {log.partition.directory} cannot be brought to disk: {failure}; check the disk, then "
        "start this node again"
    )

"""The logs of branches on this node: made from the logs of their parents, before the replicas get their roles.

A replica of a branch is made from the replica of the parent on the same node, when the metadata has the new topic: in
the order of the metadata, so that a parent that is deleted later is still there. At a start it is made if the node is
in the ISR, or may be elected although it is not, because then others count on its records. Any other replica begins
empty and copies the leader, as always.

A topic may have thousands of partitions, so a turn of the event loop makes the links of a few of them. Those that wait
are made at once before the log of their parent is deleted.

Until the log is made the replica has no role, and clients are told to refresh their metadata.
"""

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import KafkaError
from millstream.formats.model.identifiers import TopicPartition
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage, PartitionState, TopicImage
from millstream.node.storage.disk import Job
from millstream.node.storage.log.branching import LogBranch
from millstream.node.storage.log.directories import LogDirectories
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.loader import read_topic_id
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.broker")
_RETRY_SECONDS = 1.0
_SEGMENTS_IN_A_TURN = 100


def _counted_on(state: PartitionState) -> tuple[int, ...]:
    """The replicas that may lead without a loss. After a crash the last one is not in the ISR any more."""
    return (*state.isr, *state.eligible_leader_replicas, *state.last_known_elr)


class BranchLogs:
    def __init__(
        self,
        logs: LogDirectories,
        environment: Environment,
        node_id: int,
        image: Callable[[], MetadataImage],
        config_of: Callable[[str], LogConfig],
    ) -> None:
        self._logs = logs
        self._environment = environment
        self._node_id = node_id
        self._image = image
        self._config_of = config_of
        self._making: dict[TopicPartition, UUID] = {}
        """The partitions whose logs are being made, with the ids of their topics."""
        self._waiting: dict[TopicPartition, list[tuple[TopicPartition, TopicImage]]] = {}
        """Branches of branches, by the partition of the parent whose log is being made."""
        self._queued: dict[tuple[UUID, int], list[tuple[TopicPartition, TopicImage]]] = {}
        """Those whose links are not made yet, by the topic id and the index of the parent."""
        self._segments = 0
        """How many segments were linked in this turn."""
        self.on_made: Callable[[TopicPartition], None] = lambda at: None
        """Called when a log is made, or cannot be: the replica may take its role."""
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def is_being_made(self, at: TopicPartition, topic_id: UUID) -> bool:
        return self._making.get(at) == topic_id

    def forget(self, at: TopicPartition, topic_id: UUID) -> None:
        """The replica was removed."""
        if self.is_being_made(at, topic_id):
            self._made(at)

    def _made(self, at: TopicPartition) -> None:
        """The log is made, or will not be: branches of it may follow."""
        del self._making[at]
        for branch, topic in self._waiting.pop(at, ()):
            if self.is_being_made(branch, topic.id):
                self._begin_again(branch, topic)

    def resume(self) -> None:
        """At the start, of the node or of a directory that had failed: finish the logs that were being made, and begin
        those that are missing. Called before the log of a deleted parent is set aside."""
        self._finish_found()
        for topic in self._image().topics.values():
            self._make(topic, is_new=False)

    def _finish_found(self) -> None:
        image = self._image()
        for directory in self._logs.online:
            for branch in list(directory.unfinished_branches):
                at = branch.partition
                topic, state = image.topics.get(at.topic), image.partition(at)
                topic_id = read_topic_id(self._logs.disk, branch.folder)
                is_wanted = (
                    topic is not None
                    and topic.id == topic_id
                    and state is not None
                    and self._node_id in state.replicas
                    and not self._has_log(at, topic_id)
                )
                if is_wanted:
                    if not self.is_being_made(at, topic_id):
                        self._making[at] = topic_id
                        self._finish(directory, branch, topic_id)
                else:
                    directory.unfinished_branches.remove(branch)
                    self._run(Job("remove_branch", partial(self._logs.disk.remove_directory, branch.folder)))

    def make(self, topic: TopicImage) -> None:
        """Begin to make the logs of a new branch that this node has replicas of."""
        self._make(topic, is_new=True)

    def parent_goes(self, parent: TopicPartition, parent_id: UUID) -> None:
        """Called before the log of a partition is deleted: its branches get their links now."""
        for at, topic in self._queued.pop((parent_id, parent.partition), ()):
            if self.is_being_made(at, topic.id):
                self._begin_again(at, topic)

    def _work_off(self) -> None:
        """Begin some of those that wait, and the others in later turns."""
        self._segments = 0
        while self._queued and self._segments < _SEGMENTS_IN_A_TURN and not self._is_closed:
            for at, topic in self._queued.pop(next(iter(self._queued))):
                if self.is_being_made(at, topic.id):
                    self._begin_again(at, topic)
        if self._queued and not self._is_closed:
            self._environment.loop.call_soon(self._work_off)

    def _make(self, topic: TopicImage, *, is_new: bool) -> None:
        if topic.branch is None:
            return
        was_idle = not self._queued
        for index, state in enumerate(topic.partitions[: len(topic.branch.offsets)]):
            at = TopicPartition(topic.name, index)
            is_wanted = self._node_id in (state.replicas if is_new else _counted_on(state))
            if not is_wanted or self.is_being_made(at, topic.id) or self._has_log(at, topic.id):
                continue
            if is_new:
                self._making[at] = topic.id
                self._queued.setdefault((topic.branch.parent_id, index), []).append((at, topic))
            else:
                self._begin(at, topic)
        if was_idle and self._queued:
            self._environment.loop.call_soon(self._work_off)

    def _has_log(self, at: TopicPartition, topic_id: UUID) -> bool:
        return self._logs.has(at) and self._logs.topic_id(at) == topic_id

    def _begin(self, at: TopicPartition, topic: TopicImage) -> None:
        assert topic.branch is not None
        parent = TopicPartition(topic.branch.parent, at.partition)
        self._making[at] = topic.id
        if self.is_being_made(parent, topic.branch.parent_id):
            self._waiting.setdefault(parent, []).append((at, topic))
            return
        try:
            log = self._parent_log(parent, topic.branch.parent_id)
            if log is None:
                self._made(at)  # the replica begins empty
                return
            directory, branch = self._logs.begin_branch(
                log, at, topic.id, topic.branch.offsets[at.partition], self._environment.clock.now_ms()
            )
            self._segments += len(log.segments)
        except (KafkaError, OSError) as error:
            self._again(at, topic.id, error, partial(self._begin_again, at, topic))
            return
        self._finish(directory, branch, topic.id)

    def _begin_again(self, at: TopicPartition, topic: TopicImage) -> None:
        self._begin(at, topic)
        if not self.is_being_made(at, topic.id):  # the parent is gone
            self.on_made(at)

    def _parent_log(self, parent: TopicPartition, parent_id: UUID) -> PartitionLog | None:
        if not self._logs.has(parent) or self._logs.topic_id(parent) != parent_id:
            return None
        return self._logs.open(parent, self._config_of(parent.topic), self._environment.clock.now_ms())

    def _finish(self, directory: LogDirectory, branch: LogBranch, topic_id: UUID) -> None:
        job = branch.finish(self._logs.disk)

        def finished(failure: OSError | None) -> None:
            at = branch.partition
            if self._is_closed:
                return  # the next start finishes it
            if not self.is_being_made(at, topic_id):
                self._run(Job("remove_branch", partial(self._logs.disk.remove_directory, branch.folder)))
                return
            if directory not in self._logs.online:  # it has failed: `resume` follows when it is used again
                self._made(at)
                self.on_made(at)
                return
            try:
                if failure is not None:
                    raise failure
                if self._logs.has(at):  # of a deleted topic of the same name
                    self._logs.set_aside(at)
                directory.take_branch(branch)
            except (KafkaError, OSError) as error:
                self._again(at, topic_id, error, partial(self._finish, directory, branch, topic_id))
                return
            _log.info("branch_made partition=%s offset=%d", at, branch.file.offset)
            self._made(at)
            self.on_made(at)

        future = self._environment.offload(job.run)
        future.add_done_callback(lambda done: finished(done.result()))

    def _again(self, at: TopicPartition, topic_id: UUID, error: Exception, action: Callable[[], None]) -> None:
        _log.error("branch_not_made partition=%s retry_s=%.0f error=%s", at, _RETRY_SECONDS, error)

        def again() -> None:
            if not self._is_closed and self.is_being_made(at, topic_id):
                action()

        self._environment.loop.call_later(_RETRY_SECONDS, again)

    def _run(self, job: Job) -> None:
        future = self._environment.offload(job.run)
        future.add_done_callback(lambda done: job.done(done.result()))

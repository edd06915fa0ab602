"""Roles from the metadata: which partitions this node holds, which it leads, and which leader it follows in the others.

Keeps the partition table up to date with the metadata image, and the fetchers with the table. A log of which this node
no longer has a replica is deleted; a log that belongs to no known topic is set aside.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.table.cluster import CORDONED_LOG_DIRS
from millstream.config.topic_config import LogConfig, resolve_log_config, topic_defaults
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, TopicPartition
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta, MetadataImage, PartitionState, ResourceType, TopicImage
from millstream.node.metadata.records import UNASSIGNED_DIRECTORY
from millstream.node.metadata.topic_names import INTERNAL_TOPICS
from millstream.node.replicas.branches import BranchLogs
from millstream.node.replicas.local_partition import NO_LEADER, Replicas, Role
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.storage.disk import Job
from millstream.node.storage.log.branching import begin_empty
from millstream.node.storage.log.directories import LogDirectories
from millstream.node.storage.log.partition_log import PartitionLog

_log = logging.getLogger("millstream.broker")


class Metadata(Protocol):
    """The metadata and the settings of the broker."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def config(self) -> BrokerConfig: ...


class Fetchers(Protocol):
    """The fetchers of this node."""

    def follow(self, partition: Partition) -> None:
        """Another broker leads the partition, or a new one does."""
        ...

    def stop(self, partition: Partition) -> None: ...


class Assignments(Protocol):
    """The controller's knowledge of the log directories of this node's replicas."""

    def assign(self, topic_id: UUID, partition: int, directory: UUID) -> object: ...


class ReplicaRoles:
    def __init__(
        self,
        metadata: Metadata,
        logs: LogDirectories,
        environment: Environment,
        replicas: Replicas,
        fetchers: Fetchers,
        assignments: Assignments,
        *,
        other_logs: Iterable[TopicPartition] = (),
    ) -> None:
        """`other_logs`: logs in the directory that are no partitions, such as the metadata log."""
        self.partitions = PartitionTable()
        self._metadata = metadata
        self._logs = logs
        self._environment = environment
        self._replicas = replicas
        self._fetchers = fetchers
        self._assignments = assignments
        self.moving_to: dict[TopicPartition, UUID] = {}
        """The directories that the controller has for replicas that are about to be there (`directory_moves`)."""
        self.on_released: Callable[[TopicPartition], None] = lambda at: None
        """Called before the log of a partition is deleted."""
        self._not_ours = frozenset(other_logs)
        self._log_defaults = topic_defaults(metadata.config)
        self.on_opened: Callable[[PartitionLog], None] = lambda log: None
        self._branches = BranchLogs(logs, environment, replicas.node_id, lambda: metadata.image, self._config_of)
        self._branches.on_made = self._branch_made

    def begin(self) -> None:
        """Takes the roles that the metadata image has for this node; called once, when the image is up to date."""
        self._log_defaults = topic_defaults(self._metadata.config)
        self._settle_duplicates()
        self._branches.resume()
        self._set_strays_aside()
        for topic in self._metadata.image.topics.values():
            self._take_roles(topic)

    def follow(self, delta: MetadataDelta) -> None:
        for topic in delta.created.values():
            if topic.branch is not None and topic.branch.parent_id in delta.deleted:
                self._branches.make(topic)
        for topic in delta.deleted.values():
            self._drop_topic(topic)
        for topic in delta.created.values():
            self._branches.make(topic)
        # Before roles: an epoch of a mirror topic that was promoted begins at its end.
        self._follow_settings(delta)
        for topic in (*delta.created.values(), *delta.changed.values()):
            self._take_roles(topic)
        if delta.brokers:
            # A broker that came back may join the in-sync replicas; a fenced one is not waited for.
            for partition in self.partitions:
                if partition.is_leader:
                    partition.check_in_sync_set()

    def close(self) -> None:
        """Ends all roles."""
        self._branches.close()
        for partition in self.partitions:
            self._fetchers.stop(partition)
            partition.go_offline()

    # Roles

    def _take_roles(self, topic: TopicImage) -> None:
        known = self.partitions.by_name.get(topic.name.encode(), {})
        for index, state in enumerate(topic.partitions):
            partition = known.get(index)
            if partition is not None and partition.state is state:
                continue  # images share unchanged parts
            if self._replicas.node_id not in state.replicas:
                if partition is not None:
                    self._drop(partition)
                continue
            if partition is None:
                partition = self._new_partition(TopicPartition(topic.name, index), topic)
                self.partitions.add(partition)
            try:
                self._take_role(partition, state)
            except (KafkaError, OSError) as error:
                _log.error("role_not_taken partition=%s error=%s", partition.topic_partition, error)

    def _branch_made(self, at: TopicPartition) -> None:
        """The log of a branch is there: the replica takes the role that it has by now."""
        partition = self.partitions.by_name.get(at.topic.encode(), {}).get(at.partition)
        state = self._metadata.image.partition(at)
        if partition is None or state is None or partition.role is not Role.OFFLINE:
            return
        try:
            self._take_role(partition, state)
        except (KafkaError, OSError) as error:
            _log.error("role_not_taken partition=%s error=%s", at, error)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        if self._branches.is_being_made(partition.topic_partition, partition.topic_id):
            return
        if not self._find_home(partition, state):
            self._fetchers.stop(partition)
            partition.set_log_offline(state)
            return
        before = partition.role, partition.leader_id, partition.leader_epoch
        if state.leader == self._replicas.node_id:
            if partition.role is Role.FOLLOWER:
                self._fetchers.stop(partition)
            partition.become_leader(state)
            return
        partition.become_follower(state)
        if (partition.role, partition.leader_id, partition.leader_epoch) != before:
            if state.leader == NO_LEADER:
                self._fetchers.stop(partition)
            else:
                self._fetchers.follow(partition)

    def _find_home(self, partition: Partition, state: PartitionState) -> bool:
        """Whether the log directory of the replica is online. The controller is told if it has another one."""
        at, node_id = partition.topic_partition, self._replicas.node_id
        assigned = state.directory_of(node_id)
        home = self._logs.home(at, assigned, self._metadata.config[CORDONED_LOG_DIRS])
        if home is None:
            return False
        if len(self._logs.data) > 1 and self.moving_to.get(at, home.id) != assigned:
            self._assignments.assign(partition.topic_id, at.partition, self.moving_to.get(at, home.id))
        return True

    def directory_failed(self, lost: Iterable[TopicPartition], directory_id: UUID) -> None:
        """Takes the replicas in a log directory offline."""
        for at in sorted(lost):
            partition = self.partitions.by_name.get(at.topic.encode(), {}).get(at.partition)
            if partition is None:
                continue
            state = self._metadata.image.partition(at)
            self._fetchers.stop(partition)
            partition.set_log_offline(state)
            if state is not None and state.directory_of(self._replicas.node_id) != directory_id:
                # The controller takes only those replicas offline that it knows in this directory.
                self._assignments.assign(partition.topic_id, at.partition, directory_id)

    def is_lost_in(self, at: TopicPartition, directory_id: UUID) -> bool:
        """Whether the replica is offline, and the controller has it in this directory."""
        partition = self.partitions.by_name.get(at.topic.encode(), {}).get(at.partition)
        state = self._metadata.image.partition(at)
        is_there = state is not None and state.directory_of(self._replicas.node_id) == directory_id
        return is_there and partition is not None and partition.is_log_offline

    def directory_returned(self) -> None:
        """Takes up the replicas in a log directory that works again, as after a start: nothing that was known of their
        logs counts any more."""
        self._branches.resume()
        self._set_strays_aside()
        image = self._metadata.image
        for lost in [each for each in self.partitions if each.is_log_offline]:
            at = lost.topic_partition
            state, topic = image.partition(at), image.topics.get(at.topic)
            if state is None or topic is None or self._replicas.node_id not in state.replicas:
                continue
            partition = self._new_partition(at, topic)
            try:
                self._take_role(partition, state)
            except (KafkaError, OSError) as error:
                _log.error("role_not_taken partition=%s error=%s", at, error)
            if not partition.is_log_offline:
                self.partitions.add(partition)

    def _new_partition(self, at: TopicPartition, topic: TopicImage) -> Partition:
        partition = Partition(at, topic.id, partial(self._open_log, at, topic), self._environment, self._replicas)
        partition.follow_config(self._config_of(topic.name))
        return partition

    def _drop_topic(self, topic: TopicImage) -> None:
        for partition in self.partitions.remove_topic(topic.name, topic.id):
            self._release(partition)

    def _drop(self, partition: Partition) -> None:
        _log.info("replica_removed partition=%s", partition.topic_partition)
        self.partitions.remove(partition)
        self._release(partition)

    def _release(self, partition: Partition) -> None:
        self._fetchers.stop(partition)
        partition.go_offline()
        self._branches.parent_goes(partition.topic_partition, partition.topic_id)
        self._branches.forget(partition.topic_partition, partition.topic_id)
        self.on_released(partition.topic_partition)
        self._logs.forget_lost(partition.topic_partition)
        if self._logs.has(partition.topic_partition):
            try:
                self._run(self._logs.delete(partition.topic_partition))
            except KafkaError as error:
                # Its files are a stray log at the next start.
                _log.error("log_not_deleted partition=%s error=%s", partition.topic_partition, error)

    # Logs

    def _open_log(self, at: TopicPartition, topic: TopicImage) -> PartitionLog:
        if self._branches.is_being_made(at, topic.id):
            # A log that was created now would be empty, and the one with the links would be put in its place.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the branch {at} is being made: try again")
        log = self._open_or_create(at, topic)
        if log.high_watermark is None:
            self._logs.restore_high_watermark(log)
        self.on_opened(log)
        return log

    def _open_or_create(self, at: TopicPartition, topic: TopicImage) -> PartitionLog:
        config = self._config_of(topic.name)
        now_ms = self._environment.clock.now_ms()
        if self._logs.has(at):
            log = self._logs.open(at, config, now_ms)
            if log.topic_id == NO_TOPIC_ID and not self._is_led_elsewhere(at):
                self._logs.adopt(at, topic.id)
            if log.topic_id == topic.id:
                return log
            # The log is of a deleted topic of the same name. Or the file with its topic id is damaged: then the leader
            # has all records.
            self._logs.set_aside(at)
        state = self._metadata.image.partition(at)
        assigned = UNASSIGNED_DIRECTORY if state is None else state.directory_of(self._replicas.node_id)
        log = self._logs.create(at, topic.id, config, now_ms, assigned)
        if topic.branch is not None and at.partition < len(topic.branch.offsets):
            leads = state is not None and state.leader == self._replicas.node_id
            begin_empty(log, topic.branch.offsets[at.partition], now_ms, leads=leads)
        return log

    def _is_led_elsewhere(self, at: TopicPartition) -> bool:
        state = self._metadata.image.partition(at)
        return state is not None and state.leader not in (NO_LEADER, self._replicas.node_id)

    def _config_of(self, topic: str) -> LogConfig:
        config = resolve_log_config(self._log_defaults, self._metadata.image.topic_config(topic))
        if config.remote_storage_enable and topic in INTERNAL_TOPICS:
            # As in Kafka. Coordinators read these logs from their start, on the disk.
            return replace(config, remote_storage_enable=False)
        return config

    def min_in_sync(self, topic: str) -> int:
        """The topic's `min.insync.replicas`."""
        return self._config_of(topic).min_insync_replicas

    def log_config(self, at: TopicPartition) -> LogConfig | None:
        """The settings of a log on this disk; None if it belongs to no known topic."""
        topic = self._metadata.image.topics.get(at.topic)
        if topic is None or self._logs.topic_id(at) not in (topic.id, NO_TOPIC_ID):
            return None
        return self._config_of(at.topic)

    def _follow_settings(self, delta: MetadataDelta) -> None:
        if any(resource.type == ResourceType.BROKER for resource in delta.configs):
            self._log_defaults = topic_defaults(self._metadata.config)
            changed = [name.decode() for name in self.partitions.by_name]
        else:
            changed = sorted(resource.name for resource in delta.configs if resource.type == ResourceType.TOPIC)
        for name in changed:
            config = self._config_of(name)
            for partition in self.partitions.by_name.get(name.encode(), {}).values():
                log = self._logs.loaded_log(partition.topic_partition)  # maintenance opens logs too
                if log is not None:
                    log.config = config
                partition.follow_config(config)
                if partition.is_leader:
                    partition.check_in_sync_set()

    def _settle_duplicates(self) -> None:
        """Of a log that several directories have, the one that the controller knows counts; others are set aside."""
        for at, places in sorted(self._logs.duplicates().items()):
            state = self._metadata.image.partition(at)
            assigned = None if state is None else state.directory_of(self._replicas.node_id)
            kept = next((each for each in places if each.id == assigned), places[0])
            for each in places:
                if each is not kept:
                    _log.warning("log_in_two_directories partition=%s kept=%s", at, kept.root)
                    each.set_aside(at)

    def _set_strays_aside(self) -> None:
        """Sets aside logs that are not in the metadata, for example after a crash during their deletion."""
        for at in sorted(self._logs.partitions - self._not_ours):
            try:
                if self._is_stray(at):
                    self._logs.set_aside(at)
            except (KafkaError, OSError) as error:
                _log.error("stray_log_not_set_aside partition=%s error=%s", at, error)

    def _is_stray(self, at: TopicPartition) -> bool:
        state = self._metadata.image.partition(at)
        if state is None or self._replicas.node_id not in state.replicas:
            return True
        # After a clean stop the topic ids are checked when the logs are opened, so that the start reads fewer files.
        topic = self._metadata.image.topics[at.topic]
        return not self._logs.started_clean and self._logs.topic_id(at) not in (topic.id, NO_TOPIC_ID)

    def _run(self, job: Job) -> None:
        future = self._environment.offload(job.run)
        future.add_done_callback(lambda done: job.done(done.result()))

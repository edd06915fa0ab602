"""The broker as a whole: the partitions it leads, kept as the metadata says, and the table of APIs it answers."""

import logging
from functools import partial

from millstream.api.api_versions import ApiVersions
from millstream.api.dispatch import Dispatcher
from millstream.api.request import Api, Handler, api
from millstream.broker.cluster_view import ClusterView
from millstream.broker.controller import Controller
from millstream.broker.controller_link import ControllerLink
from millstream.broker.forwarding import Forwarding
from millstream.broker.group_coordinator import GroupCoordinator
from millstream.broker.handlers.classic_groups import ClassicGroupHandlers
from millstream.broker.handlers.cluster import ClusterHandlers
from millstream.broker.handlers.configs import ConfigHandlers
from millstream.broker.handlers.consumer_groups import ConsumerGroupHandlers
from millstream.broker.handlers.fetch import FetchHandler
from millstream.broker.handlers.group_admin import GroupAdminHandlers
from millstream.broker.handlers.log_dirs import LogDirHandlers
from millstream.broker.handlers.offset_commits import OffsetCommitHandlers
from millstream.broker.handlers.offsets import OffsetHandlers
from millstream.broker.handlers.produce import ProduceHandler
from millstream.broker.handlers.producer_ids import ProducerIdHandlers
from millstream.broker.handlers.share_fetch import ShareFetchHandlers
from millstream.broker.handlers.share_groups import ShareGroupHandlers
from millstream.broker.handlers.share_state import ShareStateHandlers
from millstream.broker.hot_keys import HotKeys
from millstream.broker.metadata_log import METADATA_PARTITION
from millstream.broker.partition import Partition
from millstream.broker.partition_table import PartitionTable
from millstream.broker.share_coordinator import ShareCoordinator
from millstream.broker.share_partitions import SharePartitions
from millstream.broker.topic_creation import TopicCreator
from millstream.config.log_config import LogConfig
from millstream.config.table import network, node, share
from millstream.config.topic_config import resolve_log_config, topic_defaults
from millstream.environment import Environment
from millstream.metadata.brokers import SUPPORTED_FEATURES
from millstream.metadata.image import MetadataDelta, ResourceType, TopicImage
from millstream.model.errors import KafkaError
from millstream.model.identifiers import NO_TOPIC_ID, TopicPartition
from millstream.protocol import fetch as fetch_codec
from millstream.protocol import produce as produce_codec
from millstream.storage.job import Job
from millstream.storage.log_directory import LogDirectory
from millstream.storage.partition_log import PartitionLog

_log = logging.getLogger("millstream.broker")


class Broker:
    def __init__(
        self,
        view: ClusterView,
        link: ControllerLink,
        controller: Controller,
        logs: LogDirectory,
        environment: Environment,
    ) -> None:
        self.view = view
        self.link = link
        self.controller = controller
        self._logs = logs
        self._environment = environment
        self._log_defaults = topic_defaults(controller.config)
        self.partitions = PartitionTable()
        self._set_strays_aside()
        for topic in controller.image.topics.values():
            self._lead(topic)
        self.groups = GroupCoordinator(controller, self.partitions, environment)
        self.share_coordinator = ShareCoordinator(controller, self.partitions, environment)
        self.shared = SharePartitions(controller, self.partitions, self.share_coordinator, self.groups, environment)
        self.groups.on_share_state_gone = self.shared.state_gone
        self.hot_keys = HotKeys(controller, self.partitions, environment)
        view.subscribe(self._follow)
        self.apis = self._make_apis()
        self.dispatcher = self._make_dispatcher()
        self.groups.start()

    # Following the metadata

    def _follow(self, delta: MetadataDelta) -> None:
        for topic in delta.deleted.values():
            self._drop(topic)
        for topic in (*delta.created.values(), *delta.changed.values()):
            self._lead(topic)
        if any(resource.type == ResourceType.BROKER for resource in delta.configs):
            self._log_defaults = topic_defaults(self.controller.config)
            changed = {partition.topic_partition.topic for partition in self.partitions}
        else:
            changed = {r.name for r in delta.configs if r.type == ResourceType.TOPIC}  # type: ignore[misc]
        for name in changed:
            config = resolve_log_config(self._log_defaults, self.controller.image.topic_config(name))
            for partition in self.partitions.by_name.get(name.encode(), {}).values():
                log = self._logs.loaded_log(partition.topic_partition)  # maintenance opens logs too
                if log is not None:
                    log.config = config
        self.groups.follow(delta)
        self.hot_keys.follow(delta)
        self.share_coordinator.follow(delta)
        self.shared.follow(delta)

    def _lead(self, topic: TopicImage) -> None:
        node_id = self.controller.config.node_id
        known = self.partitions.by_name.get(topic.name.encode(), {})
        for index, state in enumerate(topic.partitions):
            if state.leader != node_id:
                continue
            if index in known:
                known[index].leader_epoch = state.leader_epoch
                known[index].in_sync_count = len(state.isr)
                continue
            at = TopicPartition(topic.name, index)
            open_log = partial(self._open_log, at, topic)
            self.partitions.add(Partition(at, topic.id, state.leader_epoch, open_log, self._environment))

    def _open_log(self, at: TopicPartition, topic: TopicImage) -> PartitionLog:
        log = self._open_or_create(at, topic)
        self.hot_keys.opened(log)
        return log

    def _open_or_create(self, at: TopicPartition, topic: TopicImage) -> PartitionLog:
        config = resolve_log_config(self._log_defaults, self.controller.image.topic_config(topic.name))
        now_ms = self._environment.clock.now_ms()
        if at in self._logs.partitions:
            log = self._logs.open(at, config, now_ms)
            if log.topic_id == NO_TOPIC_ID:
                self._logs.adopt(at, topic.id)
            if log.topic_id == topic.id:
                return log
            # A topic of the same name that was deleted while this node was down, or died in the middle of doing so.
            self._logs.set_aside(at)
        return self._logs.create(at, topic.id, config, now_ms)

    def _set_strays_aside(self) -> None:
        """Logs of topics that were deleted, where a crash came between the decision and the deed."""
        for at in sorted(self._logs.partitions - {METADATA_PARTITION}):
            try:
                if self._is_stray(at):
                    self._logs.set_aside(at)
            except (KafkaError, OSError) as error:
                _log.error("stray_log_not_set_aside partition=%s error=%s", at, error)

    def _is_stray(self, at: TopicPartition) -> bool:
        topic = self.controller.image.topics.get(at.topic)
        if topic is None or at.partition >= len(topic.partitions):
            return True
        # After a clean stop the ids are looked at when the logs are opened: ten thousand files need not be read now.
        return not self._logs.started_clean and self._logs.topic_id(at) not in (topic.id, NO_TOPIC_ID)

    def _drop(self, topic: TopicImage) -> None:
        for partition in self.partitions.remove_topic(topic.name, topic.id):
            if partition.topic_partition in self._logs.partitions:
                self._run(self._logs.delete(partition.topic_partition))
            partition.wake_all()

    def close(self) -> None:
        """Before the logs are closed: coordinators write nothing more."""
        self.groups.close()
        self.shared.close()
        self.share_coordinator.close()

    # What goes on in the background

    def maintain(self) -> None:
        """Retention, rolling by time, flushing by time, checkpoints: called now and then."""
        for job in self._logs.maintenance(self._environment.clock.now_ms(), self._log_config):
            self._run(job)
        self.hot_keys.tick()

    def _checkpoint(self) -> None:
        job = self._logs.checkpoint_job(self._environment.clock.now_ms())
        if job is not None:
            self._run(job)

    def _log_config(self, at: TopicPartition) -> LogConfig | None:
        """The settings of a log on our disk; None if it belongs to no topic that is known."""
        topic = self.controller.image.topics.get(at.topic)
        if topic is None or self._logs.topic_id(at) not in (topic.id, NO_TOPIC_ID):
            return None
        return resolve_log_config(self._log_defaults, self.controller.image.topic_config(at.topic))

    def _run(self, job: Job) -> None:
        future = self._environment.offload(job.run)
        future.add_done_callback(lambda done: job.done(done.result()))

    # APIs

    def _make_apis(self) -> list[Api]:
        controller, environment, partitions = self.controller, self._environment, self.partitions
        view = self.view
        topics = TopicCreator(self.link)
        configs = ConfigHandlers(view)
        offsets = OffsetHandlers(partitions, environment, self._checkpoint)
        cluster = ClusterHandlers(
            view.node_id,
            lambda: view.image,
            topics.create_with_defaults,
            lambda: controller.config[node.AUTO_CREATE_TOPICS_ENABLE],
            controller.config[network.MAX_REQUEST_PARTITION_SIZE_LIMIT],
            self.groups.ensure_topic,
            self.share_coordinator.ensure_topic,
        )
        commits = OffsetCommitHandlers(self.groups)
        classic = ClassicGroupHandlers(self.groups)
        consumer = ConsumerGroupHandlers(self.groups)
        group_admin = GroupAdminHandlers(self.groups)
        log_dirs = LogDirHandlers(partitions, environment, controller.config.data_dir)
        producer_ids = ProducerIdHandlers(self.link, view.node_id, lambda: view.image.brokers[view.node_id].epoch)
        share_groups = ShareGroupHandlers(self.groups, self.share_coordinator, self.shared, partitions)
        share_state = ShareStateHandlers(self.share_coordinator)
        share_fetch = ShareFetchHandlers(
            self.shared,
            environment,
            controller.config.node_id,
            session_slots=controller.config[share.GROUP_SHARE_MAX_SHARE_SESSIONS],
            max_bytes=controller.config[network.FETCH_MAX_BYTES],
        )
        handlers: dict[str, Handler] = {
            "list_offsets": offsets.list_offsets,
            "metadata": cluster.metadata,
            "offset_commit": commits.offset_commit,
            "offset_fetch": commits.offset_fetch,
            "find_coordinator": cluster.find_coordinator,
            "join_group": classic.join_group,
            "heartbeat": classic.heartbeat,
            "leave_group": classic.leave_group,
            "sync_group": classic.sync_group,
            "describe_groups": group_admin.describe_groups,
            "list_groups": group_admin.list_groups,
            "delete_records": offsets.delete_records,
            "init_producer_id": producer_ids.init_producer_id,
            "offset_for_leader_epoch": offsets.offset_for_leader_epoch,
            "describe_configs": configs.describe_configs,
            "describe_log_dirs": log_dirs.describe_log_dirs,
            "delete_groups": group_admin.delete_groups,
            "offset_delete": commits.offset_delete,
            "describe_cluster": cluster.describe_cluster,
            "consumer_group_heartbeat": consumer.consumer_group_heartbeat,
            "consumer_group_describe": consumer.consumer_group_describe,
            "describe_topic_partitions": cluster.describe_topic_partitions,
            "list_config_resources": configs.list_config_resources,
            "share_group_heartbeat": share_groups.share_group_heartbeat,
            "share_group_describe": share_groups.share_group_describe,
            "share_fetch": share_fetch.share_fetch,
            "share_acknowledge": share_fetch.share_acknowledge,
            "initialize_share_group_state": share_state.initialize_share_group_state,
            "read_share_group_state": share_state.read_share_group_state,
            "write_share_group_state": share_state.write_share_group_state,
            "delete_share_group_state": share_state.delete_share_group_state,
            "read_share_group_state_summary": share_state.read_share_group_state_summary,
            "describe_share_group_offsets": share_groups.describe_share_group_offsets,
            "alter_share_group_offsets": share_groups.alter_share_group_offsets,
            "delete_share_group_offsets": share_groups.delete_share_group_offsets,
        }
        apis = [
            Api(0, "produce", produce_codec.FIRST_VERSION, produce_codec.LAST_VERSION),
            Api(1, "fetch", fetch_codec.FIRST_VERSION, fetch_codec.LAST_VERSION),
        ]
        apis += [api(name, handler) for name, handler in handlers.items()]
        apis += Forwarding(self.link).table()
        versions = api("api_versions", lambda request, context: api_versions.handle(request, context))
        apis.append(versions)
        api_versions = ApiVersions(apis, self._features)
        return apis

    def _features(self) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
        image = self.controller.image
        supported = {f.name: (f.min_supported_version, f.max_supported_version) for f in SUPPORTED_FEATURES}
        return supported, dict(image.features), image.offset

    def _make_dispatcher(self) -> Dispatcher:
        config = self.controller.config
        fetch = FetchHandler(
            self.partitions,
            self._environment,
            session_slots=config[network.MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS],
            max_bytes=config[network.FETCH_MAX_BYTES],
        )
        produce = ProduceHandler(self.partitions, self._environment)
        return Dispatcher(self.apis, self._environment.loop, produce=produce, fetch=fetch)

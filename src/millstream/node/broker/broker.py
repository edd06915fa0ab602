"""The broker: the services of a node, composed, and its table of APIs."""

import asyncio
import logging
from collections.abc import Callable

from millstream.config.table import log as log_settings
from millstream.config.table import network, node, quotas, sasl, share, tier, transactions
from millstream.config.table.cluster import CORDONED_LOG_DIRS
from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.formats.protocol import fetch as fetch_codec
from millstream.formats.protocol import produce as produce_codec
from millstream.formats.records.opening import OpeningLimits
from millstream.node.broker.audit_topic import AuditTopic
from millstream.node.broker.cluster_apis import ClusterHandlers
from millstream.node.client_metrics.client_metrics import ClientMetrics
from millstream.node.cluster.broker_proof import listener_rules
from millstream.node.cluster.cluster_view import BrokerChannels, ClusterView
from millstream.node.cluster.controller_link import ControllerLink, Forwarding
from millstream.node.cluster.topic_creation import AutomaticTopicCreation, InternalTopics
from millstream.node.consensus.quorum.metadata_log import METADATA_PARTITION
from millstream.node.controller.acl_handlers import DescribeAclsHandlers
from millstream.node.controller.cluster_handlers import features_for_api_versions
from millstream.node.controller.config_handlers import DescribeConfigsHandlers
from millstream.node.controller.quota_handlers import DescribeQuotasHandlers
from millstream.node.coordination.core.state_machine import KnownEpochs
from millstream.node.data.batch_opening import BatchOpening
from millstream.node.data.fetch import FetchHandler
from millstream.node.data.internal_client import InternalProducer, OffsetLookup
from millstream.node.data.log_dirs import LogDirHandlers
from millstream.node.data.offsets import OffsetHandlers
from millstream.node.data.produce import ProduceHandler
from millstream.node.data.schema_validation import RegisteredSchemas, SchemaGuard
from millstream.node.environment import Environment
from millstream.node.groups.coordinator import GroupCoordinator
from millstream.node.groups.handlers import (
    ClassicGroupHandlers,
    CommittedOffsetHandlers,
    ConsumerGroupHandlers,
    GroupAdminHandlers,
    TransactionalOffsets,
)
from millstream.node.groups.lag import GroupLag
from millstream.node.groups.streams import StreamsGroupHandlers, StreamsTopics
from millstream.node.hot_keys.hot_keys import HotKeys
from millstream.node.metadata.features import streams_groups_enabled, supported_features
from millstream.node.metadata.image import MetadataDelta
from millstream.node.mirror.cluster_access import ClusterAccess
from millstream.node.mirror.mirroring import Mirroring
from millstream.node.queues.coordinator import ShareCoordinator
from millstream.node.queues.dead_letters import DeadLetters
from millstream.node.queues.fetch import ShareFetchHandlers
from millstream.node.queues.handlers import ShareGroupHandlers, ShareStateHandlers
from millstream.node.queues.partitions import SharePartitions
from millstream.node.queues.persister import ShareGroupStates, SharePersister
from millstream.node.quotas.client_quotas import ClientQuotas
from millstream.node.quotas.connection_rates import ConnectionRates
from millstream.node.replicas.directory_moves import DirectoryMoves
from millstream.node.replicas.manager import ReplicaManager
from millstream.node.security.api_checks import guarded
from millstream.node.security.authorizer import StandardAuthorizer, or_none
from millstream.node.security.data_rights import DataRights
from millstream.node.security.guards import Checks
from millstream.node.security.identity_apis import IdentityHandlers
from millstream.node.security.sasl_server import sasl_apis
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.request import Api, ApiVersions, Handler, api
from millstream.node.server.service import Peer
from millstream.node.storage.cleaner.log_cleaner import LogCleaner
from millstream.node.storage.cleaner.plan import cleaner_settings
from millstream.node.storage.directory_health import DirectoryFailure
from millstream.node.storage.disk import Job
from millstream.node.storage.log.directories import LogDirectories
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.node.storage.opening_limits import opening_limits
from millstream.node.tier.event_topic import TierEvents
from millstream.node.tier.manager import TierManager
from millstream.node.transactions.coordinator import ProducerIds, TransactionCoordinator
from millstream.node.transactions.handlers import (
    ProducerHandlers,
    ProducerIdHandlers,
    TransactionHandlers,
    TxnMarkerHandlers,
)
from millstream.node.transactions.markers import MarkerWriter, TransactionMarkers
from millstream.node.transactions.produce import TransactionalProduce
from millstream.node.transactions.verification import TransactionVerification

_log = logging.getLogger("millstream.broker")


class Broker:
    def __init__(
        self,
        view: ClusterView,
        link: ControllerLink,
        logs: LogDirectories,
        environment: Environment,
        *,
        kraft_version: Callable[[], int],
        has_lost_controller: Callable[[], bool] = lambda: False,
        authorizer: StandardAuthorizer | None = None,
    ) -> None:
        """`has_lost_controller` returns whether the controller cannot be reached, so that this node may be fenced."""
        self.view = view
        self.authorizer = or_none(authorizer)
        self._rights = DataRights(authorizer, lambda: view.image) if authorizer is not None else None
        self._checks = Checks(authorizer, lambda: view.image) if authorizer is not None else None
        self._rules = listener_rules(view.config, self.authorizer, lambda: view.image)
        self._kraft_version = kraft_version
        self.link = link
        self.logs = logs
        self._environment = environment
        self.replicas = ReplicaManager(
            view,
            link,
            logs,
            environment,
            broker_epoch=lambda: view.broker_epoch,
            other_logs=(METADATA_PARTITION,),
            has_lost_controller=has_lost_controller,
        )
        self.partitions = self.replicas.partitions
        self.replicas.begin()
        self.peers = self._new_peers()
        # Coordinators hold verification requests until markers are written. Markers and verifications have their own
        # connections, so that they do not wait for each other and other requests do not wait for them.
        self._marker_peers, self._verification_peers = self._new_peers(), self._new_peers()
        internal_topics = InternalTopics(view, link, environment)
        internal_producer = InternalProducer(view, self.partitions, self.peers, environment)
        self.groups = GroupCoordinator(view, self.partitions, internal_topics, environment)
        self.streams_topics = StreamsTopics(internal_topics, environment)
        self.share_coordinator = ShareCoordinator(view, self.partitions, internal_topics, environment)
        self.share_persister = SharePersister(view, self.share_coordinator, self.peers, environment)
        dead_letters = DeadLetters(view, internal_topics, internal_producer, environment)
        self.shared = SharePartitions(view, self.partitions, self.share_persister, dead_letters, environment)
        self.share_states = ShareGroupStates(self.share_persister, self.groups, self.shared.reset, environment)
        self.audit_topic = AuditTopic(view, internal_topics, internal_producer, environment)
        self.client_metrics = ClientMetrics(view, internal_topics, internal_producer, environment)
        self.hot_keys = HotKeys(view, self.partitions, internal_topics, internal_producer, environment)
        self.cleaner = LogCleaner(
            logs,
            lambda: cleaner_settings(view.config),
            offload=environment.offload,
            loop=environment.loop,
            now_ms=environment.clock.now_ms,
            yield_interpreter=environment.yield_interpreter,
        )
        offset_lookup = OffsetLookup(view, self.partitions, self.peers)
        self.mirroring = Mirroring(
            ClusterAccess(view, link, self.peers, offset_lookup, self.groups),
            self.partitions,
            internal_topics,
            internal_producer,
            environment,
        )
        self.moves = DirectoryMoves(
            logs, self.replicas.roles, self.replicas.assignments, self.cleaner, environment, lambda: view.config
        )
        tier_events = TierEvents(lambda: view.config, internal_topics, internal_producer, environment)
        self.tier = TierManager(view, self.partitions, environment, logs.disk, logs.metadata.root, tier_events)
        self.replicas.roles.on_opened = self._log_opened
        self.replicas.tier_start = self.tier.start_of
        self.marker_writer = MarkerWriter(self.partitions, self.groups, environment)
        self.producer_ids = ProducerIds(link, view.node_id, lambda: view.broker_epoch)
        markers = TransactionMarkers(view, self.marker_writer, self._marker_peers, environment)
        self.transactions = TransactionCoordinator(
            view, self.partitions, internal_topics, self.producer_ids, markers, environment
        )
        self.verification = TransactionVerification(view, self.transactions, self._verification_peers, environment)
        self.group_lag = GroupLag(view, self.partitions, self.peers, self.groups, environment)
        schemas = RegisteredSchemas(view, self.peers, environment, view.config[node.SCHEMAS_TOPIC])
        self.schema_guard = SchemaGuard(view.image, schemas)
        self.batch_opening = BatchOpening(
            self.partitions, self.schema_guard, schemas, environment, self._opening_limits
        )
        samples = view.config[quotas.QUOTA_WINDOW_NUM]
        sample_seconds = view.config[quotas.QUOTA_WINDOW_SIZE_SECONDS]
        now = environment.loop.time
        self.quotas = ClientQuotas(now, samples=samples, sample_seconds=sample_seconds)
        self.connection_rates = ConnectionRates(
            now,
            self._connection_rate,
            samples=samples,
            sample_seconds=sample_seconds,
        )
        view.subscribe(self._follow)
        self.apis = self._make_apis()
        self.dispatcher = self._make_dispatcher()
        self._follow_quotas()
        self.groups.start()
        self.transactions.start()
        self.mirroring.start()
        self.moves.resume()

    def _new_peers(self) -> BrokerChannels:
        view = self.view
        listener = view.config.inter_broker_listener
        return BrokerChannels(view.node_id, lambda: view.image, listener, self._environment)

    def _log_opened(self, log: PartitionLog) -> None:
        self.hot_keys.opened(log)
        self.tier.opened(log)

    def _opening_limits(self) -> OpeningLimits:
        return opening_limits(self.view.config)

    # Following the metadata

    def _follow(self, delta: MetadataDelta) -> None:
        if delta.configs:
            self._environment.auditor.refresh()
        self.tier.follow(delta)
        self.replicas.follow(delta)
        self.groups.follow(delta)
        self.transactions.follow(delta)
        self.hot_keys.follow(delta)
        self.client_metrics.follow(delta)
        self.share_coordinator.follow(delta)
        self.shared.follow(delta)
        self.schema_guard.follow(delta, self.view.image)
        self.mirroring.follow(delta)
        if delta.quotas_changed:
            self._follow_quotas()

    def _connection_rate(self, listener: str | None) -> float | None:
        config, setting = self.view.config, quotas.MAX_CONNECTION_CREATION_RATE
        return config[setting] if listener is None else config.listener(listener).own(setting)

    def _follow_quotas(self) -> None:
        image = self.view.image
        self.quotas.follow(image)
        self.connection_rates.follow(image)
        self.dispatcher.quotas = self.quotas if self.quotas.is_enabled else None

    def close(self) -> None:
        """Call it before the logs are closed: nothing is written after it."""
        self.moves.close()
        self.cleaner.close()
        self.client_metrics.close()
        self.mirroring.close()
        self.tier.close()
        self.groups.close()
        self.streams_topics.close()
        self.transactions.close()
        self.share_states.close()
        self.shared.close()
        self.batch_opening.close()
        self._transactional.close()
        self.verification.close()
        self.share_coordinator.close()
        for peers in (self.peers, self._marker_peers, self._verification_peers):
            peers.close()
        self.replicas.close()

    # Background work

    def maintain(self) -> None:
        """Called periodically: retention, closing of segments by age, flushing by time, checkpoints."""
        self.logs.expire_producers_after(self.view.config[log_settings.PRODUCER_ID_EXPIRATION_MS])
        for job in self.logs.maintenance(self._environment.clock.now_ms(), self.replicas.roles.log_config):
            self._run(job)
        self.hot_keys.tick()
        self.client_metrics.tick()
        self.cleaner.tick()
        self.tier.tick(self.dispatcher.durations["produce"].count)
        if self.dispatcher.quotas is not None:
            self.quotas.tick()

    def broken_logs(self) -> list[tuple[LogDirectory, DirectoryFailure]]:
        """The directories with a log that accepts no more writes until it is opened again.

        This node would stay leader of its partition, or in its ISR, without accepting records.
        """
        found = []
        for directory in self.logs.all:
            broken = next((log for log in directory.loaded() if log.failure is not None), None)
            if broken is not None:
                reason = f"{broken.topic_partition}: {broken.failure}"
                found.append((directory, DirectoryFailure(broken.directory, reason, False)))
        return found

    def directory_failed(self, directory: LogDirectory) -> list["asyncio.Future[bool]"]:
        """Takes the replicas in one of several log directories offline. The results: requests to the controller that
        should be there before it learns of the failure."""
        told = self.moves.directory_failed(directory)
        self.replicas.roles.directory_failed(self.logs.take_offline(directory), directory.id)
        return told

    def directory_returned(self) -> None:
        """A log directory works again."""
        self.replicas.roles.directory_returned()
        self.moves.resume()

    def _remember_starts(self) -> "asyncio.Future[OSError | None]":
        """Done when the log start offsets are on disk."""
        written: asyncio.Future[OSError | None] = self._environment.loop.create_future()
        self.logs.when_checkpointed(
            lambda failure: None if written.done() else written.set_result(failure),
            self._run,
            self._environment.clock.now_ms,
        )
        return written

    def _run(self, job: Job) -> None:
        future = self._environment.offload(job.run)
        future.add_done_callback(lambda done: job.done(done.result()))

    # APIs

    def _make_apis(self) -> list[Api]:
        view, environment, partitions = self.view, self._environment, self.partitions
        topics = AutomaticTopicCreation(self.link, environment.auditor)
        configs = DescribeConfigsHandlers(view)
        offsets = OffsetHandlers(
            partitions,
            environment,
            self.replicas,
            self._remember_starts,
            self._opening_limits,
            lambda: view.config[tier.REMOTE_LIST_OFFSETS_REQUEST_TIMEOUT_MS] / 1000,
        )
        cluster = ClusterHandlers(
            view.node_id,
            lambda: view.image,
            self.replicas.lost_brokers,
            topics.create_with_defaults,
            lambda: view.config[node.AUTO_CREATE_TOPICS_ENABLE],
            view.config[network.MAX_REQUEST_PARTITION_SIZE_LIMIT],
            self.groups.ensure_topic,
            self.share_coordinator.ensure_topic,
            self.transactions.ensure_topic,
            self.authorizer,
        )
        acls = DescribeAclsHandlers(lambda: view.image, is_enabled=self.authorizer.is_enabled)
        transactional_offsets = TransactionalOffsets(
            self.groups,
            self.verification,
            lambda: view.config[transactions.TRANSACTION_PARTITION_VERIFICATION_ENABLE],
        )
        committed = CommittedOffsetHandlers(self.groups, transactional_offsets)
        classic = ClassicGroupHandlers(self.groups)
        consumer = ConsumerGroupHandlers(self.groups, self._may_describe if self._checks is not None else None)
        streams = StreamsGroupHandlers(
            self.groups,
            self.streams_topics,
            lambda: streams_groups_enabled(view.image),
            self._may_create if self._checks is not None else None,
        )
        group_admin = GroupAdminHandlers(self.groups)
        log_dirs = LogDirHandlers(
            partitions, environment, self.logs, self.moves, lambda: view.config[CORDONED_LOG_DIRS]
        )
        producer_ids = ProducerIdHandlers(self.producer_ids, self.transactions)
        txns = TransactionHandlers(self.transactions, self.groups, lambda: view.image)
        offset_lookup = OffsetLookup(view, partitions, self.peers)
        share_groups = ShareGroupHandlers(
            self.groups, self.share_states, self.share_persister, self.shared, offset_lookup
        )
        known_epochs = KnownEpochs(lambda: view.image)
        share_state = ShareStateHandlers(self.share_coordinator, known_epochs)
        self.share_fetch = ShareFetchHandlers(
            self.shared,
            environment,
            view.config.node_id,
            self.replicas.endpoints,
            session_slots=view.config[share.GROUP_SHARE_MAX_SHARE_SESSIONS],
            max_bytes=view.config[network.FETCH_MAX_BYTES],
            may_read=None if self._rights is None else self._rights.may_read,
        )
        identities = IdentityHandlers(
            lambda: view.image, lambda: view.config[sasl.DELEGATION_TOKEN_SECRET_KEY], self.authorizer
        )
        handlers: dict[str, Handler] = {
            "describe_user_scram_credentials": identities.describe_user_scram_credentials,
            "describe_delegation_token": identities.describe_delegation_token,
            "list_offsets": offsets.list_offsets,
            "metadata": cluster.metadata,
            "offset_commit": committed.offset_commit,
            "offset_fetch": committed.offset_fetch,
            "txn_offset_commit": committed.txn_offset_commit,
            "find_coordinator": cluster.find_coordinator,
            "join_group": classic.join_group,
            "heartbeat": classic.heartbeat,
            "leave_group": classic.leave_group,
            "sync_group": classic.sync_group,
            "describe_groups": group_admin.describe_groups,
            "list_groups": group_admin.list_groups,
            "delete_records": offsets.delete_records,
            "init_producer_id": producer_ids.init_producer_id,
            "add_partitions_to_txn": txns.add_partitions_to_txn,
            "add_offsets_to_txn": txns.add_offsets_to_txn,
            "end_txn": txns.end_txn,
            "describe_transactions": txns.describe_transactions,
            "list_transactions": txns.list_transactions,
            "offset_for_leader_epoch": offsets.offset_for_leader_epoch,
            "write_txn_markers": TxnMarkerHandlers(self.marker_writer, known_epochs).write_txn_markers,
            "describe_producers": ProducerHandlers(partitions, self.replicas).describe_producers,
            "describe_configs": configs.describe_configs,
            "describe_acls": acls.describe_acls,
            "describe_client_quotas": DescribeQuotasHandlers(lambda: view.image).describe_client_quotas,
            "describe_log_dirs": log_dirs.describe_log_dirs,
            "alter_replica_log_dirs": log_dirs.alter_replica_log_dirs,
            "delete_groups": group_admin.delete_groups,
            "offset_delete": committed.offset_delete,
            "describe_cluster": cluster.describe_cluster,
            "consumer_group_heartbeat": consumer.consumer_group_heartbeat,
            "consumer_group_describe": consumer.consumer_group_describe,
            "streams_group_heartbeat": streams.streams_group_heartbeat,
            "streams_group_describe": streams.streams_group_describe,
            "describe_topic_partitions": cluster.describe_topic_partitions,
            "list_config_resources": configs.list_config_resources,
            "get_telemetry_subscriptions": self.client_metrics.get_telemetry_subscriptions,
            "push_telemetry": self.client_metrics.push_telemetry,
            "report_audit_events": self.audit_topic.report_audit_events,
            "share_group_heartbeat": share_groups.share_group_heartbeat,
            "share_group_describe": share_groups.share_group_describe,
            "share_fetch": self.share_fetch.share_fetch,
            "share_acknowledge": self.share_fetch.share_acknowledge,
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
        apis += guarded((api(name, handler) for name, handler in handlers.items()), self._checks)
        apis += Forwarding(self.link, view.node_id, self.authorizer).table()
        apis += sasl_apis()
        versions = api("api_versions", lambda request, context: api_versions.handle(request, context))
        apis.append(versions)
        api_versions = ApiVersions(apis, self._features, self._rules, self.client_metrics.unused_apis)
        return apis

    def _may_describe(self, peer: Peer, topic: str) -> bool:
        return self.authorizer.sees(peer, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)

    def _may_create(self, peer: Peer, topic: str) -> bool:
        return self.authorizer.sees(
            peer, AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME
        ) or self.authorizer.allows(peer, AclOperation.CREATE, AclResourceType.TOPIC, topic)

    def _features(self) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
        return features_for_api_versions(self.view.image, self._kraft_version(), supported_features(self.view.config))

    def _make_dispatcher(self) -> Dispatcher:
        config = self.view.config
        self.fetch = FetchHandler(
            self.partitions,
            self._environment,
            self.replicas,
            session_slots=config[network.MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS],
            max_bytes=config[network.FETCH_MAX_BYTES],
            limits=self._opening_limits,
        )
        self._transactional = TransactionalProduce(
            self.partitions,
            self.verification,
            self._environment,
            lambda: self.view.config[transactions.TRANSACTION_PARTITION_VERIFICATION_ENABLE],
        )
        self.produce = ProduceHandler(
            self.partitions, self._environment, self.replicas, self._transactional, self.batch_opening
        )
        return Dispatcher(
            self.apis,
            self._environment.loop,
            produce=self.produce,
            fetch=self.fetch,
            locate=self.replicas.endpoints,
            stopwatch=self._environment.stopwatch,
            auditor=self._environment.auditor,
            authorization=self._rights,
            rules=self._rules,
        )

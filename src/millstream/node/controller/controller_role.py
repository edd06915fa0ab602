"""The controller role of a node, composed, and the periodic work of the active controller.

`ControllerRole` joins decisions, sessions of brokers and the APIs of the controller's listener. `Upkeep` elects leaders
for partitions without one, moves leadership to preferred replicas, and adds replicas to internal topics.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster, quotas
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.consensus.quorum.handlers import QuorumHandlers
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.controller.acl_handlers import AclHandlers, DescribeAclsHandlers
from millstream.node.controller.active_controller import ActiveController, Decide, ImageSource
from millstream.node.controller.cluster_handlers import (
    ControllerClusterHandlers,
    ControllerRegistrationHandlers,
    FeatureHandlers,
    ProducerIdHandlers,
    features_for_api_versions,
)
from millstream.node.controller.config_handlers import ConfigHandlers, DescribeConfigsHandlers
from millstream.node.controller.controller_apis import ControllerApis
from millstream.node.controller.heartbeats import Heartbeats
from millstream.node.controller.identity_handlers import DelegationTokenHandlers, ScramUserHandlers
from millstream.node.controller.quota_handlers import DescribeQuotasHandlers, QuotaHandlers
from millstream.node.controller.topic_handlers import PartitionHandlers, ReassignmentHandlers, TopicHandlers
from millstream.node.environment import Environment
from millstream.node.metadata.elections import MAX_ELECTIONS_AT_ONCE, ElectionResult, balance_leaders, elect_leaderless
from millstream.node.metadata.features import supported_features
from millstream.node.metadata.image import MetadataDelta, MetadataImage
from millstream.node.metadata.reassignment import ReassignmentResult, grow_internal_topics
from millstream.node.metadata.records import Decision, MetadataRecord
from millstream.node.quotas.mutations import ControllerMutations, MutationQuotas
from millstream.node.security.guards import Checks
from millstream.node.security.sasl_server import sasl_apis
from millstream.node.server.authorization import NO_AUTHORIZER, Authorizer
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.request import ApiVersions, Handler, api

_LEADERLESS_CHECK_SECONDS = 10.0
_log = logging.getLogger("millstream.controller")


class Upkeep:
    def __init__(self, controller: ActiveController, source: ImageSource, environment: Environment) -> None:
        self._controller = controller
        self._environment = environment
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        controller.on_leading.append(self._begin)
        controller.on_resigned.append(self.close)
        source.subscribe(self._follow)

    def _begin(self) -> None:
        self.close()
        self._wanted.set()
        self._task = self._environment.loop.create_task(self._run(self._controller.epoch))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _follow(self, delta: MetadataDelta) -> None:
        if (
            delta.configs or delta.brokers
        ):  # unclean elections may be allowed now, internal topics may get more replicas
            self._wanted.set()

    async def _run(self, epoch: int) -> None:
        loop = self._environment.loop
        balance_due_s = loop.time() + self._balance_interval_s
        while self._controller.is_active and self._controller.epoch == epoch:
            try:
                if self._wanted.is_set():
                    self._wanted.clear()
                    await self._repeat(_elect_leaderless)
                    await self._controller.decide(_grow_internal_topics)
                if loop.time() >= balance_due_s:
                    balance_due_s = loop.time() + self._balance_interval_s
                    if self._controller.config[cluster.AUTO_LEADER_REBALANCE_ENABLE]:
                        await self._repeat(_balance_leaders)
            except KafkaError as error:
                if error.code == ErrorCode.NOT_CONTROLLER:
                    return
                _log.warning("upkeep_failed error=%s", error)
            except Exception:
                _log.exception("upkeep_failed")
            try:
                async with asyncio.timeout(min(_LEADERLESS_CHECK_SECONDS, max(0.0, balance_due_s - loop.time()))):
                    await self._wanted.wait()
            except TimeoutError:
                self._wanted.set()

    @property
    def _balance_interval_s(self) -> float:
        return float(self._controller.config[cluster.LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS])

    async def _repeat(self, decide: "Decide[ElectionResult]") -> None:
        """Repeats a decision until nothing is left. Decisions are small, so that other requests are not delayed."""
        while len(await self._controller.decide(decide)) >= MAX_ELECTIONS_AT_ONCE:
            pass


def _grow_internal_topics(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[ReassignmentResult]:
    return grow_internal_topics(image, config)


def _elect_leaderless(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[ElectionResult]:
    return elect_leaderless(image, config)


def _balance_leaders(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[ElectionResult]:
    return balance_leaders(image, config)


class ControllerRole:
    """Create it after the loader and before the quorum starts."""

    def __init__(
        self,
        config: BrokerConfig,
        quorum: MetadataQuorum,
        loader: MetadataLoader,
        environment: Environment,
        *,
        new_cluster_id: Callable[[], str],
        authorizer: Authorizer = NO_AUTHORIZER,
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """`first_records` follow the bootstrap records of an empty log: the first users."""
        self._authorizer = authorizer
        self._quorum = quorum
        self._loader = loader
        self.mutations = MutationQuotas(
            environment.loop.time,
            burst_seconds=config[quotas.CONTROLLER_QUOTA_WINDOW_NUM]
            * config[quotas.CONTROLLER_QUOTA_WINDOW_SIZE_SECONDS],
        )
        loader.subscribe(self._follow)
        self._controller_listeners = frozenset(listener.name for listener in config.controller_listeners)
        self.active = ActiveController(
            config, quorum, loader, environment, new_cluster_id=new_cluster_id, first_records=first_records
        )
        self._heartbeats = Heartbeats(self.active, environment, last_leader=lambda: quorum.last_leader)
        self._upkeep = Upkeep(self.active, loader, environment)
        self._tokens = DelegationTokenHandlers(self.active, environment)
        quorum.subscribe(self.active)
        checks = Checks(authorizer, lambda: loader.image) if authorizer.is_enabled else None
        self.apis = ControllerApis(self.active, self._handlers(), QuorumHandlers(quorum).apis(), checks)
        table = self.apis.table()
        table += sasl_apis()
        table.append(api("api_versions", lambda request, context: versions.handle(request, context)))
        versions = ApiVersions(table, self._features)
        self.dispatcher = Dispatcher(
            table, environment.loop, stopwatch=environment.stopwatch, auditor=environment.auditor
        )

    def close(self) -> None:
        self.active.close()
        self._heartbeats.close()
        self._upkeep.close()
        self._tokens.close()

    def _follow(self, delta: MetadataDelta) -> None:
        if delta.quotas_changed:
            self.mutations.follow(self._loader.image)

    def _handlers(self) -> dict[str, Handler]:
        mutations = ControllerMutations(
            self.mutations, self._controller_listeners, lambda peer: self._heartbeats.is_of_broker(peer)
        )
        topics = TopicHandlers(self.active, mutations)
        client_quotas = QuotaHandlers(self.active)
        described_quotas = DescribeQuotasHandlers(lambda: self._loader.image)
        configs = ConfigHandlers(self.active)
        partitions = PartitionHandlers(self.active)
        reassignments = ReassignmentHandlers(self.active)
        described = DescribeConfigsHandlers(_Settings(self._loader, self.active))
        cluster = ControllerClusterHandlers(self._loader, self._quorum, self._controllers, self._authorizer)
        acls = AclHandlers(self.active, is_enabled=self._authorizer.is_enabled)
        described_acls = DescribeAclsHandlers(lambda: self._loader.image, is_enabled=self._authorizer.is_enabled)
        return {
            "create_topics": topics.create_topics,
            "delete_topics": topics.delete_topics,
            "describe_configs": described.describe_configs,
            "alter_configs": configs.alter_configs,
            "create_partitions": topics.create_partitions,
            "elect_leaders": partitions.elect_leaders,
            "incremental_alter_configs": configs.incremental_alter_configs,
            "alter_partition_reassignments": reassignments.alter_partition_reassignments,
            "list_partition_reassignments": reassignments.list_partition_reassignments,
            "alter_partition": partitions.alter_partition,
            "assign_replicas_to_dirs": partitions.assign_replicas_to_dirs,
            "update_features": FeatureHandlers(self.active, self._quorum).update_features,
            "describe_cluster": cluster.describe_cluster,
            "controller_registration": ControllerRegistrationHandlers(self.active).controller_registration,
            "broker_registration": self._heartbeats.broker_registration,
            "broker_heartbeat": self._heartbeats.broker_heartbeat,
            "unregister_broker": self._heartbeats.unregister_broker,
            "list_config_resources": described.list_config_resources,
            "describe_acls": described_acls.describe_acls,
            "create_acls": acls.create_acls,
            "delete_acls": acls.delete_acls,
            "alter_user_scram_credentials": ScramUserHandlers(self.active).alter_user_scram_credentials,
            "create_delegation_token": self._tokens.create_delegation_token,
            "renew_delegation_token": self._tokens.renew_delegation_token,
            "expire_delegation_token": self._tokens.expire_delegation_token,
            "alter_client_quotas": client_quotas.alter_client_quotas,
            "describe_client_quotas": described_quotas.describe_client_quotas,
            "allocate_producer_ids": ProducerIdHandlers(self.active).allocate_producer_ids,
        }

    def _controllers(self) -> list[tuple[int, str, int]]:
        voters = self._quorum.voters
        return [(voter.key.id, at.host, at.port) for voter in voters for at in voter.endpoints[:1]]

    def _features(self) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
        return features_for_api_versions(
            self._loader.image, self._quorum.kraft_version, supported_features(self.active.config)
        )


class _Settings:
    """The committed image and this node's settings, also if it is not the active controller."""

    def __init__(self, loader: MetadataLoader, active: ActiveController) -> None:
        self._loader = loader
        self._active = active

    @property
    def image(self) -> MetadataImage:
        return self._loader.image

    @property
    def config(self) -> BrokerConfig:
        return self._active.config

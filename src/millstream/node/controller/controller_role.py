"""The controller role of a node, composed: decisions, sessions of brokers, upkeep, and the APIs of its listener."""

from collections.abc import Callable

from millstream.config.broker_config import BrokerConfig
from millstream.node.consensus.quorum.handlers import QuorumHandlers
from millstream.node.consensus.quorum.metadata_loader import MetadataLoader
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.cluster_handlers import (
    ControllerClusterHandlers,
    FeatureHandlers,
    ProducerIdHandlers,
    features_for_api_versions,
)
from millstream.node.controller.config_handlers import ConfigHandlers, DescribeConfigsHandlers
from millstream.node.controller.controller_apis import ControllerApis
from millstream.node.controller.heartbeats import Heartbeats
from millstream.node.controller.topic_handlers import PartitionHandlers, ReassignmentHandlers, TopicHandlers
from millstream.node.controller.upkeep import Upkeep
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataImage
from millstream.node.server.dispatch import Dispatcher
from millstream.node.server.request import ApiVersions, Handler, api


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
    ) -> None:
        self._quorum = quorum
        self._loader = loader
        self.active = ActiveController(config, quorum, loader, environment, new_cluster_id=new_cluster_id)
        self._heartbeats = Heartbeats(self.active, environment, last_leader=lambda: quorum.last_leader)
        self._upkeep = Upkeep(self.active, loader, environment)
        quorum.subscribe(self.active)
        self.apis = ControllerApis(self.active, self._handlers(), QuorumHandlers(quorum).apis())
        table = self.apis.table()
        table.append(api("api_versions", lambda request, context: versions.handle(request, context)))
        versions = ApiVersions(table, self._features)
        self.dispatcher = Dispatcher(table, environment.loop, stopwatch=environment.stopwatch)

    def close(self) -> None:
        self.active.close()
        self._heartbeats.close()
        self._upkeep.close()

    def _handlers(self) -> dict[str, Handler]:
        topics = TopicHandlers(self.active)
        configs = ConfigHandlers(self.active)
        partitions = PartitionHandlers(self.active)
        reassignments = ReassignmentHandlers(self.active)
        described = DescribeConfigsHandlers(_Settings(self._loader, self.active))
        cluster = ControllerClusterHandlers(self._loader, self._quorum, self._controllers)
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
            "update_features": FeatureHandlers(self.active, self._quorum).update_features,
            "describe_cluster": cluster.describe_cluster,
            "broker_registration": self._heartbeats.broker_registration,
            "broker_heartbeat": self._heartbeats.broker_heartbeat,
            "unregister_broker": self._heartbeats.unregister_broker,
            "list_config_resources": described.list_config_resources,
            "allocate_producer_ids": ProducerIdHandlers(self.active).allocate_producer_ids,
        }

    def _controllers(self) -> list[tuple[int, str, int]]:
        voters = self._quorum.voters
        return [(voter.key.id, at.host, at.port) for voter in voters for at in voter.endpoints[:1]]

    def _features(self) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
        return features_for_api_versions(self._loader.image, self._quorum.kraft_version)


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

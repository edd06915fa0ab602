"""Handlers for settings: AlterConfigs (33, 44), DescribeConfigs (32), ListConfigResources (74).

Brokers and controllers serve the last two. Only the active controller changes settings; the levels of a node's loggers
are changed on that node (`node/controller/loggers.py`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from millstream.config.broker_config import BrokerConfig
from millstream.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_default_broker,
    describe_group,
    describe_topic,
)
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.formats.protocol.wire_types import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsRequestResources,
    DescribeConfigsResponse,
    DescribeConfigsResponseResults,
    DescribeConfigsResponseResultsConfigs,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.loggers import alter_logger_rows, describe_loggers
from millstream.node.metadata.configs import ConfigAlteration, ConfigChange, alter_configs, incremental_alter_configs
from millstream.node.metadata.image import ConfigResource, MetadataImage, ResourceType
from millstream.node.metadata.topic_names import check_topic_name
from millstream.node.server.request import Context


class ConfigHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_configs(self, request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
        replacements = [
            (
                ConfigResource(resource.resource_type, resource.resource_name),
                {row.name: row.value for row in resource.configs},
            )
            for resource in request.resources
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: alter_configs(
                image, replacements, config, validate_only=request.validate_only
            )
        )
        return _altered(results)

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: Context
    ) -> IncrementalAlterConfigsResponse:
        if not context.is_forwarded:
            loggers = alter_logger_rows(request, self._controller.config.node_id)
            if loggers is not None:
                return loggers
        changes = [
            (
                ConfigResource(resource.resource_type, resource.resource_name),
                [ConfigChange(row.name, row.config_operation, row.value) for row in resource.configs],
            )
            for resource in request.resources
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: incremental_alter_configs(
                image, changes, config, validate_only=request.validate_only
            )
        )
        return {"responses": _altered(results)["responses"]}


def _altered(results: Sequence[ConfigAlteration]) -> AlterConfigsResponse:
    return {
        "responses": [
            {
                "error_code": result.error,
                "error_message": result.message,
                "resource_type": result.resource.type,
                "resource_name": result.resource.name,
            }
            for result in results
        ]
    }


class SettingsView(Protocol):
    @property
    def image(self) -> MetadataImage: ...

    @property
    def config(self) -> BrokerConfig:
        """This node's settings, dynamic ones included."""
        ...


class DescribeConfigsHandlers:
    def __init__(self, view: SettingsView) -> None:
        self._view = view

    def describe_configs(self, request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
        results: list[DescribeConfigsResponseResults] = []
        # Each resource once, however often it is named: the response is hundreds of times larger than the request.
        for resource in {(each.resource_type, each.resource_name): each for each in request.resources}.values():
            row: DescribeConfigsResponseResults = {
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [],
            }
            try:
                entries = self._entries(resource)
            except KafkaError as error:
                row["error_code"], row["error_message"] = error.code, error.message
            else:
                row["configs"] = [
                    _described(entry, request.include_synonyms, request.include_documentation) for entry in entries
                ]
            results.append(row)
        return {"results": results}

    def _entries(self, resource: DescribeConfigsRequestResources) -> list[ConfigEntry]:
        image, config = self._view.image, self._view.config
        # An empty list means no settings, null means all.
        names = resource.configuration_keys
        match resource.resource_type:
            case ResourceType.TOPIC:
                check_topic_name(resource.resource_name)
                if TopicName(resource.resource_name) not in image.topics:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {resource.resource_name!r} does not exist"
                    )
                return describe_topic(image.topic_config(resource.resource_name), config, names)
            case ResourceType.BROKER:
                if not resource.resource_name:
                    return describe_default_broker(image.default_broker_config, names)
                if resource.resource_name != str(config.node_id):
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"this is node {config.node_id}: send the request to node {resource.resource_name!r}",
                    )
                return describe_broker(
                    config, names, own=image.broker_config(config.node_id), default=image.default_broker_config
                )
            case ResourceType.BROKER_LOGGER:
                return describe_loggers(resource.resource_name, config.node_id, names)
            case ResourceType.CLIENT_METRICS:
                if not resource.resource_name:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
                values = image.configs.get(ConfigResource(ResourceType.CLIENT_METRICS, resource.resource_name), {})
                return describe_client_metrics(values, names)
            case ResourceType.GROUP:
                overrides = image.configs.get(ConfigResource(ResourceType.GROUP, resource.resource_name), {})
                return describe_group(overrides, config, names)
            case other:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"resource type {other} has no settings; topics (2), brokers (4), loggers (8), client metrics (16) "
                    "and groups (32) have settings",
                )

    def list_config_resources(
        self, request: ListConfigResourcesRequest, context: Context
    ) -> ListConfigResourcesResponse:
        """The resources with settings. Version 0 has only client metrics."""
        image = self._view.image
        everything = frozenset(ResourceType) if context.version else frozenset((ResourceType.CLIENT_METRICS,))
        wanted = frozenset(request.resource_types) or everything
        if not wanted <= frozenset(ResourceType):
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
        brokers = [str(number) for number in image.brokers]
        names: dict[int, Iterable[str]] = {
            ResourceType.TOPIC: image.topics,
            ResourceType.BROKER: brokers,
            ResourceType.BROKER_LOGGER: brokers,
            ResourceType.CLIENT_METRICS: _configured(image, ResourceType.CLIENT_METRICS),
            ResourceType.GROUP: _configured(image, ResourceType.GROUP),
        }
        rows = [(kind, name) for kind in sorted(wanted) for name in names.get(kind, ())]
        return {"config_resources": [{"resource_type": kind, "resource_name": name} for kind, name in rows]}


def _configured(image: MetadataImage, kind: ResourceType) -> list[str]:
    """The names of the resources of a type that have settings."""
    return [resource.name for resource in image.configs if resource.type == kind]


def _described(entry: ConfigEntry, synonyms: bool, documentation: bool) -> DescribeConfigsResponseResultsConfigs:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source} for synonym in entry.synonyms
        ]
        if synonyms
        else [],
        "config_type": entry.type.value,
        "documentation": entry.documentation if documentation else None,
    }

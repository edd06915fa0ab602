"""AlterConfigs (33), IncrementalAlterConfigs (44): settings of topics, brokers and groups changed."""

from collections.abc import Sequence

from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.configs import ConfigAlteration, ConfigChange, alter_configs, incremental_alter_configs
from millstream.node.metadata.image import ConfigResource
from millstream.node.server.request import Context, Response


class ConfigHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_configs(self, request: Message, context: Context) -> Response:
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

    async def incremental_alter_configs(self, request: Message, context: Context) -> Response:
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
        return _altered(results)


def _altered(results: Sequence[ConfigAlteration]) -> Response:
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

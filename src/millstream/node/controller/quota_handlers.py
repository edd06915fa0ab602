"""Handlers for client quotas: DescribeClientQuotas (48), AlterClientQuotas (49).

Every node describes the quotas of its own metadata. Only the active controller changes them.
"""

from collections.abc import Callable

from millstream.formats.model.errors import KafkaError
from millstream.formats.protocol.wire_types import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.image import MetadataImage
from millstream.node.quotas.core.changes import (
    FilterComponent,
    QuotaAlteration,
    QuotaOperation,
    alter_client_quotas,
    matching_quotas,
)
from millstream.node.server.request import Context


class QuotaHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_client_quotas(
        self, request: AlterClientQuotasRequest, context: Context
    ) -> AlterClientQuotasResponse:
        alterations = [
            QuotaAlteration(
                tuple((part.entity_type, part.entity_name) for part in entry.entity),
                [QuotaOperation(row.key, None if row.remove else row.value) for row in entry.ops],
            )
            for entry in request.entries
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: alter_client_quotas(
                image, alterations, validate_only=request.validate_only
            )
        )
        return {
            "entries": [
                {
                    "error_code": result.error,
                    "error_message": result.message,
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in result.entity],
                }
                for result in results
            ]
        }


class DescribeQuotasHandlers:
    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, context: Context
    ) -> DescribeClientQuotasResponse:
        components = [FilterComponent(row.entity_type, row.match_type, row.match) for row in request.components]
        try:
            found = matching_quotas(self._image().quotas, components, strict=request.strict)
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message, "entries": None}
        return {
            "entries": [
                {
                    "entity": [
                        {"entity_type": part.entity_type, "entity_name": part.entity_name}
                        for part in sorted(entity, key=lambda part: part.entity_type)  # any order
                    ],
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
                for entity, values in found
            ]
        }

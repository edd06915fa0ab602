"""AlterPartition (56), ElectLeaders (43): who is in sync, and who leads."""

from itertools import groupby
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.elections import (
    ANY_EPOCH,
    ElectionType,
    IsrAnswer,
    IsrChange,
    alter_partitions,
    elect_leaders,
)
from millstream.node.server.request import Context, Response


class PartitionHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_partition(self, request: Message, context: Context) -> Response:
        changes = [
            IsrChange(
                topic_id=topic.topic_id,
                partition=row.partition_index,
                leader_epoch=row.leader_epoch,
                partition_epoch=row.partition_epoch,
                new_isr=[(each.broker_id, each.broker_epoch) for each in row.new_isr_with_epochs]
                if context.version >= 3
                else [(member, ANY_EPOCH) for member in row.new_isr],
                leader_recovery_state=row.leader_recovery_state,
            )
            for topic in request.topics
            for row in topic.partitions
        ]
        broker_id = BrokerId(request.broker_id)
        results = await self._controller.decide(
            lambda image, config, randomness: alter_partitions(image, broker_id, request.broker_epoch, changes, config)
        )
        return {
            "topics": [
                {"topic_id": topic_id, "partitions": [_altered(result) for result in rows]}
                for topic_id, rows in groupby(results, key=lambda result: result.topic_id)
            ]
        }

    async def elect_leaders(self, request: Message, context: Context) -> Response:
        wanted = (
            None
            if request.topic_partitions is None
            else [(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions]
        )
        # Version 0 knows only elections of preferred leaders.
        kind = request.election_type if context.version >= 1 else ElectionType.PREFERRED
        results = await self._controller.decide(
            lambda image, config, randomness: elect_leaders(image, kind, wanted, config)
        )
        return {
            "replica_election_results": [
                {
                    "topic": topic,
                    "partition_result": [
                        {"partition_id": row.partition, "error_code": row.error, "error_message": row.message}
                        for row in rows
                    ],
                }
                for topic, rows in groupby(sorted(results, key=lambda row: row.topic), key=lambda row: row.topic)
            ]
        }


def _altered(result: IsrAnswer) -> dict[str, Any]:
    row: dict[str, Any] = {"partition_index": result.partition, "error_code": result.error}
    if result.state is not None and result.error is ErrorCode.NONE:
        row |= {
            "leader_id": result.state.leader,
            "leader_epoch": result.state.leader_epoch,
            "isr": list(result.state.isr),
            "leader_recovery_state": result.state.leader_recovery_state,
            "partition_epoch": result.state.partition_epoch,
        }
    return row

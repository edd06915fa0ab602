"""AlterPartitionReassignments (45), ListPartitionReassignments (46): replicas move to other brokers."""

from itertools import groupby

from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.reassignment import Reassignment, alter_reassignments, list_reassignments
from millstream.node.server.request import Context, Response


class ReassignmentHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_partition_reassignments(self, request: Message, context: Context) -> Response:
        asked = [
            Reassignment(topic=topic.name, partition=row.partition_index, replicas=row.replicas)
            for topic in request.topics
            for row in topic.partitions
        ]
        factor_may_change = request.allow_replication_factor_change
        results = await self._controller.decide(
            lambda image, config, randomness: alter_reassignments(
                image, asked, config, allow_replication_factor_change=factor_may_change
            )
        )
        return {
            "allow_replication_factor_change": factor_may_change,
            "responses": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": row.partition, "error_code": row.error, "error_message": row.message}
                        for row in rows
                    ],
                }
                for name, rows in groupby(results, key=lambda row: row.topic)
            ],
        }

    async def list_partition_reassignments(self, request: Message, context: Context) -> Response:
        image = await self._controller.read()
        wanted = None
        if request.topics is not None:
            wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": row.partition,
                            "replicas": list(row.replicas),
                            "adding_replicas": list(row.adding_replicas),
                            "removing_replicas": list(row.removing_replicas),
                        }
                        for row in rows
                    ],
                }
                for name, rows in groupby(list_reassignments(image, wanted), key=lambda row: row.topic)
            ]
        }

"""The controller's handlers for topics, partitions and reassignments.

CreateTopics (19), DeleteTopics (20), CreatePartitions (37), ElectLeaders (43), AlterPartitionReassignments (45),
ListPartitionReassignments (46), AlterPartition (56), AssignReplicasToDirs (73).
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import groupby

from millstream.config.broker_config import BrokerConfig
from millstream.config.describe import describe_topic
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId
from millstream.formats.protocol.wire_types import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponseTopicsPartitions,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsRequestTopics,
    CreateTopicsResponse,
    CreateTopicsResponseTopics,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.elections import (
    ANY_EPOCH,
    ElectionType,
    IsrChange,
    IsrChangeResult,
    alter_partitions,
    elect_leaders,
)
from millstream.node.metadata.log_dirs import DirectoryAssignment, assign_replicas
from millstream.node.metadata.reassignment import Reassignment, alter_reassignments, list_reassignments
from millstream.node.metadata.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    NewPartitions,
    NewTopic,
    TopicCreation,
    TopicReference,
    check_request_size,
    create_partitions,
    create_topics,
    delete_topics,
    partitions_requested,
)
from millstream.node.quotas.mutations import ControllerMutations, MutationQuota
from millstream.node.server.request import Context

_log = logging.getLogger("millstream.controller")
_PARTITIONS_PER_DECISION = 500
_TOPICS_PER_DECISION = 20


def _warn_of_shared_machines(results: Iterable[TopicCreation]) -> None:
    for result in results:
        if not result.error and result.machines < result.replication_factor:
            _log.warning(
                "replicas_share_machines topic=%s replication_factor=%d machines=%d: a machine that dies takes several "
                "replicas of a partition; add machines, or lower the replication factor",
                result.name, result.replication_factor, result.machines,
            )  # fmt: skip


class TopicHandlers:
    """CreateTopics, DeleteTopics, CreatePartitions."""

    def __init__(self, controller: ActiveController, mutations: ControllerMutations) -> None:
        self._controller = controller
        self._mutations = mutations

    async def create_topics(self, request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
        rows: list[CreateTopicsResponseTopics] = []
        quota = self._mutations.quota(context, strict_since=6)
        try:
            topics = _new_topics(request)
            await asyncio.sleep(0)  # there can be thousands of topics: lets the event loop serve others
            check_request_size(sum(partitions_requested(topic, self._controller.config) for topic in topics))
        except KafkaError as error:
            return {
                "topics": [
                    {
                        "name": topic.name,
                        "topic_id": NO_TOPIC_ID,
                        "error_code": error.code,
                        "error_message": error.message,
                    }
                    for topic in request.topics
                ]
            }
        for part in _in_parts(topics, self._controller.config):
            await asyncio.sleep(0)
            results = await self._create(part, quota, validate_only=request.validate_only)
            await asyncio.sleep(0)
            rows += [self._topic_row(result) for result in results]
            if not request.validate_only:
                _warn_of_shared_machines(results)
        return {"throttle_time_ms": quota.throttle_ms, "topics": rows}

    async def _create(
        self, topics: list[NewTopic], quota: MutationQuota, *, validate_only: bool
    ) -> tuple[TopicCreation, ...]:
        return await self._controller.decide(
            lambda image, config, randomness: create_topics(
                image, topics, config, randomness, validate_only=validate_only, charge=quota
            )
        )

    def _topic_row(self, result: TopicCreation) -> CreateTopicsResponseTopics:
        row: CreateTopicsResponseTopics = {
            "name": result.name,
            "topic_id": result.topic_id,
            "error_code": result.error,
            "error_message": result.message,
            "num_partitions": result.partition_count,
            "replication_factor": result.replication_factor,
            "branch_of": result.branch_of,
        }
        if not result.error:
            row["configs"] = [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "read_only": entry.read_only,
                    "config_source": entry.source,
                    "is_sensitive": entry.sensitive,
                }
                for entry in describe_topic(result.configs, self._controller.config)
            ]
        return row

    async def delete_topics(self, request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
        if context.version >= 6:
            references = [TopicReference(name=topic.name, topic_id=topic.topic_id) for topic in request.topics]
        else:
            references = [TopicReference(name=name) for name in request.topic_names]
        quota = self._mutations.quota(context, strict_since=5)
        results = await self._controller.decide(
            lambda image, config, randomness: delete_topics(image, references, config, charge=quota)
        )
        return {
            "throttle_time_ms": quota.throttle_ms,
            "responses": [
                {
                    "name": result.name,
                    "topic_id": result.topic_id,
                    "error_code": result.error,
                    "error_message": result.message,
                }
                for result in results
            ],
        }

    async def create_partitions(self, request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
        wanted = [
            NewPartitions(
                name=topic.name,
                count=topic.count,
                assignments=None if topic.assignments is None else [row.broker_ids for row in topic.assignments],
            )
            for topic in request.topics
        ]
        quota = self._mutations.quota(context, strict_since=3)
        results = await self._controller.decide(
            lambda image, config, randomness: create_partitions(
                image, wanted, config, randomness, validate_only=request.validate_only, charge=quota
            )
        )
        return {
            "throttle_time_ms": quota.throttle_ms,
            "results": [
                {"name": result.name, "error_code": result.error, "error_message": result.message} for result in results
            ],
        }


def _in_parts(topics: list[NewTopic], config: BrokerConfig) -> list[list[NewTopic]]:
    """Topics in parts of some hundred partitions: 10,000 at once would block the quorum's leader.

    Topics with the same name, which is an error, stay in one part, so that the decision finds the error.
    """
    by_name: dict[str, list[NewTopic]] = {}
    for topic in topics:
        by_name.setdefault(topic.name, []).append(topic)
    parts: list[list[NewTopic]] = [[]]
    partitions = 0
    for same in by_name.values():
        count = sum(partitions_requested(topic, config) for topic in same)
        is_full = partitions + count > _PARTITIONS_PER_DECISION or len(parts[-1]) + len(same) > _TOPICS_PER_DECISION
        if parts[-1] and is_full:
            parts.append([])
            partitions = 0
        parts[-1] += same
        partitions += count
    return parts


def _new_topics(request: CreateTopicsRequest) -> list[NewTopic]:
    if len(request.topics) > MAX_PARTITIONS_PER_REQUEST:  # each topic has at least one partition
        check_request_size(len(request.topics))
    return [_new_topic(topic) for topic in request.topics]


def _new_topic(topic: CreateTopicsRequestTopics) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(row.partition_index, row.broker_ids) for row in topic.assignments],
        configs={row.name: row.value for row in topic.configs},
        branch_of=topic.branch_of,
        branch_of_id=topic.branch_of_id,
        branch_offsets=topic.branch_offsets,
    )


class PartitionHandlers:
    """AlterPartition, AssignReplicasToDirs, ElectLeaders."""

    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_partition(self, request: AlterPartitionRequest, context: Context) -> AlterPartitionResponse:
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
                {"topic_id": topic_id, "partitions": [_altered_partition(result) for result in rows]}
                for topic_id, rows in groupby(results, key=lambda result: result.topic_id)
            ]
        }

    async def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest, context: Context
    ) -> AssignReplicasToDirsResponse:
        broker_id = BrokerId(request.broker_id)
        wanted = [
            DirectoryAssignment(directory=directory.id_, topic_id=topic.topic_id, partition=row.partition_index)
            for directory in request.directories
            for topic in directory.topics
            for row in topic.partitions
        ]
        results = await self._controller.decide(
            lambda image, config, randomness: assign_replicas(image, broker_id, request.broker_epoch, wanted, config)
        )
        return {
            "directories": [
                {
                    "id_": directory,
                    "topics": [
                        {
                            "topic_id": topic_id,
                            "partitions": [
                                {"partition_index": row.partition, "error_code": row.error} for row in partitions
                            ],
                        }
                        for topic_id, partitions in groupby(rows, key=lambda row: row.topic_id)
                    ],
                }
                for directory, rows in groupby(results, key=lambda row: row.directory)
            ]
        }

    async def elect_leaders(self, request: ElectLeadersRequest, context: Context) -> ElectLeadersResponse:
        wanted = (
            None
            if request.topic_partitions is None
            else [(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions]
        )
        # Version 0 has only preferred elections.
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


def _altered_partition(result: IsrChangeResult) -> AlterPartitionResponseTopicsPartitions:
    if result.state is not None and result.error is ErrorCode.NONE:
        return {
            "partition_index": result.partition,
            "error_code": result.error,
            "leader_id": result.state.leader,
            "leader_epoch": result.state.leader_epoch,
            "isr": list(result.state.isr),
            "leader_recovery_state": result.state.leader_recovery_state,
            "partition_epoch": result.state.partition_epoch,
        }
    return {
        "partition_index": result.partition,
        "error_code": result.error,
        "leader_id": 0,
        "leader_epoch": 0,
        "isr": [],
        "leader_recovery_state": 0,
        "partition_epoch": 0,
    }


class ReassignmentHandlers:
    """AlterPartitionReassignments and ListPartitionReassignments."""

    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def alter_partition_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: Context
    ) -> AlterPartitionReassignmentsResponse:
        requested = [
            Reassignment(topic=topic.name, partition=row.partition_index, replicas=row.replicas)
            for topic in request.topics
            for row in topic.partitions
        ]
        factor_may_change = request.allow_replication_factor_change
        results = await self._controller.decide(
            lambda image, config, randomness: alter_reassignments(
                image, requested, config, allow_replication_factor_change=factor_may_change
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

    async def list_partition_reassignments(
        self, request: ListPartitionReassignmentsRequest, context: Context
    ) -> ListPartitionReassignmentsResponse:
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

"""The types of Kafka's messages, for mypy. Written by tools/generate_wire_types.py: do not edit.

`XRequest` is a decoded request, with the fields of all versions. `XResponse` is what a handler returns. A field is
required in it if the newest version sends it and it has no default; `error_code` 0 and `throttle_time_ms` 0 may be left
out.
"""

from collections.abc import Sequence
from typing import NotRequired, TypedDict
from uuid import UUID

class Decoded:
    """A decoded structure: it has the fields of its class and no others."""

class AddOffsetsToTxnRequest(Decoded):
    """API 25, versions 0 to 4."""

    transactional_id: str
    """string, versions 0+."""
    producer_id: int
    """int64, versions 0+."""
    producer_epoch: int
    """int16, versions 0+."""
    group_id: str
    """string, versions 0+."""

class AddOffsetsToTxnResponse(TypedDict):
    """API 25, versions 0 to 4."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class AddPartitionsToTxnRequestTransactionsTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 4+."""
    partitions: list[int]
    """array of int32, versions 4+."""

class AddPartitionsToTxnRequestTransactions(Decoded):
    """An item of transactions."""

    transactional_id: str
    """string, versions 4+."""
    producer_id: int
    """int64, versions 4+."""
    producer_epoch: int
    """int16, versions 4+."""
    verify_only: bool
    """bool, versions 4+."""
    topics: list[AddPartitionsToTxnRequestTransactionsTopics]
    """array of structure, versions 4+."""

class AddPartitionsToTxnRequestV3AndBelowTopics(Decoded):
    """An item of v3_and_below_topics."""

    name: str
    """string, versions 0-3."""
    partitions: list[int]
    """array of int32, versions 0-3."""

class AddPartitionsToTxnRequest(Decoded):
    """API 24, versions 0 to 5."""

    transactions: list[AddPartitionsToTxnRequestTransactions]
    """array of structure, versions 4+."""
    v3_and_below_transactional_id: str
    """string, versions 0-3."""
    v3_and_below_producer_id: int
    """int64, versions 0-3."""
    v3_and_below_producer_epoch: int
    """int16, versions 0-3."""
    v3_and_below_topics: list[AddPartitionsToTxnRequestV3AndBelowTopics]
    """array of structure, versions 0-3."""

class AddPartitionsToTxnResponseResultsByTransactionTopicResultsResultsByPartition(TypedDict):
    """An item of results_by_partition."""

    partition_index: int
    """int32, versions 4+."""
    partition_error_code: int
    """int16, versions 4+."""

class AddPartitionsToTxnResponseResultsByTransactionTopicResults(TypedDict):
    """An item of topic_results."""

    name: str
    """string, versions 4+."""
    results_by_partition: Sequence[AddPartitionsToTxnResponseResultsByTransactionTopicResultsResultsByPartition]
    """array of structure, versions 4+."""

class AddPartitionsToTxnResponseResultsByTransaction(TypedDict):
    """An item of results_by_transaction."""

    transactional_id: str
    """string, versions 4+."""
    topic_results: Sequence[AddPartitionsToTxnResponseResultsByTransactionTopicResults]
    """array of structure, versions 4+."""

class AddPartitionsToTxnResponseResultsByTopicV3AndBelowResultsByPartition(TypedDict):
    """An item of results_by_partition."""

    partition_index: int
    """int32, versions 0-3."""
    partition_error_code: int
    """int16, versions 0-3."""

class AddPartitionsToTxnResponseResultsByTopicV3AndBelow(TypedDict):
    """An item of results_by_topic_v3_and_below."""

    name: str
    """string, versions 0-3."""
    results_by_partition: Sequence[AddPartitionsToTxnResponseResultsByTopicV3AndBelowResultsByPartition]
    """array of structure, versions 0-3."""

class AddPartitionsToTxnResponse(TypedDict):
    """API 24, versions 0 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 4+."""
    results_by_transaction: Sequence[AddPartitionsToTxnResponseResultsByTransaction]
    """array of structure, versions 4+."""
    results_by_topic_v3_and_below: NotRequired[Sequence[AddPartitionsToTxnResponseResultsByTopicV3AndBelow]]
    """array of structure, versions 0-3."""

class AddRaftVoterRequestListeners(Decoded):
    """An item of listeners."""

    name: str
    """string, versions 0+."""
    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""

class AddRaftVoterRequest(Decoded):
    """API 80, versions 0 to 1."""

    cluster_id: str | None
    """string, versions 0+."""
    timeout_ms: int
    """int32, versions 0+."""
    voter_id: int
    """int32, versions 0+."""
    voter_directory_id: UUID
    """uuid, versions 0+."""
    listeners: list[AddRaftVoterRequestListeners]
    """array of structure, versions 0+."""
    ack_when_committed: bool
    """bool, versions 1+; default true."""

class AddRaftVoterResponse(TypedDict):
    """API 80, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class AllocateProducerIdsRequest(Decoded):
    """API 67, versions 0 to 0."""

    broker_id: int
    """int32, versions 0+."""
    broker_epoch: int
    """int64, versions 0+; default -1."""

class AllocateProducerIdsResponse(TypedDict):
    """API 67, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    producer_id_start: int
    """int64, versions 0+."""
    producer_id_len: int
    """int32, versions 0+."""

class AlterClientQuotasRequestEntriesEntity(Decoded):
    """An item of entity."""

    entity_type: str
    """string, versions 0+."""
    entity_name: str | None
    """string, versions 0+."""

class AlterClientQuotasRequestEntriesOps(Decoded):
    """An item of ops."""

    key: str
    """string, versions 0+."""
    value: float
    """float64, versions 0+."""
    remove: bool
    """bool, versions 0+."""

class AlterClientQuotasRequestEntries(Decoded):
    """An item of entries."""

    entity: list[AlterClientQuotasRequestEntriesEntity]
    """array of structure, versions 0+."""
    ops: list[AlterClientQuotasRequestEntriesOps]
    """array of structure, versions 0+."""

class AlterClientQuotasRequest(Decoded):
    """API 49, versions 0 to 1."""

    entries: list[AlterClientQuotasRequestEntries]
    """array of structure, versions 0+."""
    validate_only: bool
    """bool, versions 0+."""

class AlterClientQuotasResponseEntriesEntity(TypedDict):
    """An item of entity."""

    entity_type: str
    """string, versions 0+."""
    entity_name: NotRequired[str | None]
    """string, versions 0+."""

class AlterClientQuotasResponseEntries(TypedDict):
    """An item of entries."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    entity: Sequence[AlterClientQuotasResponseEntriesEntity]
    """array of structure, versions 0+."""

class AlterClientQuotasResponse(TypedDict):
    """API 49, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    entries: Sequence[AlterClientQuotasResponseEntries]
    """array of structure, versions 0+."""

class AlterConfigsRequestResourcesConfigs(Decoded):
    """An item of configs."""

    name: str
    """string, versions 0+."""
    value: str | None
    """string, versions 0+."""

class AlterConfigsRequestResources(Decoded):
    """An item of resources."""

    resource_type: int
    """int8, versions 0+."""
    resource_name: str
    """string, versions 0+."""
    configs: list[AlterConfigsRequestResourcesConfigs]
    """array of structure, versions 0+."""

class AlterConfigsRequest(Decoded):
    """API 33, versions 0 to 2."""

    resources: list[AlterConfigsRequestResources]
    """array of structure, versions 0+."""
    validate_only: bool
    """bool, versions 0+."""

class AlterConfigsResponseResponses(TypedDict):
    """An item of responses."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    resource_type: int
    """int8, versions 0+."""
    resource_name: str
    """string, versions 0+."""

class AlterConfigsResponse(TypedDict):
    """API 33, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    responses: Sequence[AlterConfigsResponseResponses]
    """array of structure, versions 0+."""

class AlterPartitionRequestTopicsPartitionsNewIsrWithEpochs(Decoded):
    """An item of new_isr_with_epochs."""

    broker_id: int
    """int32, versions 3+."""
    broker_epoch: int
    """int64, versions 3+; default -1."""

class AlterPartitionRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 2+."""
    leader_epoch: int
    """int32, versions 2+."""
    new_isr_with_epochs: list[AlterPartitionRequestTopicsPartitionsNewIsrWithEpochs]
    """array of structure, versions 3+."""
    new_isr: list[int]
    """array of int32, version 2."""
    leader_recovery_state: int
    """int8, versions 2+."""
    partition_epoch: int
    """int32, versions 2+."""

class AlterPartitionRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 2+."""
    partitions: list[AlterPartitionRequestTopicsPartitions]
    """array of structure, versions 2+."""

class AlterPartitionRequest(Decoded):
    """API 56, versions 2 to 3."""

    broker_id: int
    """int32, versions 2+."""
    broker_epoch: int
    """int64, versions 2+; default -1."""
    topics: list[AlterPartitionRequestTopics]
    """array of structure, versions 2+."""

class AlterPartitionResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 2+."""
    error_code: NotRequired[int]
    """int16, versions 2+."""
    leader_id: int
    """int32, versions 2+."""
    leader_epoch: int
    """int32, versions 2+."""
    isr: Sequence[int]
    """array of int32, versions 2+."""
    leader_recovery_state: int
    """int8, versions 2+."""
    partition_epoch: int
    """int32, versions 2+."""

class AlterPartitionResponseTopics(TypedDict):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 2+."""
    partitions: Sequence[AlterPartitionResponseTopicsPartitions]
    """array of structure, versions 2+."""

class AlterPartitionResponse(TypedDict):
    """API 56, versions 2 to 3."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 2+."""
    error_code: NotRequired[int]
    """int16, versions 2+."""
    topics: Sequence[AlterPartitionResponseTopics]
    """array of structure, versions 2+."""

class AlterPartitionReassignmentsRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    replicas: list[int] | None
    """array of int32, versions 0+."""

class AlterPartitionReassignmentsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: list[AlterPartitionReassignmentsRequestTopicsPartitions]
    """array of structure, versions 0+."""

class AlterPartitionReassignmentsRequest(Decoded):
    """API 45, versions 0 to 1."""

    timeout_ms: int
    """int32, versions 0+; default 60000."""
    allow_replication_factor_change: bool
    """bool, versions 1+; default true."""
    topics: list[AlterPartitionReassignmentsRequestTopics]
    """array of structure, versions 0+."""

class AlterPartitionReassignmentsResponseResponsesPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class AlterPartitionReassignmentsResponseResponses(TypedDict):
    """An item of responses."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[AlterPartitionReassignmentsResponseResponsesPartitions]
    """array of structure, versions 0+."""

class AlterPartitionReassignmentsResponse(TypedDict):
    """API 45, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    allow_replication_factor_change: NotRequired[bool]
    """bool, versions 1+; default true."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    responses: Sequence[AlterPartitionReassignmentsResponseResponses]
    """array of structure, versions 0+."""

class AlterReplicaLogDirsRequestDirsTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 1+."""
    partitions: list[int]
    """array of int32, versions 1+."""

class AlterReplicaLogDirsRequestDirs(Decoded):
    """An item of dirs."""

    path: str
    """string, versions 1+."""
    topics: list[AlterReplicaLogDirsRequestDirsTopics]
    """array of structure, versions 1+."""

class AlterReplicaLogDirsRequest(Decoded):
    """API 34, versions 1 to 2."""

    dirs: list[AlterReplicaLogDirsRequestDirs]
    """array of structure, versions 1+."""

class AlterReplicaLogDirsResponseResultsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""

class AlterReplicaLogDirsResponseResults(TypedDict):
    """An item of results."""

    topic_name: str
    """string, versions 1+."""
    partitions: Sequence[AlterReplicaLogDirsResponseResultsPartitions]
    """array of structure, versions 1+."""

class AlterReplicaLogDirsResponse(TypedDict):
    """API 34, versions 1 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    results: Sequence[AlterReplicaLogDirsResponseResults]
    """array of structure, versions 1+."""

class AlterShareGroupOffsetsRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    start_offset: int
    """int64, versions 0+."""

class AlterShareGroupOffsetsRequestTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: list[AlterShareGroupOffsetsRequestTopicsPartitions]
    """array of structure, versions 0+."""

class AlterShareGroupOffsetsRequest(Decoded):
    """API 91, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    topics: list[AlterShareGroupOffsetsRequestTopics]
    """array of structure, versions 0+."""

class AlterShareGroupOffsetsResponseResponsesPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class AlterShareGroupOffsetsResponseResponses(TypedDict):
    """An item of responses."""

    topic_name: str
    """string, versions 0+."""
    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[AlterShareGroupOffsetsResponseResponsesPartitions]
    """array of structure, versions 0+."""

class AlterShareGroupOffsetsResponse(TypedDict):
    """API 91, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    responses: Sequence[AlterShareGroupOffsetsResponseResponses]
    """array of structure, versions 0+."""

class AlterUserScramCredentialsRequestDeletions(Decoded):
    """An item of deletions."""

    name: str
    """string, versions 0+."""
    mechanism: int
    """int8, versions 0+."""

class AlterUserScramCredentialsRequestUpsertions(Decoded):
    """An item of upsertions."""

    name: str
    """string, versions 0+."""
    mechanism: int
    """int8, versions 0+."""
    iterations: int
    """int32, versions 0+."""
    salt: bytes
    """bytes, versions 0+."""
    salted_password: bytes
    """bytes, versions 0+."""

class AlterUserScramCredentialsRequest(Decoded):
    """API 51, versions 0 to 0."""

    deletions: list[AlterUserScramCredentialsRequestDeletions]
    """array of structure, versions 0+."""
    upsertions: list[AlterUserScramCredentialsRequestUpsertions]
    """array of structure, versions 0+."""

class AlterUserScramCredentialsResponseResults(TypedDict):
    """An item of results."""

    user: str
    """string, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class AlterUserScramCredentialsResponse(TypedDict):
    """API 51, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    results: Sequence[AlterUserScramCredentialsResponseResults]
    """array of structure, versions 0+."""

class ApiVersionsRequest(Decoded):
    """API 18, versions 0 to 4."""

    client_software_name: str
    """string, versions 3+."""
    client_software_version: str
    """string, versions 3+."""

class ApiVersionsResponseApiKeys(TypedDict):
    """An item of api_keys."""

    api_key: int
    """int16, versions 0+."""
    min_version: int
    """int16, versions 0+."""
    max_version: int
    """int16, versions 0+."""

class ApiVersionsResponseSupportedFeatures(TypedDict):
    """An item of supported_features."""

    name: str
    """string, versions 3+."""
    min_version: int
    """int16, versions 3+."""
    max_version: int
    """int16, versions 3+."""

class ApiVersionsResponseFinalizedFeatures(TypedDict):
    """An item of finalized_features."""

    name: str
    """string, versions 3+."""
    max_version_level: int
    """int16, versions 3+."""
    min_version_level: int
    """int16, versions 3+."""

class ApiVersionsResponse(TypedDict):
    """API 18, versions 0 to 4."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    api_keys: Sequence[ApiVersionsResponseApiKeys]
    """array of structure, versions 0+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    supported_features: NotRequired[Sequence[ApiVersionsResponseSupportedFeatures]]
    """array of structure, versions 3+; tag 0."""
    finalized_features_epoch: NotRequired[int]
    """int64, versions 3+; default -1; tag 1."""
    finalized_features: NotRequired[Sequence[ApiVersionsResponseFinalizedFeatures]]
    """array of structure, versions 3+; tag 2."""
    zk_migration_ready: NotRequired[bool]
    """bool, versions 3+; tag 3."""

class AssignReplicasToDirsRequestDirectoriesTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""

class AssignReplicasToDirsRequestDirectoriesTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[AssignReplicasToDirsRequestDirectoriesTopicsPartitions]
    """array of structure, versions 0+."""

class AssignReplicasToDirsRequestDirectories(Decoded):
    """An item of directories."""

    id_: UUID
    """uuid, versions 0+."""
    topics: list[AssignReplicasToDirsRequestDirectoriesTopics]
    """array of structure, versions 0+."""

class AssignReplicasToDirsRequest(Decoded):
    """API 73, versions 0 to 0."""

    broker_id: int
    """int32, versions 0+."""
    broker_epoch: int
    """int64, versions 0+; default -1."""
    directories: list[AssignReplicasToDirsRequestDirectories]
    """array of structure, versions 0+."""

class AssignReplicasToDirsResponseDirectoriesTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class AssignReplicasToDirsResponseDirectoriesTopics(TypedDict):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[AssignReplicasToDirsResponseDirectoriesTopicsPartitions]
    """array of structure, versions 0+."""

class AssignReplicasToDirsResponseDirectories(TypedDict):
    """An item of directories."""

    id_: UUID
    """uuid, versions 0+."""
    topics: Sequence[AssignReplicasToDirsResponseDirectoriesTopics]
    """array of structure, versions 0+."""

class AssignReplicasToDirsResponse(TypedDict):
    """API 73, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    directories: Sequence[AssignReplicasToDirsResponseDirectories]
    """array of structure, versions 0+."""

class BeginQuorumEpochRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    voter_directory_id: UUID
    """uuid, versions 1+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""

class BeginQuorumEpochRequestTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: list[BeginQuorumEpochRequestTopicsPartitions]
    """array of structure, versions 0+."""

class BeginQuorumEpochRequestLeaderEndpoints(Decoded):
    """An item of leader_endpoints."""

    name: str
    """string, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """uint16, versions 1+."""

class BeginQuorumEpochRequest(Decoded):
    """API 53, versions 0 to 1."""

    cluster_id: str | None
    """string, versions 0+; default null."""
    voter_id: int
    """int32, versions 1+; default -1."""
    topics: list[BeginQuorumEpochRequestTopics]
    """array of structure, versions 0+."""
    leader_endpoints: list[BeginQuorumEpochRequestLeaderEndpoints]
    """array of structure, versions 1+."""

class BeginQuorumEpochResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""

class BeginQuorumEpochResponseTopics(TypedDict):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: Sequence[BeginQuorumEpochResponseTopicsPartitions]
    """array of structure, versions 0+."""

class BeginQuorumEpochResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """uint16, versions 1+."""

class BeginQuorumEpochResponse(TypedDict):
    """API 53, versions 0 to 1."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    topics: Sequence[BeginQuorumEpochResponseTopics]
    """array of structure, versions 0+."""
    node_endpoints: NotRequired[Sequence[BeginQuorumEpochResponseNodeEndpoints]]
    """array of structure, versions 1+; tag 0."""

class BrokerHeartbeatRequest(Decoded):
    """API 63, versions 0 to 2."""

    broker_id: int
    """int32, versions 0+."""
    broker_epoch: int
    """int64, versions 0+; default -1."""
    current_metadata_offset: int
    """int64, versions 0+."""
    want_fence: bool
    """bool, versions 0+."""
    want_shut_down: bool
    """bool, versions 0+."""
    offline_log_dirs: list[UUID]
    """array of uuid, versions 1+; tag 0."""
    cordoned_log_dirs: list[UUID]
    """array of uuid, versions 2+; tag 1."""

class BrokerHeartbeatResponse(TypedDict):
    """API 63, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    is_caught_up: bool
    """bool, versions 0+."""
    is_fenced: NotRequired[bool]
    """bool, versions 0+; default true."""
    should_shut_down: bool
    """bool, versions 0+."""

class BrokerRegistrationRequestListeners(Decoded):
    """An item of listeners."""

    name: str
    """string, versions 0+."""
    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""
    security_protocol: int
    """int16, versions 0+."""

class BrokerRegistrationRequestFeatures(Decoded):
    """An item of features."""

    name: str
    """string, versions 0+."""
    min_supported_version: int
    """int16, versions 0+."""
    max_supported_version: int
    """int16, versions 0+."""

class BrokerRegistrationRequestAdoptedReplicas(Decoded):
    """An item of adopted_replicas."""

    topic_id: UUID
    """uuid, versions 0+."""
    partition_index: int
    """int32, versions 0+."""
    from_broker: int
    """int32, versions 0+."""
    from_directory: UUID
    """uuid, versions 0+."""
    from_epoch: int
    """int64, versions 0+; default -1."""

class BrokerRegistrationRequest(Decoded):
    """API 62, versions 0 to 4."""

    broker_id: int
    """int32, versions 0+."""
    cluster_id: str
    """string, versions 0+."""
    incarnation_id: UUID
    """uuid, versions 0+."""
    listeners: list[BrokerRegistrationRequestListeners]
    """array of structure, versions 0+."""
    features: list[BrokerRegistrationRequestFeatures]
    """array of structure, versions 0+."""
    rack: str | None
    """string, versions 0+."""
    is_migrating_zk_broker: bool
    """bool, versions 1+."""
    log_dirs: list[UUID]
    """array of uuid, versions 2+."""
    previous_broker_epoch: int
    """int64, versions 3+; default -1."""
    machine_id: str | None
    """string, versions 0+; default null; tag 10000."""
    adopted_replicas: list[BrokerRegistrationRequestAdoptedReplicas]
    """array of structure, versions 0+; tag 10001."""
    retired_brokers: list[int]
    """array of int32, versions 0+; tag 10002."""

class BrokerRegistrationResponse(TypedDict):
    """API 62, versions 0 to 4."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    broker_epoch: NotRequired[int]
    """int64, versions 0+; default -1."""

class ConsumerGroupDescribeRequest(Decoded):
    """API 69, versions 0 to 1."""

    group_ids: list[str]
    """array of string, versions 0+."""
    include_authorized_operations: bool
    """bool, versions 0+."""

class ConsumerGroupDescribeResponseGroupsMembersAssignmentTopicPartitions(TypedDict):
    """An item of topic_partitions."""

    topic_id: UUID
    """uuid, versions 0+."""
    topic_name: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class ConsumerGroupDescribeResponseGroupsMembersAssignment(TypedDict):
    """An item of assignment."""

    topic_partitions: Sequence[ConsumerGroupDescribeResponseGroupsMembersAssignmentTopicPartitions]
    """array of structure, versions 0+."""

class ConsumerGroupDescribeResponseGroupsMembersTargetAssignmentTopicPartitions(TypedDict):
    """An item of topic_partitions."""

    topic_id: UUID
    """uuid, versions 0+."""
    topic_name: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class ConsumerGroupDescribeResponseGroupsMembersTargetAssignment(TypedDict):
    """An item of target_assignment."""

    topic_partitions: Sequence[ConsumerGroupDescribeResponseGroupsMembersTargetAssignmentTopicPartitions]
    """array of structure, versions 0+."""

class ConsumerGroupDescribeResponseGroupsMembers(TypedDict):
    """An item of members."""

    member_id: str
    """string, versions 0+."""
    instance_id: NotRequired[str | None]
    """string, versions 0+; default null."""
    rack_id: NotRequired[str | None]
    """string, versions 0+; default null."""
    member_epoch: int
    """int32, versions 0+."""
    client_id: str
    """string, versions 0+."""
    client_host: str
    """string, versions 0+."""
    subscribed_topic_names: Sequence[str]
    """array of string, versions 0+."""
    subscribed_topic_regex: NotRequired[str | None]
    """string, versions 0+; default null."""
    assignment: ConsumerGroupDescribeResponseGroupsMembersAssignment
    """structure, versions 0+."""
    target_assignment: ConsumerGroupDescribeResponseGroupsMembersTargetAssignment
    """structure, versions 0+."""
    member_type: NotRequired[int]
    """int8, versions 1+; default -1."""

class ConsumerGroupDescribeResponseGroups(TypedDict):
    """An item of groups."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    group_id: str
    """string, versions 0+."""
    group_state: str
    """string, versions 0+."""
    group_epoch: int
    """int32, versions 0+."""
    assignment_epoch: int
    """int32, versions 0+."""
    assignor_name: str
    """string, versions 0+."""
    members: Sequence[ConsumerGroupDescribeResponseGroupsMembers]
    """array of structure, versions 0+."""
    authorized_operations: NotRequired[int]
    """int32, versions 0+; default -2147483648."""

class ConsumerGroupDescribeResponse(TypedDict):
    """API 69, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    groups: Sequence[ConsumerGroupDescribeResponseGroups]
    """array of structure, versions 0+."""

class ConsumerGroupHeartbeatRequestTopicPartitions(Decoded):
    """An item of topic_partitions."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[int]
    """array of int32, versions 0+."""

class ConsumerGroupHeartbeatRequest(Decoded):
    """API 68, versions 0 to 1."""

    group_id: str
    """string, versions 0+."""
    member_id: str
    """string, versions 0+."""
    member_epoch: int
    """int32, versions 0+."""
    instance_id: str | None
    """string, versions 0+; default null."""
    rack_id: str | None
    """string, versions 0+; default null."""
    rebalance_timeout_ms: int
    """int32, versions 0+; default -1."""
    subscribed_topic_names: list[str] | None
    """array of string, versions 0+."""
    subscribed_topic_regex: str | None
    """string, versions 1+; default null."""
    server_assignor: str | None
    """string, versions 0+; default null."""
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None
    """array of structure, versions 0+."""

class ConsumerGroupHeartbeatResponseAssignmentTopicPartitions(TypedDict):
    """An item of topic_partitions."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class ConsumerGroupHeartbeatResponseAssignment(TypedDict):
    """An item of assignment."""

    topic_partitions: Sequence[ConsumerGroupHeartbeatResponseAssignmentTopicPartitions]
    """array of structure, versions 0+."""

class ConsumerGroupHeartbeatResponse(TypedDict):
    """API 68, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    member_id: NotRequired[str | None]
    """string, versions 0+; default null."""
    member_epoch: int
    """int32, versions 0+."""
    heartbeat_interval_ms: int
    """int32, versions 0+."""
    assignment: NotRequired[ConsumerGroupHeartbeatResponseAssignment | None]
    """structure, versions 0+; default null."""

class ControllerRegistrationRequestListeners(Decoded):
    """An item of listeners."""

    name: str
    """string, versions 0+."""
    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""
    security_protocol: int
    """int16, versions 0+."""

class ControllerRegistrationRequestFeatures(Decoded):
    """An item of features."""

    name: str
    """string, versions 0+."""
    min_supported_version: int
    """int16, versions 0+."""
    max_supported_version: int
    """int16, versions 0+."""

class ControllerRegistrationRequest(Decoded):
    """API 70, versions 0 to 0."""

    controller_id: int
    """int32, versions 0+."""
    incarnation_id: UUID
    """uuid, versions 0+."""
    zk_migration_ready: bool
    """bool, versions 0+."""
    listeners: list[ControllerRegistrationRequestListeners]
    """array of structure, versions 0+."""
    features: list[ControllerRegistrationRequestFeatures]
    """array of structure, versions 0+."""

class ControllerRegistrationResponse(TypedDict):
    """API 70, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class CreateAclsRequestCreations(Decoded):
    """An item of creations."""

    resource_type: int
    """int8, versions 1+."""
    resource_name: str
    """string, versions 1+."""
    resource_pattern_type: int
    """int8, versions 1+; default 3."""
    principal: str
    """string, versions 1+."""
    host: str
    """string, versions 1+."""
    operation: int
    """int8, versions 1+."""
    permission_type: int
    """int8, versions 1+."""

class CreateAclsRequest(Decoded):
    """API 30, versions 1 to 3."""

    creations: list[CreateAclsRequestCreations]
    """array of structure, versions 1+."""
    mirror_link: str | None
    """string, versions 2+; default null; tag 10000."""

class CreateAclsResponseResults(TypedDict):
    """An item of results."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+."""

class CreateAclsResponse(TypedDict):
    """API 30, versions 1 to 3."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    results: Sequence[CreateAclsResponseResults]
    """array of structure, versions 1+."""

class CreateDelegationTokenRequestRenewers(Decoded):
    """An item of renewers."""

    principal_type: str
    """string, versions 1+."""
    principal_name: str
    """string, versions 1+."""

class CreateDelegationTokenRequest(Decoded):
    """API 38, versions 1 to 3."""

    owner_principal_type: str | None
    """string, versions 3+."""
    owner_principal_name: str | None
    """string, versions 3+."""
    renewers: list[CreateDelegationTokenRequestRenewers]
    """array of structure, versions 1+."""
    max_lifetime_ms: int
    """int64, versions 1+."""

class CreateDelegationTokenResponse(TypedDict):
    """API 38, versions 1 to 3."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    principal_type: str
    """string, versions 1+."""
    principal_name: str
    """string, versions 1+."""
    token_requester_principal_type: str
    """string, versions 3+."""
    token_requester_principal_name: str
    """string, versions 3+."""
    issue_timestamp_ms: int
    """int64, versions 1+."""
    expiry_timestamp_ms: int
    """int64, versions 1+."""
    max_timestamp_ms: int
    """int64, versions 1+."""
    token_id: str
    """string, versions 1+."""
    hmac: bytes | bytearray | memoryview
    """bytes, versions 1+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""

class CreatePartitionsRequestTopicsAssignments(Decoded):
    """An item of assignments."""

    broker_ids: list[int]
    """array of int32, versions 0+."""

class CreatePartitionsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    count: int
    """int32, versions 0+."""
    assignments: list[CreatePartitionsRequestTopicsAssignments] | None
    """array of structure, versions 0+."""

class CreatePartitionsRequest(Decoded):
    """API 37, versions 0 to 3."""

    topics: list[CreatePartitionsRequestTopics]
    """array of structure, versions 0+."""
    timeout_ms: int
    """int32, versions 0+."""
    validate_only: bool
    """bool, versions 0+."""

class CreatePartitionsResponseResults(TypedDict):
    """An item of results."""

    name: str
    """string, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class CreatePartitionsResponse(TypedDict):
    """API 37, versions 0 to 3."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    results: Sequence[CreatePartitionsResponseResults]
    """array of structure, versions 0+."""

class CreateTopicsRequestTopicsAssignments(Decoded):
    """An item of assignments."""

    partition_index: int
    """int32, versions 2+."""
    broker_ids: list[int]
    """array of int32, versions 2+."""

class CreateTopicsRequestTopicsConfigs(Decoded):
    """An item of configs."""

    name: str
    """string, versions 2+."""
    value: str | None
    """string, versions 2+."""

class CreateTopicsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 2+."""
    num_partitions: int
    """int32, versions 2+."""
    replication_factor: int
    """int16, versions 2+."""
    assignments: list[CreateTopicsRequestTopicsAssignments]
    """array of structure, versions 2+."""
    configs: list[CreateTopicsRequestTopicsConfigs]
    """array of structure, versions 2+."""
    branch_of: str | None
    """string, versions 5+; default null; tag 10000."""
    branch_of_id: UUID
    """uuid, versions 5+; tag 10001."""
    branch_offsets: list[int]
    """array of int64, versions 5+; tag 10002."""

class CreateTopicsRequest(Decoded):
    """API 19, versions 2 to 7."""

    topics: list[CreateTopicsRequestTopics]
    """array of structure, versions 2+."""
    timeout_ms: int
    """int32, versions 2+; default 60000."""
    validate_only: bool
    """bool, versions 2+."""

class CreateTopicsResponseTopicsConfigs(TypedDict):
    """An item of configs."""

    name: str
    """string, versions 5+."""
    value: NotRequired[str | None]
    """string, versions 5+."""
    read_only: bool
    """bool, versions 5+."""
    config_source: NotRequired[int]
    """int8, versions 5+; default -1."""
    is_sensitive: bool
    """bool, versions 5+."""

class CreateTopicsResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 2+."""
    topic_id: UUID
    """uuid, versions 7+."""
    error_code: NotRequired[int]
    """int16, versions 2+."""
    error_message: NotRequired[str | None]
    """string, versions 2+."""
    topic_config_error_code: NotRequired[int]
    """int16, versions 5+; tag 0."""
    num_partitions: NotRequired[int]
    """int32, versions 5+; default -1."""
    replication_factor: NotRequired[int]
    """int16, versions 5+; default -1."""
    configs: NotRequired[Sequence[CreateTopicsResponseTopicsConfigs] | None]
    """array of structure, versions 5+."""
    branch_of: NotRequired[str | None]
    """string, versions 5+; default null; tag 10000."""

class CreateTopicsResponse(TypedDict):
    """API 19, versions 2 to 7."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 2+."""
    topics: Sequence[CreateTopicsResponseTopics]
    """array of structure, versions 2+."""

class DeleteAclsRequestFilters(Decoded):
    """An item of filters."""

    resource_type_filter: int
    """int8, versions 1+."""
    resource_name_filter: str | None
    """string, versions 1+."""
    pattern_type_filter: int
    """int8, versions 1+; default 3."""
    principal_filter: str | None
    """string, versions 1+."""
    host_filter: str | None
    """string, versions 1+."""
    operation: int
    """int8, versions 1+."""
    permission_type: int
    """int8, versions 1+."""

class DeleteAclsRequest(Decoded):
    """API 31, versions 1 to 3."""

    filters: list[DeleteAclsRequestFilters]
    """array of structure, versions 1+."""

class DeleteAclsResponseFilterResultsMatchingAcls(TypedDict):
    """An item of matching_acls."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+."""
    resource_type: int
    """int8, versions 1+."""
    resource_name: str
    """string, versions 1+."""
    pattern_type: NotRequired[int]
    """int8, versions 1+; default 3."""
    principal: str
    """string, versions 1+."""
    host: str
    """string, versions 1+."""
    operation: int
    """int8, versions 1+."""
    permission_type: int
    """int8, versions 1+."""

class DeleteAclsResponseFilterResults(TypedDict):
    """An item of filter_results."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+."""
    matching_acls: Sequence[DeleteAclsResponseFilterResultsMatchingAcls]
    """array of structure, versions 1+."""

class DeleteAclsResponse(TypedDict):
    """API 31, versions 1 to 3."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    filter_results: Sequence[DeleteAclsResponseFilterResults]
    """array of structure, versions 1+."""

class DeleteGroupsRequest(Decoded):
    """API 42, versions 0 to 2."""

    groups_names: list[str]
    """array of string, versions 0+."""

class DeleteGroupsResponseResults(TypedDict):
    """An item of results."""

    group_id: str
    """string, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class DeleteGroupsResponse(TypedDict):
    """API 42, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    results: Sequence[DeleteGroupsResponseResults]
    """array of structure, versions 0+."""

class DeleteRecordsRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    offset: int
    """int64, versions 0+."""

class DeleteRecordsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: list[DeleteRecordsRequestTopicsPartitions]
    """array of structure, versions 0+."""

class DeleteRecordsRequest(Decoded):
    """API 21, versions 0 to 2."""

    topics: list[DeleteRecordsRequestTopics]
    """array of structure, versions 0+."""
    timeout_ms: int
    """int32, versions 0+."""

class DeleteRecordsResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    low_watermark: int
    """int64, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class DeleteRecordsResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[DeleteRecordsResponseTopicsPartitions]
    """array of structure, versions 0+."""

class DeleteRecordsResponse(TypedDict):
    """API 21, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    topics: Sequence[DeleteRecordsResponseTopics]
    """array of structure, versions 0+."""

class DeleteShareGroupOffsetsRequestTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""

class DeleteShareGroupOffsetsRequest(Decoded):
    """API 92, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    topics: list[DeleteShareGroupOffsetsRequestTopics]
    """array of structure, versions 0+."""

class DeleteShareGroupOffsetsResponseResponses(TypedDict):
    """An item of responses."""

    topic_name: str
    """string, versions 0+."""
    topic_id: UUID
    """uuid, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class DeleteShareGroupOffsetsResponse(TypedDict):
    """API 92, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    responses: Sequence[DeleteShareGroupOffsetsResponseResponses]
    """array of structure, versions 0+."""

class DeleteShareGroupStateRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""

class DeleteShareGroupStateRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[DeleteShareGroupStateRequestTopicsPartitions]
    """array of structure, versions 0+."""

class DeleteShareGroupStateRequest(Decoded):
    """API 86, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    topics: list[DeleteShareGroupStateRequestTopics]
    """array of structure, versions 0+."""

class DeleteShareGroupStateResponseResultsPartitions(TypedDict):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class DeleteShareGroupStateResponseResults(TypedDict):
    """An item of results."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[DeleteShareGroupStateResponseResultsPartitions]
    """array of structure, versions 0+."""

class DeleteShareGroupStateResponse(TypedDict):
    """API 86, versions 0 to 0."""

    results: Sequence[DeleteShareGroupStateResponseResults]
    """array of structure, versions 0+."""

class DeleteTopicsRequestTopics(Decoded):
    """An item of topics."""

    name: str | None
    """string, versions 6+; default null."""
    topic_id: UUID
    """uuid, versions 6+."""

class DeleteTopicsRequest(Decoded):
    """API 20, versions 1 to 6."""

    topics: list[DeleteTopicsRequestTopics]
    """array of structure, versions 6+."""
    topic_names: list[str]
    """array of string, versions 1-5."""
    timeout_ms: int
    """int32, versions 1+."""

class DeleteTopicsResponseResponses(TypedDict):
    """An item of responses."""

    name: NotRequired[str | None]
    """string, versions 1+."""
    topic_id: UUID
    """uuid, versions 6+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 5+; default null."""

class DeleteTopicsResponse(TypedDict):
    """API 20, versions 1 to 6."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    responses: Sequence[DeleteTopicsResponseResponses]
    """array of structure, versions 1+."""

class DescribeAclsRequest(Decoded):
    """API 29, versions 1 to 3."""

    resource_type_filter: int
    """int8, versions 1+."""
    resource_name_filter: str | None
    """string, versions 1+."""
    pattern_type_filter: int
    """int8, versions 1+; default 3."""
    principal_filter: str | None
    """string, versions 1+."""
    host_filter: str | None
    """string, versions 1+."""
    operation: int
    """int8, versions 1+."""
    permission_type: int
    """int8, versions 1+."""

class DescribeAclsResponseResourcesAcls(TypedDict):
    """An item of acls."""

    principal: str
    """string, versions 1+."""
    host: str
    """string, versions 1+."""
    operation: int
    """int8, versions 1+."""
    permission_type: int
    """int8, versions 1+."""

class DescribeAclsResponseResources(TypedDict):
    """An item of resources."""

    resource_type: int
    """int8, versions 1+."""
    resource_name: str
    """string, versions 1+."""
    pattern_type: NotRequired[int]
    """int8, versions 1+; default 3."""
    acls: Sequence[DescribeAclsResponseResourcesAcls]
    """array of structure, versions 1+."""

class DescribeAclsResponse(TypedDict):
    """API 29, versions 1 to 3."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+."""
    resources: Sequence[DescribeAclsResponseResources]
    """array of structure, versions 1+."""

class DescribeClientQuotasRequestComponents(Decoded):
    """An item of components."""

    entity_type: str
    """string, versions 0+."""
    match_type: int
    """int8, versions 0+."""
    match: str | None
    """string, versions 0+."""

class DescribeClientQuotasRequest(Decoded):
    """API 48, versions 0 to 1."""

    components: list[DescribeClientQuotasRequestComponents]
    """array of structure, versions 0+."""
    strict: bool
    """bool, versions 0+."""

class DescribeClientQuotasResponseEntriesEntity(TypedDict):
    """An item of entity."""

    entity_type: str
    """string, versions 0+."""
    entity_name: NotRequired[str | None]
    """string, versions 0+."""

class DescribeClientQuotasResponseEntriesValues(TypedDict):
    """An item of values."""

    key: str
    """string, versions 0+."""
    value: float
    """float64, versions 0+."""

class DescribeClientQuotasResponseEntries(TypedDict):
    """An item of entries."""

    entity: Sequence[DescribeClientQuotasResponseEntriesEntity]
    """array of structure, versions 0+."""
    values: Sequence[DescribeClientQuotasResponseEntriesValues]
    """array of structure, versions 0+."""

class DescribeClientQuotasResponse(TypedDict):
    """API 48, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    entries: NotRequired[Sequence[DescribeClientQuotasResponseEntries] | None]
    """array of structure, versions 0+."""

class DescribeClusterRequest(Decoded):
    """API 60, versions 0 to 2."""

    include_cluster_authorized_operations: bool
    """bool, versions 0+."""
    endpoint_type: int
    """int8, versions 1+; default 1."""
    include_fenced_brokers: bool
    """bool, versions 2+."""

class DescribeClusterResponseBrokers(TypedDict):
    """An item of brokers."""

    broker_id: int
    """int32, versions 0+."""
    host: str
    """string, versions 0+."""
    port: int
    """int32, versions 0+."""
    rack: NotRequired[str | None]
    """string, versions 0+; default null."""
    is_fenced: bool
    """bool, versions 2+."""
    machine_id: NotRequired[str | None]
    """string, versions 0+; default null; tag 10000."""

class DescribeClusterResponse(TypedDict):
    """API 60, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    endpoint_type: NotRequired[int]
    """int8, versions 1+; default 1."""
    cluster_id: str
    """string, versions 0+."""
    controller_id: NotRequired[int]
    """int32, versions 0+; default -1."""
    brokers: Sequence[DescribeClusterResponseBrokers]
    """array of structure, versions 0+."""
    cluster_authorized_operations: NotRequired[int]
    """int32, versions 0+; default -2147483648."""

class DescribeConfigsRequestResources(Decoded):
    """An item of resources."""

    resource_type: int
    """int8, versions 1+."""
    resource_name: str
    """string, versions 1+."""
    configuration_keys: list[str] | None
    """array of string, versions 1+."""

class DescribeConfigsRequest(Decoded):
    """API 32, versions 1 to 4."""

    resources: list[DescribeConfigsRequestResources]
    """array of structure, versions 1+."""
    include_synonyms: bool
    """bool, versions 1+."""
    include_documentation: bool
    """bool, versions 3+."""

class DescribeConfigsResponseResultsConfigsSynonyms(TypedDict):
    """An item of synonyms."""

    name: str
    """string, versions 1+."""
    value: NotRequired[str | None]
    """string, versions 1+."""
    source: int
    """int8, versions 1+."""

class DescribeConfigsResponseResultsConfigs(TypedDict):
    """An item of configs."""

    name: str
    """string, versions 1+."""
    value: NotRequired[str | None]
    """string, versions 1+."""
    read_only: bool
    """bool, versions 1+."""
    config_source: NotRequired[int]
    """int8, versions 1+; default -1."""
    is_sensitive: bool
    """bool, versions 1+."""
    synonyms: Sequence[DescribeConfigsResponseResultsConfigsSynonyms]
    """array of structure, versions 1+."""
    config_type: int
    """int8, versions 3+."""
    documentation: NotRequired[str | None]
    """string, versions 3+."""

class DescribeConfigsResponseResults(TypedDict):
    """An item of results."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+."""
    resource_type: int
    """int8, versions 1+."""
    resource_name: str
    """string, versions 1+."""
    configs: Sequence[DescribeConfigsResponseResultsConfigs]
    """array of structure, versions 1+."""

class DescribeConfigsResponse(TypedDict):
    """API 32, versions 1 to 4."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    results: Sequence[DescribeConfigsResponseResults]
    """array of structure, versions 1+."""

class DescribeDelegationTokenRequestOwners(Decoded):
    """An item of owners."""

    principal_type: str
    """string, versions 1+."""
    principal_name: str
    """string, versions 1+."""

class DescribeDelegationTokenRequest(Decoded):
    """API 41, versions 1 to 3."""

    owners: list[DescribeDelegationTokenRequestOwners] | None
    """array of structure, versions 1+."""

class DescribeDelegationTokenResponseTokensRenewers(TypedDict):
    """An item of renewers."""

    principal_type: str
    """string, versions 1+."""
    principal_name: str
    """string, versions 1+."""

class DescribeDelegationTokenResponseTokens(TypedDict):
    """An item of tokens."""

    principal_type: str
    """string, versions 1+."""
    principal_name: str
    """string, versions 1+."""
    token_requester_principal_type: str
    """string, versions 3+."""
    token_requester_principal_name: str
    """string, versions 3+."""
    issue_timestamp: int
    """int64, versions 1+."""
    expiry_timestamp: int
    """int64, versions 1+."""
    max_timestamp: int
    """int64, versions 1+."""
    token_id: str
    """string, versions 1+."""
    hmac: bytes | bytearray | memoryview
    """bytes, versions 1+."""
    renewers: Sequence[DescribeDelegationTokenResponseTokensRenewers]
    """array of structure, versions 1+."""

class DescribeDelegationTokenResponse(TypedDict):
    """API 41, versions 1 to 3."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    tokens: Sequence[DescribeDelegationTokenResponseTokens]
    """array of structure, versions 1+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""

class DescribeGroupsRequest(Decoded):
    """API 15, versions 0 to 6."""

    groups: list[str]
    """array of string, versions 0+."""
    include_authorized_operations: bool
    """bool, versions 3+."""

class DescribeGroupsResponseGroupsMembers(TypedDict):
    """An item of members."""

    member_id: str
    """string, versions 0+."""
    group_instance_id: NotRequired[str | None]
    """string, versions 4+; default null."""
    client_id: str
    """string, versions 0+."""
    client_host: str
    """string, versions 0+."""
    member_metadata: bytes | bytearray | memoryview
    """bytes, versions 0+."""
    member_assignment: bytes | bytearray | memoryview
    """bytes, versions 0+."""

class DescribeGroupsResponseGroups(TypedDict):
    """An item of groups."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 6+; default null."""
    group_id: str
    """string, versions 0+."""
    group_state: str
    """string, versions 0+."""
    protocol_type: str
    """string, versions 0+."""
    protocol_data: str
    """string, versions 0+."""
    members: Sequence[DescribeGroupsResponseGroupsMembers]
    """array of structure, versions 0+."""
    authorized_operations: NotRequired[int]
    """int32, versions 3+; default -2147483648."""

class DescribeGroupsResponse(TypedDict):
    """API 15, versions 0 to 6."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    groups: Sequence[DescribeGroupsResponseGroups]
    """array of structure, versions 0+."""

class DescribeLogDirsRequestTopics(Decoded):
    """An item of topics."""

    topic: str
    """string, versions 1+."""
    partitions: list[int]
    """array of int32, versions 1+."""

class DescribeLogDirsRequest(Decoded):
    """API 35, versions 1 to 5."""

    topics: list[DescribeLogDirsRequestTopics] | None
    """array of structure, versions 1+."""

class DescribeLogDirsResponseResultsTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    partition_size: int
    """int64, versions 1+."""
    offset_lag: int
    """int64, versions 1+."""
    is_future_key: bool
    """bool, versions 1+."""

class DescribeLogDirsResponseResultsTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 1+."""
    partitions: Sequence[DescribeLogDirsResponseResultsTopicsPartitions]
    """array of structure, versions 1+."""

class DescribeLogDirsResponseResults(TypedDict):
    """An item of results."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    log_dir: str
    """string, versions 1+."""
    topics: Sequence[DescribeLogDirsResponseResultsTopics]
    """array of structure, versions 1+."""
    total_bytes: NotRequired[int]
    """int64, versions 4+; default -1."""
    usable_bytes: NotRequired[int]
    """int64, versions 4+; default -1."""
    is_cordoned: bool
    """bool, versions 5+."""

class DescribeLogDirsResponse(TypedDict):
    """API 35, versions 1 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 3+."""
    results: Sequence[DescribeLogDirsResponseResults]
    """array of structure, versions 1+."""

class DescribeProducersRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partition_indexes: list[int]
    """array of int32, versions 0+."""

class DescribeProducersRequest(Decoded):
    """API 61, versions 0 to 0."""

    topics: list[DescribeProducersRequestTopics]
    """array of structure, versions 0+."""

class DescribeProducersResponseTopicsPartitionsActiveProducers(TypedDict):
    """An item of active_producers."""

    producer_id: int
    """int64, versions 0+."""
    producer_epoch: int
    """int32, versions 0+."""
    last_sequence: NotRequired[int]
    """int32, versions 0+; default -1."""
    last_timestamp: NotRequired[int]
    """int64, versions 0+; default -1."""
    coordinator_epoch: int
    """int32, versions 0+."""
    current_txn_start_offset: NotRequired[int]
    """int64, versions 0+; default -1."""

class DescribeProducersResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    active_producers: Sequence[DescribeProducersResponseTopicsPartitionsActiveProducers]
    """array of structure, versions 0+."""

class DescribeProducersResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[DescribeProducersResponseTopicsPartitions]
    """array of structure, versions 0+."""

class DescribeProducersResponse(TypedDict):
    """API 61, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    topics: Sequence[DescribeProducersResponseTopics]
    """array of structure, versions 0+."""

class DescribeQuorumRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""

class DescribeQuorumRequestTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: list[DescribeQuorumRequestTopicsPartitions]
    """array of structure, versions 0+."""

class DescribeQuorumRequest(Decoded):
    """API 55, versions 0 to 2."""

    topics: list[DescribeQuorumRequestTopics]
    """array of structure, versions 0+."""

class DescribeQuorumResponseTopicsPartitionsCurrentVoters(TypedDict):
    """An item of current_voters."""

    replica_id: int
    """int32, versions 0+."""
    replica_directory_id: UUID
    """uuid, versions 2+."""
    log_end_offset: int
    """int64, versions 0+."""
    last_fetch_timestamp: NotRequired[int]
    """int64, versions 1+; default -1."""
    last_caught_up_timestamp: NotRequired[int]
    """int64, versions 1+; default -1."""

class DescribeQuorumResponseTopicsPartitionsObservers(TypedDict):
    """An item of observers."""

    replica_id: int
    """int32, versions 0+."""
    replica_directory_id: UUID
    """uuid, versions 2+."""
    log_end_offset: int
    """int64, versions 0+."""
    last_fetch_timestamp: NotRequired[int]
    """int64, versions 1+; default -1."""
    last_caught_up_timestamp: NotRequired[int]
    """int64, versions 1+; default -1."""

class DescribeQuorumResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 2+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""
    high_watermark: int
    """int64, versions 0+."""
    current_voters: Sequence[DescribeQuorumResponseTopicsPartitionsCurrentVoters]
    """array of structure, versions 0+."""
    observers: Sequence[DescribeQuorumResponseTopicsPartitionsObservers]
    """array of structure, versions 0+."""

class DescribeQuorumResponseTopics(TypedDict):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: Sequence[DescribeQuorumResponseTopicsPartitions]
    """array of structure, versions 0+."""

class DescribeQuorumResponseNodesListeners(TypedDict):
    """An item of listeners."""

    name: str
    """string, versions 2+."""
    host: str
    """string, versions 2+."""
    port: int
    """uint16, versions 2+."""

class DescribeQuorumResponseNodes(TypedDict):
    """An item of nodes."""

    node_id: int
    """int32, versions 2+."""
    listeners: Sequence[DescribeQuorumResponseNodesListeners]
    """array of structure, versions 2+."""

class DescribeQuorumResponse(TypedDict):
    """API 55, versions 0 to 2."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 2+."""
    topics: Sequence[DescribeQuorumResponseTopics]
    """array of structure, versions 0+."""
    nodes: Sequence[DescribeQuorumResponseNodes]
    """array of structure, versions 2+."""

class DescribeShareGroupOffsetsRequestGroupsTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: list[int]
    """array of int32, versions 0+."""

class DescribeShareGroupOffsetsRequestGroups(Decoded):
    """An item of groups."""

    group_id: str
    """string, versions 0+."""
    topics: list[DescribeShareGroupOffsetsRequestGroupsTopics] | None
    """array of structure, versions 0+."""

class DescribeShareGroupOffsetsRequest(Decoded):
    """API 90, versions 0 to 1."""

    groups: list[DescribeShareGroupOffsetsRequestGroups]
    """array of structure, versions 0+."""

class DescribeShareGroupOffsetsResponseGroupsTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    start_offset: int
    """int64, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""
    lag: NotRequired[int]
    """int64, versions 1+; default -1."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class DescribeShareGroupOffsetsResponseGroupsTopics(TypedDict):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[DescribeShareGroupOffsetsResponseGroupsTopicsPartitions]
    """array of structure, versions 0+."""

class DescribeShareGroupOffsetsResponseGroups(TypedDict):
    """An item of groups."""

    group_id: str
    """string, versions 0+."""
    topics: Sequence[DescribeShareGroupOffsetsResponseGroupsTopics]
    """array of structure, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class DescribeShareGroupOffsetsResponse(TypedDict):
    """API 90, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    groups: Sequence[DescribeShareGroupOffsetsResponseGroups]
    """array of structure, versions 0+."""

class DescribeTopicPartitionsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""

class DescribeTopicPartitionsRequestCursor(Decoded):
    """An item of cursor."""

    topic_name: str
    """string, versions 0+."""
    partition_index: int
    """int32, versions 0+."""

class DescribeTopicPartitionsRequest(Decoded):
    """API 75, versions 0 to 0."""

    topics: list[DescribeTopicPartitionsRequestTopics]
    """array of structure, versions 0+."""
    response_partition_limit: int
    """int32, versions 0+; default 2000."""
    cursor: DescribeTopicPartitionsRequestCursor | None
    """structure, versions 0+; default null."""

class DescribeTopicPartitionsResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    partition_index: int
    """int32, versions 0+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: NotRequired[int]
    """int32, versions 0+; default -1."""
    replica_nodes: Sequence[int]
    """array of int32, versions 0+."""
    isr_nodes: Sequence[int]
    """array of int32, versions 0+."""
    eligible_leader_replicas: NotRequired[Sequence[int] | None]
    """array of int32, versions 0+."""
    last_known_elr: NotRequired[Sequence[int] | None]
    """array of int32, versions 0+."""
    offline_replicas: Sequence[int]
    """array of int32, versions 0+."""

class DescribeTopicPartitionsResponseTopics(TypedDict):
    """An item of topics."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    name: NotRequired[str | None]
    """string, versions 0+."""
    topic_id: UUID
    """uuid, versions 0+."""
    is_internal: bool
    """bool, versions 0+."""
    partitions: Sequence[DescribeTopicPartitionsResponseTopicsPartitions]
    """array of structure, versions 0+."""
    topic_authorized_operations: NotRequired[int]
    """int32, versions 0+; default -2147483648."""

class DescribeTopicPartitionsResponseNextCursor(TypedDict):
    """An item of next_cursor."""

    topic_name: str
    """string, versions 0+."""
    partition_index: int
    """int32, versions 0+."""

class DescribeTopicPartitionsResponse(TypedDict):
    """API 75, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    topics: Sequence[DescribeTopicPartitionsResponseTopics]
    """array of structure, versions 0+."""
    next_cursor: NotRequired[DescribeTopicPartitionsResponseNextCursor | None]
    """structure, versions 0+; default null."""

class DescribeTransactionsRequest(Decoded):
    """API 65, versions 0 to 0."""

    transactional_ids: list[str]
    """array of string, versions 0+."""

class DescribeTransactionsResponseTransactionStatesTopics(TypedDict):
    """An item of topics."""

    topic: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class DescribeTransactionsResponseTransactionStates(TypedDict):
    """An item of transaction_states."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    transactional_id: str
    """string, versions 0+."""
    transaction_state: str
    """string, versions 0+."""
    transaction_timeout_ms: int
    """int32, versions 0+."""
    transaction_start_time_ms: int
    """int64, versions 0+."""
    producer_id: int
    """int64, versions 0+."""
    producer_epoch: int
    """int16, versions 0+."""
    topics: Sequence[DescribeTransactionsResponseTransactionStatesTopics]
    """array of structure, versions 0+."""

class DescribeTransactionsResponse(TypedDict):
    """API 65, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    transaction_states: Sequence[DescribeTransactionsResponseTransactionStates]
    """array of structure, versions 0+."""

class DescribeUserScramCredentialsRequestUsers(Decoded):
    """An item of users."""

    name: str
    """string, versions 0+."""

class DescribeUserScramCredentialsRequest(Decoded):
    """API 50, versions 0 to 0."""

    users: list[DescribeUserScramCredentialsRequestUsers] | None
    """array of structure, versions 0+."""

class DescribeUserScramCredentialsResponseResultsCredentialInfos(TypedDict):
    """An item of credential_infos."""

    mechanism: int
    """int8, versions 0+."""
    iterations: int
    """int32, versions 0+."""

class DescribeUserScramCredentialsResponseResults(TypedDict):
    """An item of results."""

    user: str
    """string, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    credential_infos: Sequence[DescribeUserScramCredentialsResponseResultsCredentialInfos]
    """array of structure, versions 0+."""

class DescribeUserScramCredentialsResponse(TypedDict):
    """API 50, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    results: Sequence[DescribeUserScramCredentialsResponseResults]
    """array of structure, versions 0+."""

class ElectLeadersRequestTopicPartitions(Decoded):
    """An item of topic_partitions."""

    topic: str
    """string, versions 0+."""
    partitions: list[int]
    """array of int32, versions 0+."""

class ElectLeadersRequest(Decoded):
    """API 43, versions 0 to 2."""

    election_type: int
    """int8, versions 1+."""
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None
    """array of structure, versions 0+."""
    timeout_ms: int
    """int32, versions 0+; default 60000."""

class ElectLeadersResponseReplicaElectionResultsPartitionResult(TypedDict):
    """An item of partition_result."""

    partition_id: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class ElectLeadersResponseReplicaElectionResults(TypedDict):
    """An item of replica_election_results."""

    topic: str
    """string, versions 0+."""
    partition_result: Sequence[ElectLeadersResponseReplicaElectionResultsPartitionResult]
    """array of structure, versions 0+."""

class ElectLeadersResponse(TypedDict):
    """API 43, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    replica_election_results: Sequence[ElectLeadersResponseReplicaElectionResults]
    """array of structure, versions 0+."""

class EndQuorumEpochRequestTopicsPartitionsPreferredCandidates(Decoded):
    """An item of preferred_candidates."""

    candidate_id: int
    """int32, versions 1+."""
    candidate_directory_id: UUID
    """uuid, versions 1+."""

class EndQuorumEpochRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""
    preferred_candidates: list[EndQuorumEpochRequestTopicsPartitionsPreferredCandidates]
    """array of structure, versions 1+."""
    preferred_successors: list[int]
    """array of int32, version 0."""

class EndQuorumEpochRequestTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: list[EndQuorumEpochRequestTopicsPartitions]
    """array of structure, versions 0+."""

class EndQuorumEpochRequestLeaderEndpoints(Decoded):
    """An item of leader_endpoints."""

    name: str
    """string, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """uint16, versions 1+."""

class EndQuorumEpochRequest(Decoded):
    """API 54, versions 0 to 1."""

    cluster_id: str | None
    """string, versions 0+; default null."""
    topics: list[EndQuorumEpochRequestTopics]
    """array of structure, versions 0+."""
    leader_endpoints: list[EndQuorumEpochRequestLeaderEndpoints]
    """array of structure, versions 1+."""

class EndQuorumEpochResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""

class EndQuorumEpochResponseTopics(TypedDict):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: Sequence[EndQuorumEpochResponseTopicsPartitions]
    """array of structure, versions 0+."""

class EndQuorumEpochResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """uint16, versions 1+."""

class EndQuorumEpochResponse(TypedDict):
    """API 54, versions 0 to 1."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    topics: Sequence[EndQuorumEpochResponseTopics]
    """array of structure, versions 0+."""
    node_endpoints: NotRequired[Sequence[EndQuorumEpochResponseNodeEndpoints]]
    """array of structure, versions 1+; tag 0."""

class EndTxnRequest(Decoded):
    """API 26, versions 0 to 5."""

    transactional_id: str
    """string, versions 0+."""
    producer_id: int
    """int64, versions 0+."""
    producer_epoch: int
    """int16, versions 0+."""
    committed: bool
    """bool, versions 0+."""

class EndTxnResponse(TypedDict):
    """API 26, versions 0 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    producer_id: NotRequired[int]
    """int64, versions 5+; default -1."""
    producer_epoch: NotRequired[int]
    """int16, versions 5+; default -1."""

class EnvelopeRequest(Decoded):
    """API 58, versions 0 to 0."""

    request_data: bytes
    """bytes, versions 0+."""
    request_principal: bytes | None
    """bytes, versions 0+."""
    client_host_address: bytes
    """bytes, versions 0+."""

class EnvelopeResponse(TypedDict):
    """API 58, versions 0 to 0."""

    response_data: NotRequired[bytes | bytearray | memoryview | None]
    """bytes, versions 0+; default null."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class ExpireDelegationTokenRequest(Decoded):
    """API 40, versions 1 to 2."""

    hmac: bytes
    """bytes, versions 1+."""
    expiry_time_period_ms: int
    """int64, versions 1+."""

class ExpireDelegationTokenResponse(TypedDict):
    """API 40, versions 1 to 2."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    expiry_timestamp_ms: int
    """int64, versions 1+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""

class FetchRequestReplicaState(Decoded):
    """An item of replica_state."""

    replica_id: int
    """int32, versions 15+; default -1."""
    replica_epoch: int
    """int64, versions 15+; default -1."""

class FetchRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 4+."""
    current_leader_epoch: int
    """int32, versions 9+; default -1."""
    fetch_offset: int
    """int64, versions 4+."""
    last_fetched_epoch: int
    """int32, versions 12+; default -1."""
    log_start_offset: int
    """int64, versions 5+; default -1."""
    partition_max_bytes: int
    """int32, versions 4+."""
    replica_directory_id: UUID
    """uuid, versions 17+; default null; tag 0."""
    high_watermark: int
    """int64, versions 18+; default 9223372036854775807; tag 1."""

class FetchRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 13+."""
    topic: str
    """string, versions 4-12."""
    partitions: list[FetchRequestTopicsPartitions]
    """array of structure, versions 4+."""

class FetchRequestForgottenTopicsData(Decoded):
    """An item of forgotten_topics_data."""

    topic_id: UUID
    """uuid, versions 13+."""
    topic: str
    """string, versions 7-12."""
    partitions: list[int]
    """array of int32, versions 7+."""

class FetchRequest(Decoded):
    """API 1, versions 4 to 18."""

    cluster_id: str | None
    """string, versions 12+; default null; tag 0."""
    replica_state: FetchRequestReplicaState
    """structure, versions 15+; tag 1."""
    replica_id: int
    """int32, versions 4-14; default -1."""
    max_wait_ms: int
    """int32, versions 4+."""
    min_bytes: int
    """int32, versions 4+."""
    max_bytes: int
    """int32, versions 4+; default 2147483647."""
    isolation_level: int
    """int8, versions 4+."""
    session_id: int
    """int32, versions 7+."""
    session_epoch: int
    """int32, versions 7+; default -1."""
    topics: list[FetchRequestTopics]
    """array of structure, versions 4+."""
    forgotten_topics_data: list[FetchRequestForgottenTopicsData]
    """array of structure, versions 7+."""
    rack_id: str
    """string, versions 11+."""

class FetchResponseResponsesPartitionsDivergingEpoch(TypedDict):
    """An item of diverging_epoch."""

    epoch: NotRequired[int]
    """int32, versions 12+; default -1."""
    end_offset: NotRequired[int]
    """int64, versions 12+; default -1."""

class FetchResponseResponsesPartitionsCurrentLeader(TypedDict):
    """An item of current_leader."""

    leader_id: NotRequired[int]
    """int32, versions 12+; default -1."""
    leader_epoch: NotRequired[int]
    """int32, versions 12+; default -1."""

class FetchResponseResponsesPartitionsSnapshotId(TypedDict):
    """An item of snapshot_id."""

    end_offset: NotRequired[int]
    """int64, versions 12+; default -1."""
    epoch: NotRequired[int]
    """int32, versions 12+; default -1."""

class FetchResponseResponsesPartitionsAbortedTransactions(TypedDict):
    """An item of aborted_transactions."""

    producer_id: int
    """int64, versions 4+."""
    first_offset: int
    """int64, versions 4+."""

class FetchResponseResponsesPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 4+."""
    error_code: NotRequired[int]
    """int16, versions 4+."""
    high_watermark: int
    """int64, versions 4+."""
    last_stable_offset: NotRequired[int]
    """int64, versions 4+; default -1."""
    log_start_offset: NotRequired[int]
    """int64, versions 5+; default -1."""
    diverging_epoch: NotRequired[FetchResponseResponsesPartitionsDivergingEpoch]
    """structure, versions 12+; tag 0."""
    current_leader: NotRequired[FetchResponseResponsesPartitionsCurrentLeader]
    """structure, versions 12+; tag 1."""
    snapshot_id: NotRequired[FetchResponseResponsesPartitionsSnapshotId]
    """structure, versions 12+; tag 2."""
    aborted_transactions: NotRequired[Sequence[FetchResponseResponsesPartitionsAbortedTransactions] | None]
    """array of structure, versions 4+."""
    preferred_read_replica: NotRequired[int]
    """int32, versions 11+; default -1."""
    records: NotRequired[bytes | bytearray | memoryview | None]
    """records, versions 4+."""

class FetchResponseResponses(TypedDict):
    """An item of responses."""

    topic_id: UUID
    """uuid, versions 13+."""
    topic: NotRequired[str]
    """string, versions 4-12."""
    partitions: Sequence[FetchResponseResponsesPartitions]
    """array of structure, versions 4+."""

class FetchResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 16+."""
    host: str
    """string, versions 16+."""
    port: int
    """int32, versions 16+."""
    rack: NotRequired[str | None]
    """string, versions 16+; default null."""

class FetchResponse(TypedDict):
    """API 1, versions 4 to 18."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 4+."""
    error_code: NotRequired[int]
    """int16, versions 7+."""
    session_id: int
    """int32, versions 7+."""
    responses: Sequence[FetchResponseResponses]
    """array of structure, versions 4+."""
    node_endpoints: NotRequired[Sequence[FetchResponseNodeEndpoints]]
    """array of structure, versions 16+; tag 0."""

class FetchSnapshotRequestTopicsPartitionsSnapshotId(Decoded):
    """An item of snapshot_id."""

    end_offset: int
    """int64, versions 0+."""
    epoch: int
    """int32, versions 0+."""

class FetchSnapshotRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    current_leader_epoch: int
    """int32, versions 0+."""
    snapshot_id: FetchSnapshotRequestTopicsPartitionsSnapshotId
    """structure, versions 0+."""
    position: int
    """int64, versions 0+."""
    replica_directory_id: UUID
    """uuid, versions 1+; default null; tag 0."""

class FetchSnapshotRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: list[FetchSnapshotRequestTopicsPartitions]
    """array of structure, versions 0+."""

class FetchSnapshotRequest(Decoded):
    """API 59, versions 0 to 1."""

    cluster_id: str | None
    """string, versions 0+; default null; tag 0."""
    replica_id: int
    """int32, versions 0+; default -1."""
    max_bytes: int
    """int32, versions 0+; default 2147483647."""
    topics: list[FetchSnapshotRequestTopics]
    """array of structure, versions 0+."""

class FetchSnapshotResponseTopicsPartitionsSnapshotId(TypedDict):
    """An item of snapshot_id."""

    end_offset: int
    """int64, versions 0+."""
    epoch: int
    """int32, versions 0+."""

class FetchSnapshotResponseTopicsPartitionsCurrentLeader(TypedDict):
    """An item of current_leader."""

    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""

class FetchSnapshotResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    snapshot_id: FetchSnapshotResponseTopicsPartitionsSnapshotId
    """structure, versions 0+."""
    current_leader: NotRequired[FetchSnapshotResponseTopicsPartitionsCurrentLeader]
    """structure, versions 0+; tag 0."""
    size: int
    """int64, versions 0+."""
    position: int
    """int64, versions 0+."""
    unaligned_records: bytes | bytearray | memoryview
    """records, versions 0+."""

class FetchSnapshotResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[FetchSnapshotResponseTopicsPartitions]
    """array of structure, versions 0+."""

class FetchSnapshotResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """uint16, versions 1+."""

class FetchSnapshotResponse(TypedDict):
    """API 59, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    topics: Sequence[FetchSnapshotResponseTopics]
    """array of structure, versions 0+."""
    node_endpoints: NotRequired[Sequence[FetchSnapshotResponseNodeEndpoints]]
    """array of structure, versions 1+; tag 0."""

class FindCoordinatorRequest(Decoded):
    """API 10, versions 0 to 6."""

    key: str
    """string, versions 0-3."""
    key_type: int
    """int8, versions 1+."""
    coordinator_keys: list[str]
    """array of string, versions 4+."""

class FindCoordinatorResponseCoordinators(TypedDict):
    """An item of coordinators."""

    key: str
    """string, versions 4+."""
    node_id: int
    """int32, versions 4+."""
    host: str
    """string, versions 4+."""
    port: int
    """int32, versions 4+."""
    error_code: NotRequired[int]
    """int16, versions 4+."""
    error_message: NotRequired[str | None]
    """string, versions 4+."""

class FindCoordinatorResponse(TypedDict):
    """API 10, versions 0 to 6."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    coordinators: Sequence[FindCoordinatorResponseCoordinators]
    """array of structure, versions 4+."""
    error_code: NotRequired[int]
    """int16, versions 0-3."""
    error_message: NotRequired[str | None]
    """string, versions 1-3."""
    node_id: NotRequired[int]
    """int32, versions 0-3."""
    host: NotRequired[str]
    """string, versions 0-3."""
    port: NotRequired[int]
    """int32, versions 0-3."""

class GetTelemetrySubscriptionsRequest(Decoded):
    """API 71, versions 0 to 0."""

    client_instance_id: UUID
    """uuid, versions 0+."""

class GetTelemetrySubscriptionsResponse(TypedDict):
    """API 71, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    client_instance_id: UUID
    """uuid, versions 0+."""
    subscription_id: int
    """int32, versions 0+."""
    accepted_compression_types: Sequence[int]
    """array of int8, versions 0+."""
    push_interval_ms: int
    """int32, versions 0+."""
    telemetry_max_bytes: int
    """int32, versions 0+."""
    delta_temporality: bool
    """bool, versions 0+."""
    requested_metrics: Sequence[str]
    """array of string, versions 0+."""

class HeartbeatRequest(Decoded):
    """API 12, versions 0 to 4."""

    group_id: str
    """string, versions 0+."""
    generation_id: int
    """int32, versions 0+."""
    member_id: str
    """string, versions 0+."""
    group_instance_id: str | None
    """string, versions 3+; default null."""

class HeartbeatResponse(TypedDict):
    """API 12, versions 0 to 4."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class IncrementalAlterConfigsRequestResourcesConfigs(Decoded):
    """An item of configs."""

    name: str
    """string, versions 0+."""
    config_operation: int
    """int8, versions 0+."""
    value: str | None
    """string, versions 0+."""

class IncrementalAlterConfigsRequestResources(Decoded):
    """An item of resources."""

    resource_type: int
    """int8, versions 0+."""
    resource_name: str
    """string, versions 0+."""
    configs: list[IncrementalAlterConfigsRequestResourcesConfigs]
    """array of structure, versions 0+."""

class IncrementalAlterConfigsRequest(Decoded):
    """API 44, versions 0 to 1."""

    resources: list[IncrementalAlterConfigsRequestResources]
    """array of structure, versions 0+."""
    validate_only: bool
    """bool, versions 0+."""

class IncrementalAlterConfigsResponseResponses(TypedDict):
    """An item of responses."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    resource_type: int
    """int8, versions 0+."""
    resource_name: str
    """string, versions 0+."""

class IncrementalAlterConfigsResponse(TypedDict):
    """API 44, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    responses: Sequence[IncrementalAlterConfigsResponseResponses]
    """array of structure, versions 0+."""

class InitProducerIdRequest(Decoded):
    """API 22, versions 0 to 6."""

    transactional_id: str | None
    """string, versions 0+."""
    transaction_timeout_ms: int
    """int32, versions 0+."""
    producer_id: int
    """int64, versions 3+; default -1."""
    producer_epoch: int
    """int16, versions 3+; default -1."""
    enable2_pc: bool
    """bool, versions 6+."""
    keep_prepared_txn: bool
    """bool, versions 6+."""

class InitProducerIdResponse(TypedDict):
    """API 22, versions 0 to 6."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    producer_id: NotRequired[int]
    """int64, versions 0+; default -1."""
    producer_epoch: int
    """int16, versions 0+."""
    ongoing_txn_producer_id: NotRequired[int]
    """int64, versions 6+; default -1."""
    ongoing_txn_producer_epoch: NotRequired[int]
    """int16, versions 6+; default -1."""

class InitializeShareGroupStateRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    state_epoch: int
    """int32, versions 0+."""
    start_offset: int
    """int64, versions 0+."""

class InitializeShareGroupStateRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[InitializeShareGroupStateRequestTopicsPartitions]
    """array of structure, versions 0+."""

class InitializeShareGroupStateRequest(Decoded):
    """API 83, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    topics: list[InitializeShareGroupStateRequestTopics]
    """array of structure, versions 0+."""

class InitializeShareGroupStateResponseResultsPartitions(TypedDict):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class InitializeShareGroupStateResponseResults(TypedDict):
    """An item of results."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[InitializeShareGroupStateResponseResultsPartitions]
    """array of structure, versions 0+."""

class InitializeShareGroupStateResponse(TypedDict):
    """API 83, versions 0 to 0."""

    results: Sequence[InitializeShareGroupStateResponseResults]
    """array of structure, versions 0+."""

class JoinGroupRequestProtocols(Decoded):
    """An item of protocols."""

    name: str
    """string, versions 0+."""
    metadata: bytes
    """bytes, versions 0+."""

class JoinGroupRequest(Decoded):
    """API 11, versions 0 to 9."""

    group_id: str
    """string, versions 0+."""
    session_timeout_ms: int
    """int32, versions 0+."""
    rebalance_timeout_ms: int
    """int32, versions 1+; default -1."""
    member_id: str
    """string, versions 0+."""
    group_instance_id: str | None
    """string, versions 5+; default null."""
    protocol_type: str
    """string, versions 0+."""
    protocols: list[JoinGroupRequestProtocols]
    """array of structure, versions 0+."""
    reason: str | None
    """string, versions 8+; default null."""

class JoinGroupResponseMembers(TypedDict):
    """An item of members."""

    member_id: str
    """string, versions 0+."""
    group_instance_id: NotRequired[str | None]
    """string, versions 5+; default null."""
    metadata: bytes | bytearray | memoryview
    """bytes, versions 0+."""

class JoinGroupResponse(TypedDict):
    """API 11, versions 0 to 9."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 2+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    generation_id: NotRequired[int]
    """int32, versions 0+; default -1."""
    protocol_type: NotRequired[str | None]
    """string, versions 7+; default null."""
    protocol_name: NotRequired[str | None]
    """string, versions 0+."""
    leader: str
    """string, versions 0+."""
    skip_assignment: bool
    """bool, versions 9+."""
    member_id: str
    """string, versions 0+."""
    members: Sequence[JoinGroupResponseMembers]
    """array of structure, versions 0+."""

class LeaveGroupRequestMembers(Decoded):
    """An item of members."""

    member_id: str
    """string, versions 3+."""
    group_instance_id: str | None
    """string, versions 3+; default null."""
    reason: str | None
    """string, versions 5+; default null."""

class LeaveGroupRequest(Decoded):
    """API 13, versions 0 to 5."""

    group_id: str
    """string, versions 0+."""
    members: list[LeaveGroupRequestMembers]
    """array of structure, versions 3+."""
    member_id: str
    """string, versions 0-2."""

class LeaveGroupResponseMembers(TypedDict):
    """An item of members."""

    member_id: str
    """string, versions 3+."""
    group_instance_id: NotRequired[str | None]
    """string, versions 3+."""
    error_code: NotRequired[int]
    """int16, versions 3+."""

class LeaveGroupResponse(TypedDict):
    """API 13, versions 0 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    members: Sequence[LeaveGroupResponseMembers]
    """array of structure, versions 3+."""

class ListConfigResourcesRequest(Decoded):
    """API 74, versions 0 to 1."""

    resource_types: list[int]
    """array of int8, versions 1+."""

class ListConfigResourcesResponseConfigResources(TypedDict):
    """An item of config_resources."""

    resource_name: str
    """string, versions 0+."""
    resource_type: NotRequired[int]
    """int8, versions 1+; default 16."""

class ListConfigResourcesResponse(TypedDict):
    """API 74, versions 0 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    config_resources: Sequence[ListConfigResourcesResponseConfigResources]
    """array of structure, versions 0+."""

class ListGroupsRequest(Decoded):
    """API 16, versions 0 to 5."""

    states_filter: list[str]
    """array of string, versions 4+."""
    types_filter: list[str]
    """array of string, versions 5+."""

class ListGroupsResponseGroups(TypedDict):
    """An item of groups."""

    group_id: str
    """string, versions 0+."""
    protocol_type: str
    """string, versions 0+."""
    group_state: str
    """string, versions 4+."""
    group_type: str
    """string, versions 5+."""

class ListGroupsResponse(TypedDict):
    """API 16, versions 0 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    groups: Sequence[ListGroupsResponseGroups]
    """array of structure, versions 0+."""

class ListOffsetsRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    current_leader_epoch: int
    """int32, versions 4+; default -1."""
    timestamp: int
    """int64, versions 1+."""

class ListOffsetsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 1+."""
    partitions: list[ListOffsetsRequestTopicsPartitions]
    """array of structure, versions 1+."""

class ListOffsetsRequest(Decoded):
    """API 2, versions 1 to 11."""

    replica_id: int
    """int32, versions 1+."""
    isolation_level: int
    """int8, versions 2+."""
    topics: list[ListOffsetsRequestTopics]
    """array of structure, versions 1+."""
    timeout_ms: int
    """int32, versions 10+."""

class ListOffsetsResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    timestamp: NotRequired[int]
    """int64, versions 1+; default -1."""
    offset: NotRequired[int]
    """int64, versions 1+; default -1."""
    leader_epoch: NotRequired[int]
    """int32, versions 4+; default -1."""

class ListOffsetsResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 1+."""
    partitions: Sequence[ListOffsetsResponseTopicsPartitions]
    """array of structure, versions 1+."""

class ListOffsetsResponse(TypedDict):
    """API 2, versions 1 to 11."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 2+."""
    topics: Sequence[ListOffsetsResponseTopics]
    """array of structure, versions 1+."""

class ListPartitionReassignmentsRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partition_indexes: list[int]
    """array of int32, versions 0+."""

class ListPartitionReassignmentsRequest(Decoded):
    """API 46, versions 0 to 0."""

    timeout_ms: int
    """int32, versions 0+; default 60000."""
    topics: list[ListPartitionReassignmentsRequestTopics] | None
    """array of structure, versions 0+."""

class ListPartitionReassignmentsResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    replicas: Sequence[int]
    """array of int32, versions 0+."""
    adding_replicas: Sequence[int]
    """array of int32, versions 0+."""
    removing_replicas: Sequence[int]
    """array of int32, versions 0+."""

class ListPartitionReassignmentsResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[ListPartitionReassignmentsResponseTopicsPartitions]
    """array of structure, versions 0+."""

class ListPartitionReassignmentsResponse(TypedDict):
    """API 46, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    topics: Sequence[ListPartitionReassignmentsResponseTopics]
    """array of structure, versions 0+."""

class ListTransactionsRequest(Decoded):
    """API 66, versions 0 to 2."""

    state_filters: list[str]
    """array of string, versions 0+."""
    producer_id_filters: list[int]
    """array of int64, versions 0+."""
    duration_filter: int
    """int64, versions 1+; default -1."""
    transactional_id_pattern: str | None
    """string, versions 2+; default null."""

class ListTransactionsResponseTransactionStates(TypedDict):
    """An item of transaction_states."""

    transactional_id: str
    """string, versions 0+."""
    producer_id: int
    """int64, versions 0+."""
    transaction_state: str
    """string, versions 0+."""

class ListTransactionsResponse(TypedDict):
    """API 66, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    unknown_state_filters: Sequence[str]
    """array of string, versions 0+."""
    transaction_states: Sequence[ListTransactionsResponseTransactionStates]
    """array of structure, versions 0+."""

class MetadataRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 10+."""
    name: str | None
    """string, versions 0+."""

class MetadataRequest(Decoded):
    """API 3, versions 0 to 13."""

    topics: list[MetadataRequestTopics] | None
    """array of structure, versions 0+."""
    allow_auto_topic_creation: bool
    """bool, versions 4+; default true."""
    include_cluster_authorized_operations: bool
    """bool, versions 8-10."""
    include_topic_authorized_operations: bool
    """bool, versions 8+."""

class MetadataResponseBrokers(TypedDict):
    """An item of brokers."""

    node_id: int
    """int32, versions 0+."""
    host: str
    """string, versions 0+."""
    port: int
    """int32, versions 0+."""
    rack: NotRequired[str | None]
    """string, versions 1+; default null."""

class MetadataResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    partition_index: int
    """int32, versions 0+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: NotRequired[int]
    """int32, versions 7+; default -1."""
    replica_nodes: Sequence[int]
    """array of int32, versions 0+."""
    isr_nodes: Sequence[int]
    """array of int32, versions 0+."""
    offline_replicas: Sequence[int]
    """array of int32, versions 5+."""

class MetadataResponseTopics(TypedDict):
    """An item of topics."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    name: NotRequired[str | None]
    """string, versions 0+."""
    topic_id: UUID
    """uuid, versions 10+."""
    is_internal: bool
    """bool, versions 1+."""
    partitions: Sequence[MetadataResponseTopicsPartitions]
    """array of structure, versions 0+."""
    topic_authorized_operations: NotRequired[int]
    """int32, versions 8+; default -2147483648."""
    branch_of: NotRequired[str | None]
    """string, versions 9+; default null; tag 10000."""
    branch_of_id: NotRequired[UUID]
    """uuid, versions 9+; tag 10001."""
    branch_offsets: NotRequired[Sequence[int]]
    """array of int64, versions 9+; tag 10002."""

class MetadataResponse(TypedDict):
    """API 3, versions 0 to 13."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 3+."""
    brokers: Sequence[MetadataResponseBrokers]
    """array of structure, versions 0+."""
    cluster_id: NotRequired[str | None]
    """string, versions 2+; default null."""
    controller_id: NotRequired[int]
    """int32, versions 1+; default -1."""
    topics: Sequence[MetadataResponseTopics]
    """array of structure, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 13+."""
    cluster_authorized_operations: NotRequired[int]
    """int32, versions 8-10; default -2147483648."""

class OffsetCommitRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 2+."""
    committed_offset: int
    """int64, versions 2+."""
    committed_leader_epoch: int
    """int32, versions 6+; default -1."""
    committed_metadata: str | None
    """string, versions 2+."""

class OffsetCommitRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 10+."""
    name: str
    """string, versions 2-9."""
    partitions: list[OffsetCommitRequestTopicsPartitions]
    """array of structure, versions 2+."""

class OffsetCommitRequest(Decoded):
    """API 8, versions 2 to 10."""

    group_id: str
    """string, versions 2+."""
    generation_id_or_member_epoch: int
    """int32, versions 2+; default -1."""
    member_id: str
    """string, versions 2+."""
    group_instance_id: str | None
    """string, versions 7+; default null."""
    retention_time_ms: int
    """int64, versions 2-4; default -1."""
    topics: list[OffsetCommitRequestTopics]
    """array of structure, versions 2+."""

class OffsetCommitResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 2+."""
    error_code: NotRequired[int]
    """int16, versions 2+."""

class OffsetCommitResponseTopics(TypedDict):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 10+."""
    name: NotRequired[str]
    """string, versions 2-9."""
    partitions: Sequence[OffsetCommitResponseTopicsPartitions]
    """array of structure, versions 2+."""

class OffsetCommitResponse(TypedDict):
    """API 8, versions 2 to 10."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 3+."""
    topics: Sequence[OffsetCommitResponseTopics]
    """array of structure, versions 2+."""

class OffsetDeleteRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""

class OffsetDeleteRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: list[OffsetDeleteRequestTopicsPartitions]
    """array of structure, versions 0+."""

class OffsetDeleteRequest(Decoded):
    """API 47, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    topics: list[OffsetDeleteRequestTopics]
    """array of structure, versions 0+."""

class OffsetDeleteResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class OffsetDeleteResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[OffsetDeleteResponseTopicsPartitions]
    """array of structure, versions 0+."""

class OffsetDeleteResponse(TypedDict):
    """API 47, versions 0 to 0."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    topics: Sequence[OffsetDeleteResponseTopics]
    """array of structure, versions 0+."""

class OffsetFetchRequestGroupsTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 10+."""
    name: str
    """string, versions 8-9."""
    partition_indexes: list[int]
    """array of int32, versions 8+."""

class OffsetFetchRequestGroups(Decoded):
    """An item of groups."""

    group_id: str
    """string, versions 8+."""
    member_id: str | None
    """string, versions 9+; default null."""
    member_epoch: int
    """int32, versions 9+; default -1."""
    topics: list[OffsetFetchRequestGroupsTopics] | None
    """array of structure, versions 8+."""

class OffsetFetchRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 1-7."""
    partition_indexes: list[int]
    """array of int32, versions 1-7."""

class OffsetFetchRequest(Decoded):
    """API 9, versions 1 to 10."""

    groups: list[OffsetFetchRequestGroups]
    """array of structure, versions 8+."""
    group_id: str
    """string, versions 1-7."""
    topics: list[OffsetFetchRequestTopics] | None
    """array of structure, versions 1-7."""
    require_stable: bool
    """bool, versions 7+."""

class OffsetFetchResponseGroupsTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 8+."""
    committed_offset: int
    """int64, versions 8+."""
    committed_leader_epoch: NotRequired[int]
    """int32, versions 8+; default -1."""
    metadata: NotRequired[str | None]
    """string, versions 8+."""
    error_code: NotRequired[int]
    """int16, versions 8+."""

class OffsetFetchResponseGroupsTopics(TypedDict):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 10+."""
    name: NotRequired[str]
    """string, versions 8-9."""
    partitions: Sequence[OffsetFetchResponseGroupsTopicsPartitions]
    """array of structure, versions 8+."""

class OffsetFetchResponseGroups(TypedDict):
    """An item of groups."""

    group_id: str
    """string, versions 8+."""
    topics: Sequence[OffsetFetchResponseGroupsTopics]
    """array of structure, versions 8+."""
    error_code: NotRequired[int]
    """int16, versions 8+."""

class OffsetFetchResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1-7."""
    committed_offset: int
    """int64, versions 1-7."""
    committed_leader_epoch: NotRequired[int]
    """int32, versions 5-7; default -1."""
    metadata: NotRequired[str | None]
    """string, versions 1-7."""
    error_code: NotRequired[int]
    """int16, versions 1-7."""

class OffsetFetchResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 1-7."""
    partitions: Sequence[OffsetFetchResponseTopicsPartitions]
    """array of structure, versions 1-7."""

class OffsetFetchResponse(TypedDict):
    """API 9, versions 1 to 10."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 3+."""
    groups: Sequence[OffsetFetchResponseGroups]
    """array of structure, versions 8+."""
    topics: NotRequired[Sequence[OffsetFetchResponseTopics]]
    """array of structure, versions 1-7."""
    error_code: NotRequired[int]
    """int16, versions 2-7."""

class OffsetForLeaderEpochRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 2+."""
    current_leader_epoch: int
    """int32, versions 2+; default -1."""
    leader_epoch: int
    """int32, versions 2+."""

class OffsetForLeaderEpochRequestTopics(Decoded):
    """An item of topics."""

    topic: str
    """string, versions 2+."""
    partitions: list[OffsetForLeaderEpochRequestTopicsPartitions]
    """array of structure, versions 2+."""

class OffsetForLeaderEpochRequest(Decoded):
    """API 23, versions 2 to 4."""

    replica_id: int
    """int32, versions 3+; default -2."""
    topics: list[OffsetForLeaderEpochRequestTopics]
    """array of structure, versions 2+."""

class OffsetForLeaderEpochResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    error_code: NotRequired[int]
    """int16, versions 2+."""
    partition: int
    """int32, versions 2+."""
    leader_epoch: NotRequired[int]
    """int32, versions 2+; default -1."""
    end_offset: NotRequired[int]
    """int64, versions 2+; default -1."""

class OffsetForLeaderEpochResponseTopics(TypedDict):
    """An item of topics."""

    topic: str
    """string, versions 2+."""
    partitions: Sequence[OffsetForLeaderEpochResponseTopicsPartitions]
    """array of structure, versions 2+."""

class OffsetForLeaderEpochResponse(TypedDict):
    """API 23, versions 2 to 4."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 2+."""
    topics: Sequence[OffsetForLeaderEpochResponseTopics]
    """array of structure, versions 2+."""

class ProduceRequestTopicDataPartitionData(Decoded):
    """An item of partition_data."""

    index: int
    """int32, versions 3+."""
    records: bytes | None
    """records, versions 3+."""

class ProduceRequestTopicData(Decoded):
    """An item of topic_data."""

    topic_id: UUID
    """uuid, versions 13+."""
    name: str
    """string, versions 3-12."""
    partition_data: list[ProduceRequestTopicDataPartitionData]
    """array of structure, versions 3+."""

class ProduceRequest(Decoded):
    """API 0, versions 3 to 13."""

    transactional_id: str | None
    """string, versions 3+; default null."""
    acks: int
    """int16, versions 3+."""
    timeout_ms: int
    """int32, versions 3+."""
    topic_data: list[ProduceRequestTopicData]
    """array of structure, versions 3+."""

class ProduceResponseResponsesPartitionResponsesRecordErrors(TypedDict):
    """An item of record_errors."""

    batch_index: int
    """int32, versions 8+."""
    batch_index_error_message: NotRequired[str | None]
    """string, versions 8+; default null."""

class ProduceResponseResponsesPartitionResponsesCurrentLeader(TypedDict):
    """An item of current_leader."""

    leader_id: NotRequired[int]
    """int32, versions 10+; default -1."""
    leader_epoch: NotRequired[int]
    """int32, versions 10+; default -1."""

class ProduceResponseResponsesPartitionResponses(TypedDict):
    """An item of partition_responses."""

    index: int
    """int32, versions 3+."""
    error_code: NotRequired[int]
    """int16, versions 3+."""
    base_offset: int
    """int64, versions 3+."""
    log_append_time_ms: NotRequired[int]
    """int64, versions 3+; default -1."""
    log_start_offset: NotRequired[int]
    """int64, versions 5+; default -1."""
    record_errors: Sequence[ProduceResponseResponsesPartitionResponsesRecordErrors]
    """array of structure, versions 8+."""
    error_message: NotRequired[str | None]
    """string, versions 8+; default null."""
    current_leader: NotRequired[ProduceResponseResponsesPartitionResponsesCurrentLeader]
    """structure, versions 10+; tag 0."""

class ProduceResponseResponses(TypedDict):
    """An item of responses."""

    topic_id: UUID
    """uuid, versions 13+."""
    name: NotRequired[str]
    """string, versions 3-12."""
    partition_responses: Sequence[ProduceResponseResponsesPartitionResponses]
    """array of structure, versions 3+."""

class ProduceResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 10+."""
    host: str
    """string, versions 10+."""
    port: int
    """int32, versions 10+."""
    rack: NotRequired[str | None]
    """string, versions 10+; default null."""

class ProduceResponse(TypedDict):
    """API 0, versions 3 to 13."""

    responses: Sequence[ProduceResponseResponses]
    """array of structure, versions 3+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 3+."""
    node_endpoints: NotRequired[Sequence[ProduceResponseNodeEndpoints]]
    """array of structure, versions 10+; tag 0."""

class PushTelemetryRequest(Decoded):
    """API 72, versions 0 to 0."""

    client_instance_id: UUID
    """uuid, versions 0+."""
    subscription_id: int
    """int32, versions 0+."""
    terminating: bool
    """bool, versions 0+."""
    compression_type: int
    """int8, versions 0+."""
    metrics: bytes
    """bytes, versions 0+."""

class PushTelemetryResponse(TypedDict):
    """API 72, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class ReadShareGroupStateRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""

class ReadShareGroupStateRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[ReadShareGroupStateRequestTopicsPartitions]
    """array of structure, versions 0+."""

class ReadShareGroupStateRequest(Decoded):
    """API 84, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    topics: list[ReadShareGroupStateRequestTopics]
    """array of structure, versions 0+."""

class ReadShareGroupStateResponseResultsPartitionsStateBatches(TypedDict):
    """An item of state_batches."""

    first_offset: int
    """int64, versions 0+."""
    last_offset: int
    """int64, versions 0+."""
    delivery_state: int
    """int8, versions 0+."""
    delivery_count: int
    """int16, versions 0+."""

class ReadShareGroupStateResponseResultsPartitions(TypedDict):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    state_epoch: int
    """int32, versions 0+."""
    start_offset: int
    """int64, versions 0+."""
    state_batches: Sequence[ReadShareGroupStateResponseResultsPartitionsStateBatches]
    """array of structure, versions 0+."""

class ReadShareGroupStateResponseResults(TypedDict):
    """An item of results."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[ReadShareGroupStateResponseResultsPartitions]
    """array of structure, versions 0+."""

class ReadShareGroupStateResponse(TypedDict):
    """API 84, versions 0 to 0."""

    results: Sequence[ReadShareGroupStateResponseResults]
    """array of structure, versions 0+."""

class ReadShareGroupStateSummaryRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""

class ReadShareGroupStateSummaryRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[ReadShareGroupStateSummaryRequestTopicsPartitions]
    """array of structure, versions 0+."""

class ReadShareGroupStateSummaryRequest(Decoded):
    """API 87, versions 0 to 1."""

    group_id: str
    """string, versions 0+."""
    topics: list[ReadShareGroupStateSummaryRequestTopics]
    """array of structure, versions 0+."""

class ReadShareGroupStateSummaryResponseResultsPartitions(TypedDict):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    state_epoch: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""
    start_offset: int
    """int64, versions 0+."""
    delivery_complete_count: NotRequired[int]
    """int32, versions 1+; default -1."""

class ReadShareGroupStateSummaryResponseResults(TypedDict):
    """An item of results."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[ReadShareGroupStateSummaryResponseResultsPartitions]
    """array of structure, versions 0+."""

class ReadShareGroupStateSummaryResponse(TypedDict):
    """API 87, versions 0 to 1."""

    results: Sequence[ReadShareGroupStateSummaryResponseResults]
    """array of structure, versions 0+."""

class RemoveRaftVoterRequest(Decoded):
    """API 81, versions 0 to 0."""

    cluster_id: str | None
    """string, versions 0+."""
    voter_id: int
    """int32, versions 0+."""
    voter_directory_id: UUID
    """uuid, versions 0+."""

class RemoveRaftVoterResponse(TypedDict):
    """API 81, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class RenewDelegationTokenRequest(Decoded):
    """API 39, versions 1 to 2."""

    hmac: bytes
    """bytes, versions 1+."""
    renew_period_ms: int
    """int64, versions 1+."""

class RenewDelegationTokenResponse(TypedDict):
    """API 39, versions 1 to 2."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    expiry_timestamp_ms: int
    """int64, versions 1+."""
    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""

class ReportAuditEventsRequest(Decoded):
    """API 10000, versions 0 to 0."""

    events: list[str]
    """array of string, versions 0+."""

class ReportAuditEventsResponse(TypedDict):
    """API 10000, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    accepted: int
    """int32, versions 0+."""

class SaslAuthenticateRequest(Decoded):
    """API 36, versions 0 to 2."""

    auth_bytes: bytes
    """bytes, versions 0+."""

class SaslAuthenticateResponse(TypedDict):
    """API 36, versions 0 to 2."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    auth_bytes: bytes | bytearray | memoryview
    """bytes, versions 0+."""
    session_lifetime_ms: int
    """int64, versions 1+."""

class SaslHandshakeRequest(Decoded):
    """API 17, versions 0 to 1."""

    mechanism: str
    """string, versions 0+."""

class SaslHandshakeResponse(TypedDict):
    """API 17, versions 0 to 1."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    mechanisms: Sequence[str]
    """array of string, versions 0+."""

class ShareAcknowledgeRequestTopicsPartitionsAcknowledgementBatches(Decoded):
    """An item of acknowledgement_batches."""

    first_offset: int
    """int64, versions 1+."""
    last_offset: int
    """int64, versions 1+."""
    acknowledge_types: list[int]
    """array of int8, versions 1+."""

class ShareAcknowledgeRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    acknowledgement_batches: list[ShareAcknowledgeRequestTopicsPartitionsAcknowledgementBatches]
    """array of structure, versions 1+."""

class ShareAcknowledgeRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 1+."""
    partitions: list[ShareAcknowledgeRequestTopicsPartitions]
    """array of structure, versions 1+."""

class ShareAcknowledgeRequest(Decoded):
    """API 79, versions 1 to 2."""

    group_id: str | None
    """string, versions 1+; default null."""
    member_id: str | None
    """string, versions 1+."""
    share_session_epoch: int
    """int32, versions 1+."""
    is_renew_ack: bool
    """bool, versions 2+."""
    topics: list[ShareAcknowledgeRequestTopics]
    """array of structure, versions 1+."""

class ShareAcknowledgeResponseResponsesPartitionsCurrentLeader(TypedDict):
    """An item of current_leader."""

    leader_id: int
    """int32, versions 1+."""
    leader_epoch: int
    """int32, versions 1+."""

class ShareAcknowledgeResponseResponsesPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    current_leader: ShareAcknowledgeResponseResponsesPartitionsCurrentLeader
    """structure, versions 1+."""

class ShareAcknowledgeResponseResponses(TypedDict):
    """An item of responses."""

    topic_id: UUID
    """uuid, versions 1+."""
    partitions: Sequence[ShareAcknowledgeResponseResponsesPartitions]
    """array of structure, versions 1+."""

class ShareAcknowledgeResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """int32, versions 1+."""
    rack: NotRequired[str | None]
    """string, versions 1+; default null."""

class ShareAcknowledgeResponse(TypedDict):
    """API 79, versions 1 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    acquisition_lock_timeout_ms: int
    """int32, versions 2+."""
    responses: Sequence[ShareAcknowledgeResponseResponses]
    """array of structure, versions 1+."""
    node_endpoints: Sequence[ShareAcknowledgeResponseNodeEndpoints]
    """array of structure, versions 1+."""

class ShareFetchRequestTopicsPartitionsAcknowledgementBatches(Decoded):
    """An item of acknowledgement_batches."""

    first_offset: int
    """int64, versions 1+."""
    last_offset: int
    """int64, versions 1+."""
    acknowledge_types: list[int]
    """array of int8, versions 1+."""

class ShareFetchRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    acknowledgement_batches: list[ShareFetchRequestTopicsPartitionsAcknowledgementBatches]
    """array of structure, versions 1+."""

class ShareFetchRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 1+."""
    partitions: list[ShareFetchRequestTopicsPartitions]
    """array of structure, versions 1+."""

class ShareFetchRequestForgottenTopicsData(Decoded):
    """An item of forgotten_topics_data."""

    topic_id: UUID
    """uuid, versions 1+."""
    partitions: list[int]
    """array of int32, versions 1+."""

class ShareFetchRequest(Decoded):
    """API 78, versions 1 to 2."""

    group_id: str | None
    """string, versions 1+; default null."""
    member_id: str | None
    """string, versions 1+."""
    share_session_epoch: int
    """int32, versions 1+."""
    max_wait_ms: int
    """int32, versions 1+."""
    min_bytes: int
    """int32, versions 1+."""
    max_bytes: int
    """int32, versions 1+; default 2147483647."""
    max_records: int
    """int32, versions 1+."""
    batch_size: int
    """int32, versions 1+."""
    share_acquire_mode: int
    """int8, versions 2+."""
    is_renew_ack: bool
    """bool, versions 2+."""
    topics: list[ShareFetchRequestTopics]
    """array of structure, versions 1+."""
    forgotten_topics_data: list[ShareFetchRequestForgottenTopicsData]
    """array of structure, versions 1+."""

class ShareFetchResponseResponsesPartitionsCurrentLeader(TypedDict):
    """An item of current_leader."""

    leader_id: int
    """int32, versions 1+."""
    leader_epoch: int
    """int32, versions 1+."""

class ShareFetchResponseResponsesPartitionsAcquiredRecords(TypedDict):
    """An item of acquired_records."""

    first_offset: int
    """int64, versions 1+."""
    last_offset: int
    """int64, versions 1+."""
    delivery_count: int
    """int16, versions 1+."""

class ShareFetchResponseResponsesPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    acknowledge_error_code: int
    """int16, versions 1+."""
    acknowledge_error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    current_leader: ShareFetchResponseResponsesPartitionsCurrentLeader
    """structure, versions 1+."""
    records: bytes | bytearray | memoryview
    """records, versions 1+."""
    acquired_records: Sequence[ShareFetchResponseResponsesPartitionsAcquiredRecords]
    """array of structure, versions 1+."""

class ShareFetchResponseResponses(TypedDict):
    """An item of responses."""

    topic_id: UUID
    """uuid, versions 1+."""
    partitions: Sequence[ShareFetchResponseResponsesPartitions]
    """array of structure, versions 1+."""

class ShareFetchResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """int32, versions 1+."""
    rack: NotRequired[str | None]
    """string, versions 1+; default null."""

class ShareFetchResponse(TypedDict):
    """API 78, versions 1 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    acquisition_lock_timeout_ms: int
    """int32, versions 1+."""
    responses: Sequence[ShareFetchResponseResponses]
    """array of structure, versions 1+."""
    node_endpoints: Sequence[ShareFetchResponseNodeEndpoints]
    """array of structure, versions 1+."""

class ShareGroupDescribeRequest(Decoded):
    """API 77, versions 1 to 1."""

    group_ids: list[str]
    """array of string, versions 1+."""
    include_authorized_operations: bool
    """bool, versions 1+."""

class ShareGroupDescribeResponseGroupsMembersAssignmentTopicPartitions(TypedDict):
    """An item of topic_partitions."""

    topic_id: UUID
    """uuid, versions 1+."""
    topic_name: str
    """string, versions 1+."""
    partitions: Sequence[int]
    """array of int32, versions 1+."""

class ShareGroupDescribeResponseGroupsMembersAssignment(TypedDict):
    """An item of assignment."""

    topic_partitions: Sequence[ShareGroupDescribeResponseGroupsMembersAssignmentTopicPartitions]
    """array of structure, versions 1+."""

class ShareGroupDescribeResponseGroupsMembers(TypedDict):
    """An item of members."""

    member_id: str
    """string, versions 1+."""
    rack_id: NotRequired[str | None]
    """string, versions 1+; default null."""
    member_epoch: int
    """int32, versions 1+."""
    client_id: str
    """string, versions 1+."""
    client_host: str
    """string, versions 1+."""
    subscribed_topic_names: Sequence[str]
    """array of string, versions 1+."""
    assignment: ShareGroupDescribeResponseGroupsMembersAssignment
    """structure, versions 1+."""

class ShareGroupDescribeResponseGroups(TypedDict):
    """An item of groups."""

    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    group_id: str
    """string, versions 1+."""
    group_state: str
    """string, versions 1+."""
    group_epoch: int
    """int32, versions 1+."""
    assignment_epoch: int
    """int32, versions 1+."""
    assignor_name: str
    """string, versions 1+."""
    members: Sequence[ShareGroupDescribeResponseGroupsMembers]
    """array of structure, versions 1+."""
    authorized_operations: NotRequired[int]
    """int32, versions 1+; default -2147483648."""

class ShareGroupDescribeResponse(TypedDict):
    """API 77, versions 1 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    groups: Sequence[ShareGroupDescribeResponseGroups]
    """array of structure, versions 1+."""

class ShareGroupHeartbeatRequest(Decoded):
    """API 76, versions 1 to 1."""

    group_id: str
    """string, versions 1+."""
    member_id: str
    """string, versions 1+."""
    member_epoch: int
    """int32, versions 1+."""
    rack_id: str | None
    """string, versions 1+; default null."""
    subscribed_topic_names: list[str] | None
    """array of string, versions 1+."""

class ShareGroupHeartbeatResponseAssignmentTopicPartitions(TypedDict):
    """An item of topic_partitions."""

    topic_id: UUID
    """uuid, versions 1+."""
    partitions: Sequence[int]
    """array of int32, versions 1+."""

class ShareGroupHeartbeatResponseAssignment(TypedDict):
    """An item of assignment."""

    topic_partitions: Sequence[ShareGroupHeartbeatResponseAssignmentTopicPartitions]
    """array of structure, versions 1+."""

class ShareGroupHeartbeatResponse(TypedDict):
    """API 76, versions 1 to 1."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""
    error_message: NotRequired[str | None]
    """string, versions 1+; default null."""
    member_id: NotRequired[str | None]
    """string, versions 1+; default null."""
    member_epoch: int
    """int32, versions 1+."""
    heartbeat_interval_ms: int
    """int32, versions 1+."""
    assignment: NotRequired[ShareGroupHeartbeatResponseAssignment | None]
    """structure, versions 1+; default null."""

class StreamsGroupDescribeRequest(Decoded):
    """API 89, versions 0 to 0."""

    group_ids: list[str]
    """array of string, versions 0+."""
    include_authorized_operations: bool
    """bool, versions 0+."""

class StreamsGroupDescribeResponseGroupsTopologySubtopologiesStateChangelogTopicsTopicConfigs(TypedDict):
    """An item of topic_configs."""

    key: str
    """string, versions 0+."""
    value: str
    """string, versions 0+."""

class StreamsGroupDescribeResponseGroupsTopologySubtopologiesStateChangelogTopics(TypedDict):
    """An item of state_changelog_topics."""

    name: str
    """string, versions 0+."""
    partitions: int
    """int32, versions 0+."""
    replication_factor: int
    """int16, versions 0+."""
    topic_configs: Sequence[StreamsGroupDescribeResponseGroupsTopologySubtopologiesStateChangelogTopicsTopicConfigs]
    """array of structure, versions 0+."""

class StreamsGroupDescribeResponseGroupsTopologySubtopologiesRepartitionSourceTopicsTopicConfigs(TypedDict):
    """An item of topic_configs."""

    key: str
    """string, versions 0+."""
    value: str
    """string, versions 0+."""

class StreamsGroupDescribeResponseGroupsTopologySubtopologiesRepartitionSourceTopics(TypedDict):
    """An item of repartition_source_topics."""

    name: str
    """string, versions 0+."""
    partitions: int
    """int32, versions 0+."""
    replication_factor: int
    """int16, versions 0+."""
    topic_configs: Sequence[StreamsGroupDescribeResponseGroupsTopologySubtopologiesRepartitionSourceTopicsTopicConfigs]
    """array of structure, versions 0+."""

class StreamsGroupDescribeResponseGroupsTopologySubtopologies(TypedDict):
    """An item of subtopologies."""

    subtopology_id: str
    """string, versions 0+."""
    source_topics: Sequence[str]
    """array of string, versions 0+."""
    repartition_sink_topics: Sequence[str]
    """array of string, versions 0+."""
    state_changelog_topics: Sequence[StreamsGroupDescribeResponseGroupsTopologySubtopologiesStateChangelogTopics]
    """array of structure, versions 0+."""
    repartition_source_topics: Sequence[StreamsGroupDescribeResponseGroupsTopologySubtopologiesRepartitionSourceTopics]
    """array of structure, versions 0+."""

class StreamsGroupDescribeResponseGroupsTopology(TypedDict):
    """An item of topology."""

    epoch: int
    """int32, versions 0+."""
    subtopologies: NotRequired[Sequence[StreamsGroupDescribeResponseGroupsTopologySubtopologies] | None]
    """array of structure, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersUserEndpoint(TypedDict):
    """An item of user_endpoint."""

    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersClientTags(TypedDict):
    """An item of client_tags."""

    key: str
    """string, versions 0+."""
    value: str
    """string, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersTaskOffsets(TypedDict):
    """An item of task_offsets."""

    subtopology_id: str
    """string, versions 0+."""
    partition: int
    """int32, versions 0+."""
    offset: int
    """int64, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersTaskEndOffsets(TypedDict):
    """An item of task_end_offsets."""

    subtopology_id: str
    """string, versions 0+."""
    partition: int
    """int32, versions 0+."""
    offset: int
    """int64, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersAssignmentActiveTasks(TypedDict):
    """An item of active_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersAssignmentStandbyTasks(TypedDict):
    """An item of standby_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersAssignmentWarmupTasks(TypedDict):
    """An item of warmup_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersAssignment(TypedDict):
    """An item of assignment."""

    active_tasks: Sequence[StreamsGroupDescribeResponseGroupsMembersAssignmentActiveTasks]
    """array of structure, versions 0+."""
    standby_tasks: Sequence[StreamsGroupDescribeResponseGroupsMembersAssignmentStandbyTasks]
    """array of structure, versions 0+."""
    warmup_tasks: Sequence[StreamsGroupDescribeResponseGroupsMembersAssignmentWarmupTasks]
    """array of structure, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersTargetAssignmentActiveTasks(TypedDict):
    """An item of active_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersTargetAssignmentStandbyTasks(TypedDict):
    """An item of standby_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersTargetAssignmentWarmupTasks(TypedDict):
    """An item of warmup_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembersTargetAssignment(TypedDict):
    """An item of target_assignment."""

    active_tasks: Sequence[StreamsGroupDescribeResponseGroupsMembersTargetAssignmentActiveTasks]
    """array of structure, versions 0+."""
    standby_tasks: Sequence[StreamsGroupDescribeResponseGroupsMembersTargetAssignmentStandbyTasks]
    """array of structure, versions 0+."""
    warmup_tasks: Sequence[StreamsGroupDescribeResponseGroupsMembersTargetAssignmentWarmupTasks]
    """array of structure, versions 0+."""

class StreamsGroupDescribeResponseGroupsMembers(TypedDict):
    """An item of members."""

    member_id: str
    """string, versions 0+."""
    member_epoch: int
    """int32, versions 0+."""
    instance_id: NotRequired[str | None]
    """string, versions 0+; default null."""
    rack_id: NotRequired[str | None]
    """string, versions 0+; default null."""
    client_id: str
    """string, versions 0+."""
    client_host: str
    """string, versions 0+."""
    topology_epoch: int
    """int32, versions 0+."""
    process_id: str
    """string, versions 0+."""
    user_endpoint: NotRequired[StreamsGroupDescribeResponseGroupsMembersUserEndpoint | None]
    """structure, versions 0+; default null."""
    client_tags: Sequence[StreamsGroupDescribeResponseGroupsMembersClientTags]
    """array of structure, versions 0+."""
    task_offsets: Sequence[StreamsGroupDescribeResponseGroupsMembersTaskOffsets]
    """array of structure, versions 0+."""
    task_end_offsets: Sequence[StreamsGroupDescribeResponseGroupsMembersTaskEndOffsets]
    """array of structure, versions 0+."""
    assignment: StreamsGroupDescribeResponseGroupsMembersAssignment
    """structure, versions 0+."""
    target_assignment: StreamsGroupDescribeResponseGroupsMembersTargetAssignment
    """structure, versions 0+."""
    is_classic: bool
    """bool, versions 0+."""

class StreamsGroupDescribeResponseGroups(TypedDict):
    """An item of groups."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    group_id: str
    """string, versions 0+."""
    group_state: str
    """string, versions 0+."""
    group_epoch: int
    """int32, versions 0+."""
    assignment_epoch: int
    """int32, versions 0+."""
    topology: NotRequired[StreamsGroupDescribeResponseGroupsTopology | None]
    """structure, versions 0+; default null."""
    members: Sequence[StreamsGroupDescribeResponseGroupsMembers]
    """array of structure, versions 0+."""
    authorized_operations: NotRequired[int]
    """int32, versions 0+; default -2147483648."""

class StreamsGroupDescribeResponse(TypedDict):
    """API 89, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    groups: Sequence[StreamsGroupDescribeResponseGroups]
    """array of structure, versions 0+."""

class StreamsGroupHeartbeatRequestTopologySubtopologiesStateChangelogTopicsTopicConfigs(Decoded):
    """An item of topic_configs."""

    key: str
    """string, versions 0+."""
    value: str
    """string, versions 0+."""

class StreamsGroupHeartbeatRequestTopologySubtopologiesStateChangelogTopics(Decoded):
    """An item of state_changelog_topics."""

    name: str
    """string, versions 0+."""
    partitions: int
    """int32, versions 0+."""
    replication_factor: int
    """int16, versions 0+."""
    topic_configs: list[StreamsGroupHeartbeatRequestTopologySubtopologiesStateChangelogTopicsTopicConfigs]
    """array of structure, versions 0+."""

class StreamsGroupHeartbeatRequestTopologySubtopologiesRepartitionSourceTopicsTopicConfigs(Decoded):
    """An item of topic_configs."""

    key: str
    """string, versions 0+."""
    value: str
    """string, versions 0+."""

class StreamsGroupHeartbeatRequestTopologySubtopologiesRepartitionSourceTopics(Decoded):
    """An item of repartition_source_topics."""

    name: str
    """string, versions 0+."""
    partitions: int
    """int32, versions 0+."""
    replication_factor: int
    """int16, versions 0+."""
    topic_configs: list[StreamsGroupHeartbeatRequestTopologySubtopologiesRepartitionSourceTopicsTopicConfigs]
    """array of structure, versions 0+."""

class StreamsGroupHeartbeatRequestTopologySubtopologiesCopartitionGroups(Decoded):
    """An item of copartition_groups."""

    source_topics: list[int]
    """array of int16, versions 0+."""
    source_topic_regex: list[int]
    """array of int16, versions 0+."""
    repartition_source_topics: list[int]
    """array of int16, versions 0+."""

class StreamsGroupHeartbeatRequestTopologySubtopologies(Decoded):
    """An item of subtopologies."""

    subtopology_id: str
    """string, versions 0+."""
    source_topics: list[str]
    """array of string, versions 0+."""
    source_topic_regex: list[str]
    """array of string, versions 0+."""
    state_changelog_topics: list[StreamsGroupHeartbeatRequestTopologySubtopologiesStateChangelogTopics]
    """array of structure, versions 0+."""
    repartition_sink_topics: list[str]
    """array of string, versions 0+."""
    repartition_source_topics: list[StreamsGroupHeartbeatRequestTopologySubtopologiesRepartitionSourceTopics]
    """array of structure, versions 0+."""
    copartition_groups: list[StreamsGroupHeartbeatRequestTopologySubtopologiesCopartitionGroups]
    """array of structure, versions 0+."""

class StreamsGroupHeartbeatRequestTopology(Decoded):
    """An item of topology."""

    epoch: int
    """int32, versions 0+."""
    subtopologies: list[StreamsGroupHeartbeatRequestTopologySubtopologies]
    """array of structure, versions 0+."""

class StreamsGroupHeartbeatRequestActiveTasks(Decoded):
    """An item of active_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: list[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatRequestStandbyTasks(Decoded):
    """An item of standby_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: list[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatRequestWarmupTasks(Decoded):
    """An item of warmup_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: list[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatRequestUserEndpoint(Decoded):
    """An item of user_endpoint."""

    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""

class StreamsGroupHeartbeatRequestClientTags(Decoded):
    """An item of client_tags."""

    key: str
    """string, versions 0+."""
    value: str
    """string, versions 0+."""

class StreamsGroupHeartbeatRequestTaskOffsets(Decoded):
    """An item of task_offsets."""

    subtopology_id: str
    """string, versions 0+."""
    partition: int
    """int32, versions 0+."""
    offset: int
    """int64, versions 0+."""

class StreamsGroupHeartbeatRequestTaskEndOffsets(Decoded):
    """An item of task_end_offsets."""

    subtopology_id: str
    """string, versions 0+."""
    partition: int
    """int32, versions 0+."""
    offset: int
    """int64, versions 0+."""

class StreamsGroupHeartbeatRequest(Decoded):
    """API 88, versions 0 to 0."""

    group_id: str
    """string, versions 0+."""
    member_id: str
    """string, versions 0+."""
    member_epoch: int
    """int32, versions 0+."""
    endpoint_information_epoch: int
    """int32, versions 0+."""
    instance_id: str | None
    """string, versions 0+; default null."""
    rack_id: str | None
    """string, versions 0+; default null."""
    rebalance_timeout_ms: int
    """int32, versions 0+; default -1."""
    topology: StreamsGroupHeartbeatRequestTopology | None
    """structure, versions 0+; default null."""
    active_tasks: list[StreamsGroupHeartbeatRequestActiveTasks] | None
    """array of structure, versions 0+."""
    standby_tasks: list[StreamsGroupHeartbeatRequestStandbyTasks] | None
    """array of structure, versions 0+."""
    warmup_tasks: list[StreamsGroupHeartbeatRequestWarmupTasks] | None
    """array of structure, versions 0+."""
    process_id: str | None
    """string, versions 0+; default null."""
    user_endpoint: StreamsGroupHeartbeatRequestUserEndpoint | None
    """structure, versions 0+; default null."""
    client_tags: list[StreamsGroupHeartbeatRequestClientTags] | None
    """array of structure, versions 0+."""
    task_offsets: list[StreamsGroupHeartbeatRequestTaskOffsets] | None
    """array of structure, versions 0+."""
    task_end_offsets: list[StreamsGroupHeartbeatRequestTaskEndOffsets] | None
    """array of structure, versions 0+."""
    shutdown_application: bool
    """bool, versions 0+."""

class StreamsGroupHeartbeatResponseStatus(TypedDict):
    """An item of status."""

    status_code: int
    """int8, versions 0+."""
    status_detail: str
    """string, versions 0+."""

class StreamsGroupHeartbeatResponseActiveTasks(TypedDict):
    """An item of active_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatResponseStandbyTasks(TypedDict):
    """An item of standby_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatResponseWarmupTasks(TypedDict):
    """An item of warmup_tasks."""

    subtopology_id: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatResponsePartitionsByUserEndpointUserEndpoint(TypedDict):
    """An item of user_endpoint."""

    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""

class StreamsGroupHeartbeatResponsePartitionsByUserEndpointActivePartitions(TypedDict):
    """An item of active_partitions."""

    topic: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatResponsePartitionsByUserEndpointStandbyPartitions(TypedDict):
    """An item of standby_partitions."""

    topic: str
    """string, versions 0+."""
    partitions: Sequence[int]
    """array of int32, versions 0+."""

class StreamsGroupHeartbeatResponsePartitionsByUserEndpoint(TypedDict):
    """An item of partitions_by_user_endpoint."""

    user_endpoint: StreamsGroupHeartbeatResponsePartitionsByUserEndpointUserEndpoint
    """structure, versions 0+."""
    active_partitions: Sequence[StreamsGroupHeartbeatResponsePartitionsByUserEndpointActivePartitions]
    """array of structure, versions 0+."""
    standby_partitions: Sequence[StreamsGroupHeartbeatResponsePartitionsByUserEndpointStandbyPartitions]
    """array of structure, versions 0+."""

class StreamsGroupHeartbeatResponse(TypedDict):
    """API 88, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""
    member_id: str
    """string, versions 0+."""
    member_epoch: int
    """int32, versions 0+."""
    heartbeat_interval_ms: int
    """int32, versions 0+."""
    acceptable_recovery_lag: int
    """int32, versions 0+."""
    task_offset_interval_ms: int
    """int32, versions 0+."""
    status: NotRequired[Sequence[StreamsGroupHeartbeatResponseStatus] | None]
    """array of structure, versions 0+."""
    active_tasks: NotRequired[Sequence[StreamsGroupHeartbeatResponseActiveTasks] | None]
    """array of structure, versions 0+."""
    standby_tasks: NotRequired[Sequence[StreamsGroupHeartbeatResponseStandbyTasks] | None]
    """array of structure, versions 0+."""
    warmup_tasks: NotRequired[Sequence[StreamsGroupHeartbeatResponseWarmupTasks] | None]
    """array of structure, versions 0+."""
    endpoint_information_epoch: int
    """int32, versions 0+."""
    partitions_by_user_endpoint: NotRequired[Sequence[StreamsGroupHeartbeatResponsePartitionsByUserEndpoint] | None]
    """array of structure, versions 0+."""

class SyncGroupRequestAssignments(Decoded):
    """An item of assignments."""

    member_id: str
    """string, versions 0+."""
    assignment: bytes
    """bytes, versions 0+."""

class SyncGroupRequest(Decoded):
    """API 14, versions 0 to 5."""

    group_id: str
    """string, versions 0+."""
    generation_id: int
    """int32, versions 0+."""
    member_id: str
    """string, versions 0+."""
    group_instance_id: str | None
    """string, versions 3+; default null."""
    protocol_type: str | None
    """string, versions 5+; default null."""
    protocol_name: str | None
    """string, versions 5+; default null."""
    assignments: list[SyncGroupRequestAssignments]
    """array of structure, versions 0+."""

class SyncGroupResponse(TypedDict):
    """API 14, versions 0 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    protocol_type: NotRequired[str | None]
    """string, versions 5+; default null."""
    protocol_name: NotRequired[str | None]
    """string, versions 5+; default null."""
    assignment: bytes | bytearray | memoryview
    """bytes, versions 0+."""

class TxnOffsetCommitRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    committed_offset: int
    """int64, versions 0+."""
    committed_leader_epoch: int
    """int32, versions 2+; default -1."""
    committed_metadata: str | None
    """string, versions 0+."""

class TxnOffsetCommitRequestTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: list[TxnOffsetCommitRequestTopicsPartitions]
    """array of structure, versions 0+."""

class TxnOffsetCommitRequest(Decoded):
    """API 28, versions 0 to 5."""

    transactional_id: str
    """string, versions 0+."""
    group_id: str
    """string, versions 0+."""
    producer_id: int
    """int64, versions 0+."""
    producer_epoch: int
    """int16, versions 0+."""
    generation_id: int
    """int32, versions 3+; default -1."""
    member_id: str
    """string, versions 3+."""
    group_instance_id: str | None
    """string, versions 3+; default null."""
    topics: list[TxnOffsetCommitRequestTopics]
    """array of structure, versions 0+."""

class TxnOffsetCommitResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""

class TxnOffsetCommitResponseTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 0+."""
    partitions: Sequence[TxnOffsetCommitResponseTopicsPartitions]
    """array of structure, versions 0+."""

class TxnOffsetCommitResponse(TypedDict):
    """API 28, versions 0 to 5."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    topics: Sequence[TxnOffsetCommitResponseTopics]
    """array of structure, versions 0+."""

class UnregisterBrokerRequest(Decoded):
    """API 64, versions 0 to 0."""

    broker_id: int
    """int32, versions 0+."""

class UnregisterBrokerResponse(TypedDict):
    """API 64, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""

class UpdateFeaturesRequestFeatureUpdates(Decoded):
    """An item of feature_updates."""

    feature: str
    """string, versions 0+."""
    max_version_level: int
    """int16, versions 0+."""
    upgrade_type: int
    """int8, versions 1+; default 1."""
    allow_downgrade: bool
    """bool, version 0."""

class UpdateFeaturesRequest(Decoded):
    """API 57, versions 0 to 2."""

    timeout_ms: int
    """int32, versions 0+; default 60000."""
    feature_updates: list[UpdateFeaturesRequestFeatureUpdates]
    """array of structure, versions 0+."""
    validate_only: bool
    """bool, versions 1+."""

class UpdateFeaturesResponseResults(TypedDict):
    """An item of results."""

    feature: str
    """string, versions 0-1."""
    error_code: NotRequired[int]
    """int16, versions 0-1."""
    error_message: NotRequired[str | None]
    """string, versions 0-1."""

class UpdateFeaturesResponse(TypedDict):
    """API 57, versions 0 to 2."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+."""
    results: NotRequired[Sequence[UpdateFeaturesResponseResults]]
    """array of structure, versions 0-1."""

class UpdateRaftVoterRequestListeners(Decoded):
    """An item of listeners."""

    name: str
    """string, versions 0+."""
    host: str
    """string, versions 0+."""
    port: int
    """uint16, versions 0+."""

class UpdateRaftVoterRequestKRaftVersionFeature(Decoded):
    """An item of k_raft_version_feature."""

    min_supported_version: int
    """int16, versions 0+."""
    max_supported_version: int
    """int16, versions 0+."""

class UpdateRaftVoterRequest(Decoded):
    """API 82, versions 0 to 0."""

    cluster_id: str | None
    """string, versions 0+."""
    current_leader_epoch: int
    """int32, versions 0+."""
    voter_id: int
    """int32, versions 0+."""
    voter_directory_id: UUID
    """uuid, versions 0+."""
    listeners: list[UpdateRaftVoterRequestListeners]
    """array of structure, versions 0+."""
    k_raft_version_feature: UpdateRaftVoterRequestKRaftVersionFeature
    """structure, versions 0+."""

class UpdateRaftVoterResponseCurrentLeader(TypedDict):
    """An item of current_leader."""

    leader_id: NotRequired[int]
    """int32, versions 0+; default -1."""
    leader_epoch: NotRequired[int]
    """int32, versions 0+; default -1."""
    host: str
    """string, versions 0+."""
    port: int
    """int32, versions 0+."""

class UpdateRaftVoterResponse(TypedDict):
    """API 82, versions 0 to 0."""

    throttle_time_ms: NotRequired[int]
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    current_leader: NotRequired[UpdateRaftVoterResponseCurrentLeader]
    """structure, versions 0+; tag 0."""

class VoteRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    replica_epoch: int
    """int32, versions 0+."""
    replica_id: int
    """int32, versions 0+."""
    replica_directory_id: UUID
    """uuid, versions 1+."""
    voter_directory_id: UUID
    """uuid, versions 1+."""
    last_offset_epoch: int
    """int32, versions 0+."""
    last_offset: int
    """int64, versions 0+."""
    pre_vote: bool
    """bool, versions 2+."""

class VoteRequestTopics(Decoded):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: list[VoteRequestTopicsPartitions]
    """array of structure, versions 0+."""

class VoteRequest(Decoded):
    """API 52, versions 0 to 2."""

    cluster_id: str | None
    """string, versions 0+; default null."""
    voter_id: int
    """int32, versions 1+; default -1."""
    topics: list[VoteRequestTopics]
    """array of structure, versions 0+."""

class VoteResponseTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    leader_id: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""
    vote_granted: bool
    """bool, versions 0+."""

class VoteResponseTopics(TypedDict):
    """An item of topics."""

    topic_name: str
    """string, versions 0+."""
    partitions: Sequence[VoteResponseTopicsPartitions]
    """array of structure, versions 0+."""

class VoteResponseNodeEndpoints(TypedDict):
    """An item of node_endpoints."""

    node_id: int
    """int32, versions 1+."""
    host: str
    """string, versions 1+."""
    port: int
    """uint16, versions 1+."""

class VoteResponse(TypedDict):
    """API 52, versions 0 to 2."""

    error_code: NotRequired[int]
    """int16, versions 0+."""
    topics: Sequence[VoteResponseTopics]
    """array of structure, versions 0+."""
    node_endpoints: NotRequired[Sequence[VoteResponseNodeEndpoints]]
    """array of structure, versions 1+; tag 0."""

class WriteShareGroupStateRequestTopicsPartitionsStateBatches(Decoded):
    """An item of state_batches."""

    first_offset: int
    """int64, versions 0+."""
    last_offset: int
    """int64, versions 0+."""
    delivery_state: int
    """int8, versions 0+."""
    delivery_count: int
    """int16, versions 0+."""

class WriteShareGroupStateRequestTopicsPartitions(Decoded):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    state_epoch: int
    """int32, versions 0+."""
    leader_epoch: int
    """int32, versions 0+."""
    start_offset: int
    """int64, versions 0+."""
    delivery_complete_count: int
    """int32, versions 1+; default -1."""
    state_batches: list[WriteShareGroupStateRequestTopicsPartitionsStateBatches]
    """array of structure, versions 0+."""

class WriteShareGroupStateRequestTopics(Decoded):
    """An item of topics."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: list[WriteShareGroupStateRequestTopicsPartitions]
    """array of structure, versions 0+."""

class WriteShareGroupStateRequest(Decoded):
    """API 85, versions 0 to 1."""

    group_id: str
    """string, versions 0+."""
    topics: list[WriteShareGroupStateRequestTopics]
    """array of structure, versions 0+."""

class WriteShareGroupStateResponseResultsPartitions(TypedDict):
    """An item of partitions."""

    partition: int
    """int32, versions 0+."""
    error_code: NotRequired[int]
    """int16, versions 0+."""
    error_message: NotRequired[str | None]
    """string, versions 0+; default null."""

class WriteShareGroupStateResponseResults(TypedDict):
    """An item of results."""

    topic_id: UUID
    """uuid, versions 0+."""
    partitions: Sequence[WriteShareGroupStateResponseResultsPartitions]
    """array of structure, versions 0+."""

class WriteShareGroupStateResponse(TypedDict):
    """API 85, versions 0 to 1."""

    results: Sequence[WriteShareGroupStateResponseResults]
    """array of structure, versions 0+."""

class WriteTxnMarkersRequestMarkersTopics(Decoded):
    """An item of topics."""

    name: str
    """string, versions 1+."""
    partition_indexes: list[int]
    """array of int32, versions 1+."""

class WriteTxnMarkersRequestMarkers(Decoded):
    """An item of markers."""

    producer_id: int
    """int64, versions 1+."""
    producer_epoch: int
    """int16, versions 1+."""
    transaction_result: bool
    """bool, versions 1+."""
    topics: list[WriteTxnMarkersRequestMarkersTopics]
    """array of structure, versions 1+."""
    coordinator_epoch: int
    """int32, versions 1+."""
    transaction_version: int
    """int8, versions 2+."""

class WriteTxnMarkersRequest(Decoded):
    """API 27, versions 1 to 2."""

    markers: list[WriteTxnMarkersRequestMarkers]
    """array of structure, versions 1+."""

class WriteTxnMarkersResponseMarkersTopicsPartitions(TypedDict):
    """An item of partitions."""

    partition_index: int
    """int32, versions 1+."""
    error_code: NotRequired[int]
    """int16, versions 1+."""

class WriteTxnMarkersResponseMarkersTopics(TypedDict):
    """An item of topics."""

    name: str
    """string, versions 1+."""
    partitions: Sequence[WriteTxnMarkersResponseMarkersTopicsPartitions]
    """array of structure, versions 1+."""

class WriteTxnMarkersResponseMarkers(TypedDict):
    """An item of markers."""

    producer_id: int
    """int64, versions 1+."""
    topics: Sequence[WriteTxnMarkersResponseMarkersTopics]
    """array of structure, versions 1+."""

class WriteTxnMarkersResponse(TypedDict):
    """API 27, versions 1 to 2."""

    markers: Sequence[WriteTxnMarkersResponseMarkers]
    """array of structure, versions 1+."""

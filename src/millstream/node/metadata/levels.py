"""The level of a feature that each format between nodes needs: metadata records, records of coordinators, own fields,
messages. A format that is new must be added here (a test compares the tables with all schemas), so that nodes of the
previous version never get what they cannot read: the active controller refuses metadata records above the level of the
cluster, and the others are behind the features named here.

`EVERY`: all released versions read it.
"""

from collections.abc import Mapping
from typing import NamedTuple

METADATA = "metadata.version"
EVERY = 0

RECORDS: Mapping[str, tuple[int, ...]] = {
    "register_broker": (EVERY, EVERY, EVERY, EVERY, 30),
    "unregister_broker": (EVERY,),
    "topic": (EVERY,),
    "partition": (EVERY, EVERY, EVERY),
    "config": (EVERY,),
    "partition_change": (EVERY, EVERY, EVERY),
    "fence_broker": (EVERY,),
    "unfence_broker": (EVERY,),
    "remove_topic": (EVERY,),
    "feature_level": (EVERY,),
    "producer_ids": (EVERY,),
    "broker_registration_change": (EVERY, EVERY, EVERY, 30),
    "no_op": (EVERY,),
    "delegation_token": (EVERY,),
    "user_scram_credential": (EVERY,),
    "client_quota": (EVERY,),
    "access_control_entry": (EVERY,),
    "remove_access_control_entry": (EVERY,),
    "remove_user_scram_credential": (EVERY,),
    "remove_delegation_token": (EVERY,),
    "zk_migration_state": (EVERY,),
    "begin_transaction": (EVERY,),
    "end_transaction": (EVERY,),
    "abort_transaction": (EVERY,),
    "register_controller": (15,),
    "clear_elr": (EVERY,),
}
"""The `metadata.version` from which each version of a record (0, 1, 2…) is written."""

OWN_FIELDS: Mapping[str, int] = {
    "record register_broker machine_id": EVERY,
    "record topic parent_id": EVERY,
    "record topic parent_name": EVERY,
    "record topic origin_id": EVERY,
    "record topic branch_offsets": EVERY,
    "request broker_registration machine_id": EVERY,
    "request broker_registration adopted_replicas": EVERY,
    "request broker_registration retired_brokers": EVERY,
    "request create_topics branch_of": EVERY,
    "request create_topics branch_of_id": EVERY,
    "request create_topics branch_offsets": EVERY,
    "request create_acls mirror_link": EVERY,
    "response create_topics branch_of": EVERY,
    "response describe_cluster machine_id": EVERY,
    "response metadata branch_of": EVERY,
    "response metadata branch_of_id": EVERY,
    "response metadata branch_offsets": EVERY,
}
"""The `metadata.version` from which a tagged field of our own (from 10000 on) is written. Nodes that do not know it
skip it, so it needs a level if that does harm."""


class Level(NamedTuple):
    feature: str
    level: int


_OLD = Level(METADATA, EVERY)
_CONSUMER, _SHARE, _STREAMS = Level("group.version", 1), Level("share.version", 1), Level("streams.version", 1)
COORDINATOR_RECORDS: Mapping[str, tuple[Level, ...]] = {
    "transaction_log": (_OLD, Level("transaction.version", 1)),
    "share_snapshot": (_SHARE,),
    "share_update": (_SHARE,),
    "legacy_offset_commit": (_OLD,) * 5,
    "offset_commit": (_OLD,) * 5,
    "group_metadata": (_OLD,) * 5,
    "consumer_group_metadata": (_CONSUMER,),
    "consumer_group_partition_metadata": (_CONSUMER,),
    "consumer_group_member_metadata": (_CONSUMER,),
    "consumer_group_target_assignment_metadata": (_CONSUMER,),
    "consumer_group_target_assignment_member": (_CONSUMER,),
    "consumer_group_current_member_assignment": (_CONSUMER,),
    "consumer_group_regular_expression": (_CONSUMER,),
    "share_group_member_metadata": (_SHARE,),
    "share_group_metadata": (_SHARE,),
    "share_group_target_assignment_metadata": (_SHARE,),
    "share_group_target_assignment_member": (_SHARE,),
    "share_group_current_member_assignment": (_SHARE,),
    "share_group_state_partition_metadata": (_SHARE,),
    "streams_group_metadata": (_STREAMS,),
    "streams_group_member_metadata": (_STREAMS,),
    "streams_group_target_assignment_metadata": (_STREAMS,),
    "streams_group_target_assignment_member": (_STREAMS,),
    "streams_group_current_member_assignment": (_STREAMS,),
    "streams_group_topology": (_STREAMS,),
}
"""The feature that each version of a value in an internal topic needs. Another broker may load it at any time."""

MESSAGES: Mapping[str, int] = {
    "fetch": 18,
    "vote": 2,
    "begin_quorum_epoch": 1,
    "end_quorum_epoch": 1,
    "fetch_snapshot": 1,
    "update_raft_voter": 0,
    "broker_registration": 4,
    "broker_heartbeat": 2,
    "controller_registration": 0,
    "alter_partition": 3,
    "assign_replicas_to_dirs": 0,
    "allocate_producer_ids": 0,
    "envelope": 0,
    "write_txn_markers": 2,
    "add_partitions_to_txn": 5,
    "offset_for_leader_epoch": 4,
    "list_offsets": 11,
    "produce": 13,
    "initialize_share_group_state": 0,
    "read_share_group_state": 0,
    "write_share_group_state": 1,
    "delete_share_group_state": 0,
    "read_share_group_state_summary": 1,
}
"""The newest version of each request that nodes send each other. Two nodes use the newest one that both have
(ApiVersions), so a new version needs no level, unless it tells the receiver to write something new."""

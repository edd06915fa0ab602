"""How the cluster's id is kept in the metadata log: as the value of a setting of all brokers that nobody can alter.

Kafka writes it to each node's disk in a format step. Here the first leader of an empty log decides it, and a record
that Kafka's tools can read carries it to all others. It is no setting: the image keeps it apart from those.
"""

from millstream.node.metadata.image import ALL_BROKERS
from millstream.node.metadata.records import ConfigRecord

CLUSTER_ID_NAME = "cluster.id"


def cluster_id_record(cluster_id: str) -> ConfigRecord:
    """The record that gives the cluster its id; the bootstrap batch has it."""
    return ConfigRecord(
        resource_type=ALL_BROKERS.type, resource_name=ALL_BROKERS.name, name=CLUSTER_ID_NAME, value=cluster_id
    )


def is_cluster_id(record: ConfigRecord) -> bool:
    return record.name == CLUSTER_ID_NAME and (record.resource_type, record.resource_name) == ALL_BROKERS

"""Makes the topic for schemas, or checks that the one which is there can hold them: one partition, compacted."""

from uuid import UUID

from millstream.raw_client import Cluster, ErrorCode, RefusedError
from millstream.raw_client.errors import error_code, refusal
from millstream.registry.errors import store_failed

REPLICAS = 3
_TOPIC_RESOURCE = 2
_POLICY = "cleanup.policy"


def prepare_topic(cluster: Cluster, name: str) -> UUID:
    """The id of the topic."""
    found = cluster.topics([name]).get(name)
    if found is None:
        replicas = min(REPLICAS, len(cluster.brokers()))
        try:
            cluster.create_topic(name, 1, replicas, {_POLICY: "compact"})
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        found = cluster.topics([name]).get(name)
        if found is None:
            raise store_failed(f"topic {name!r} was created, and is not there")
    if len(found.partitions) != 1:
        raise store_failed(
            f"topic {name!r} has {len(found.partitions)} partitions, but schemas need one order: name another topic"
        )
    policy = _cleanup_policy(cluster, name)
    if policy != "compact":
        raise store_failed(
            f"topic {name!r} has cleanup.policy={policy}, under which schemas would be deleted: "
            f"millstream topic alter {name} --set cleanup.policy=compact"
        )
    return found.topic_id


def _cleanup_policy(cluster: Cluster, name: str) -> str:
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": [_POLICY]}
    (row,) = cluster.call("describe_configs", resources=[resource]).results
    if row.error_code:
        raise refusal(f"the configuration of topic {name!r}", error_code(row.error_code), row.error_message)
    return next((str(config.value) for config in row.configs if config.name == _POLICY), "")

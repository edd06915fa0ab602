"""Making topics, adding partitions, deleting: single requests to the cluster, and checks before they are sent."""

import re
from collections.abc import Mapping
from uuid import UUID

from millstream.raw_client import Cluster
from millstream.raw_client.errors import error_code, refusal

_TIMEOUT_MS = 30_000
_BY_NAME = UUID(int=0)
_LONGEST_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")
MOST_PARTITIONS = 10_000


def name_complaint(name: str, existing: Mapping[str, object]) -> str | None:
    """What is wrong with the name of a new topic; None if nothing."""
    if not name:
        return "a topic needs a name"
    if name in existing:
        return "there is a topic of this name already"
    if len(name) > _LONGEST_NAME:
        return f"at most {_LONGEST_NAME} characters, these are {len(name)}"
    if name in (".", "..") or not _NAME.fullmatch(name):
        return "only letters, digits, '.', '_' and '-'"
    alike = name.replace(".", "_")
    for other in existing:
        if other.replace(".", "_") == alike:
            return f"{other} differs only in '.' and '_', which metrics cannot tell apart"
    return None


def create_topic(cluster: Cluster, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> None:
    """Returns when it can be written to; -1 leaves a number to the brokers."""
    cluster.create_topic(name, partitions, replication, settings)


def add_partitions(cluster: Cluster, topic: str, count: int) -> None:
    """So that there are `count` of them; the brokers place the new ones."""
    row = {"name": topic, "count": count, "assignments": None}
    answer = cluster.call("create_partitions", topics=[row], timeout_ms=_TIMEOUT_MS, validate_only=False)
    for each in answer.results:
        if each.error_code:
            raise refusal(f"topic {topic!r}", error_code(each.error_code), each.error_message)


def delete_topic(cluster: Cluster, topic: str) -> None:
    answer = cluster.call(
        "delete_topics", topics=[{"name": topic, "topic_id": _BY_NAME}], topic_names=[topic], timeout_ms=_TIMEOUT_MS
    )
    for each in answer.responses:
        if each.error_code:
            raise refusal(f"topic {topic!r}", error_code(each.error_code), getattr(each, "error_message", None))

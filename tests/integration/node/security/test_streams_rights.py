"""Streams groups with ACLs: internal topics are created with the rights of the member, not of the broker."""

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster, CoordinatorKind
from tests.integration.node.security.authorization_walk import granted
from tests.integration.node.security.secured_broker import Secured, secured_millstream
from tests.waiting import until

GROUP, SOURCE, CHANGELOG = "rights-application", "rights-words", "rights-application-changelog"
_MISSING_INTERNAL_TOPICS = 3
_CHANGELOG = {"name": CHANGELOG, "partitions": 0, "replication_factor": 1, "topic_configs": []}
_TOPOLOGY = {
    "epoch": 0,
    "subtopologies": [
        {
            "subtopology_id": "0",
            "source_topics": [SOURCE],
            "source_topic_regex": [],
            "state_changelog_topics": [_CHANGELOG],
            "repartition_sink_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
    ],
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_millstream(tmp_path_factory.mktemp("streams")) as broker:
        with broker.cluster("admin") as admin:
            admin.create_topic(SOURCE, 2, 1)
        yield broker


def join(client: Cluster) -> Any:
    return client.call_coordinator(
        GROUP,
        CoordinatorKind.GROUP,
        "streams_group_heartbeat",
        group_id=GROUP,
        member_id="m1",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        process_id="p1",
        topology=_TOPOLOGY,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        client_tags=None,
        task_offsets=None,
        task_end_offsets=None,
    )


def test_internal_topics_need_permission(secured: Secured) -> None:
    member = ((Kind.GROUP, GROUP, Op.READ), (Kind.TOPIC, SOURCE, Op.DESCRIBE))
    known = (Kind.TOPIC, CHANGELOG, Op.DESCRIBE)
    with secured.cluster("admin") as admin, secured.cluster("alice") as alice:
        with granted(admin, "User:alice", member):
            assert join(alice).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with granted(admin, "User:alice", (*member, known)):
            (status,) = [row for row in join(alice).status if row.status_code == _MISSING_INTERNAL_TOPICS]
            assert status.status_detail.endswith(f"; Unauthorized to CREATE on topics {CHANGELOG}.")
            assert CHANGELOG not in admin.topics()
        with granted(admin, "User:alice", (*member, known, (Kind.TOPIC, CHANGELOG, Op.CREATE))):
            until(lambda: not [row for row in join(alice).status if row.status_code == _MISSING_INTERNAL_TOPICS])
            assert len(admin.topics()[CHANGELOG].partitions) == 2

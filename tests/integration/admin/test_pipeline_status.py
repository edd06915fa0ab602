"""The status of pipelines on a cluster with ACLs: a pipeline that may not publish says once which right is missing."""

from collections.abc import Iterator

import pytest

from millstream.admin.pipeline_status import TOPIC, PublishedStatuses, StatusPublisher
from millstream.formats.model.access_control import AclOperation as Op
from millstream.formats.model.access_control import AclResourceType as Kind
from tests.integration.node.security.authorization_walk import granted
from tests.integration.node.security.secured_broker import Secured, options, secured_millstream


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_millstream(tmp_path_factory.mktemp("status-rights")) as broker:
        yield broker


def told(secured: Secured, user: str) -> list[str]:
    """What is told when a user publishes three documents."""
    found: list[str] = []
    publisher = StatusPublisher(secured.address, options(user), "shop", found.append)
    for batch in range(3):
        publisher.show({"batch": batch})
    publisher.close()
    return found


def test_the_missing_right_is_named_once(secured: Secured) -> None:
    """CREATE while there is no topic, then WRITE; with WRITE alone the status of an existing topic is published."""
    (no_create,) = told(secured, "alice")
    assert f"may not create the topic {TOPIC}. It needs CREATE on it once" in no_create
    assert "the console does not show this run, only its lag (the run goes on)" in no_create

    with secured.cluster("admin") as admin:
        admin.create_topic(TOPIC, 1, 1)
        with granted(admin, "User:alice", ((Kind.TOPIC, TOPIC, Op.DESCRIBE),)):
            (no_write,) = told(secured, "alice")
        assert f"may not write to the topic {TOPIC}. It needs WRITE on it" in no_write

        with granted(admin, "User:alice", ((Kind.TOPIC, TOPIC, Op.WRITE),)):
            assert told(secured, "alice") == []
        statuses = PublishedStatuses(admin)
        statuses.refresh()
        assert statuses.documents["shop"]["batch"] == 2

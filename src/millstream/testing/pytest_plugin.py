"""pytest fixtures for tests with a broker. pytest finds them when Millstream is installed.

    def test_orders(millstream_broker, millstream_topic):
        with millstream.connect(millstream_broker.bootstrap_servers) as client:
            client.publish(millstream_topic, {"id": 1})

pytest imports this module in every run, so the fixtures import everything else.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millstream.testing.embedded import EmbeddedBroker

TOPIC_NAME_LIMIT = 249


@pytest.fixture(scope="session")
def millstream_broker() -> "Iterator[EmbeddedBroker]":
    """A real broker for the whole session, started by the first test that uses it."""
    from millstream.testing.embedded import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def millstream_topic(millstream_broker: "EmbeddedBroker", request: pytest.FixtureRequest) -> str:
    """The name of a new topic with one partition, named after the test."""
    from uuid import uuid4

    from millstream.client import connect

    suffix = uuid4().hex[:8]
    test = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name)[: TOPIC_NAME_LIMIT - len(suffix) - 1]
    name = f"{test}-{suffix}"
    with connect(millstream_broker.bootstrap_servers) as client:
        client.create_topic(name, partitions=1)
    return name

"""A client connected to the session's broker."""

from collections.abc import Iterator

import pytest

import millstream
from millstream.client import Client
from millstream.testing import EmbeddedBroker
from tests.waiting import PATIENCE_S


@pytest.fixture
def client(millstream_broker: EmbeddedBroker) -> Iterator[Client]:
    with millstream.connect(millstream_broker.bootstrap_servers, timeout=PATIENCE_S) as connected:
        yield connected

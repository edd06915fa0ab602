"""A client connected to the session's broker."""

from collections.abc import Iterator

import pytest

import millstream
from millstream.client import Client
from millstream.testing import EmbeddedBroker
from tests.waiting import TIMEOUT_SECONDS


@pytest.fixture
def client(millstream_broker: EmbeddedBroker) -> Iterator[Client]:
    with millstream.connect(millstream_broker.bootstrap_servers, timeout=TIMEOUT_SECONDS) as connected:
        yield connected

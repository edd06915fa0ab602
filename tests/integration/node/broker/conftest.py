"""One broker for all tests of this directory, and a raw connection to it for each."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from millstream.testing import EmbeddedBroker
from tests.wire import Wire

_numbers = itertools.count()


@pytest.fixture(scope="package")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker({"num.partitions": 2, "log.retention.check.interval.ms": 200}) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def new_name() -> Callable[[], str]:
    """Names that no other test has."""
    return lambda: f"topic-{next(_numbers)}"


@pytest.fixture
def topic(wire: Wire, new_name: Callable[[], str]) -> str:
    """A fresh topic with two partitions."""
    name = new_name()
    wire.create_topic(name, 2)
    return name

"""One broker for all tests of the registry; each test has a topic of its own for its schemas."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from authlib.deprecate import AuthlibDeprecationWarning

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.raw_client import Cluster
from millstream.registry.log import SchemaLog
from millstream.registry.registry import Registry
from millstream.testing import EmbeddedBroker

with warnings.catch_warnings():
    # A library of Confluent's client warns of its own when it is imported.
    warnings.simplefilter("ignore", AuthlibDeprecationWarning)
    import confluent_kafka.schema_registry  # noqa: F401

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"_schemas-{next(_numbers)}"


@pytest.fixture
def cluster(broker: EmbeddedBroker) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap_servers) as running:
        yield running


@pytest.fixture
def start_registry(broker: EmbeddedBroker, topic: str) -> Iterator[Callable[[], Registry]]:
    """Starts one more registry on the same topic, without HTTP."""
    with ExitStack() as stack:

        def start() -> Registry:
            cluster = stack.enter_context(Cluster(broker.bootstrap_servers))
            log = SchemaLog(cluster, topic)
            stack.callback(log.close)
            log.start()
            return Registry(log)

        yield start


@pytest.fixture
def registry(start_registry: Callable[[], Registry]) -> Registry:
    return start_registry()


@pytest.fixture
def start_gateway(broker: EmbeddedBroker, topic: str) -> Iterator[Callable[[], Gateway]]:
    with ExitStack() as stack:

        def start() -> Gateway:
            return stack.enter_context(Gateway(GatewayOptions(broker.bootstrap_servers, schemas_topic=topic)))

        yield start


@pytest.fixture
def gateway(start_gateway: Callable[[], Gateway]) -> Gateway:
    return start_gateway()

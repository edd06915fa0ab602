"""Fixtures: the broker under test and the clients, each started once per session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.system.clients import brokers
from tests.system.clients.client_program import ClientFailedError, ClientProgram, eventually
from tests.system.cluster.kafka_tools import KafkaTools
from tools import apache_kafka, install_test_clients

GetClient = Callable[[str], ClientProgram]

_topic_numbers = itertools.count()


@pytest.fixture(scope="session")
def get_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetClient]:
    """A client by name; one that cannot be had here skips the test, saying why."""
    logs = tmp_path_factory.mktemp("clients")
    running: dict[str, ClientProgram] = {}
    missing: dict[str, str] = {}

    def get(name: str) -> ClientProgram:
        if name in missing:
            pytest.skip(missing[name])
        if name in running and not running[name].alive:
            running.pop(name).close()
        if name not in running:
            try:
                running[name] = ClientProgram(name, logs / f"{name}.log")
            except apache_kafka.ToolchainMissingError as reason:
                missing[name] = f"{name}: {reason}"
                pytest.skip(missing[name])
        return running[name]

    yield get
    for client in running.values():
        client.close()


@pytest.fixture(params=list(install_test_clients.CLIENTS))
def client(request: pytest.FixtureRequest, get_client: GetClient) -> ClientProgram:
    return get_client(request.param)


@pytest.fixture(scope="session")
def kafka() -> apache_kafka.KafkaDistribution:
    """Apache Kafka's own tools."""
    try:
        return apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka's tools: {reason}")


@pytest.fixture(scope="session")
def kafka_tools(
    kafka: apache_kafka.KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaTools]:
    """The tools that ask and administer, all run by one virtual machine: each would take seconds to start its own."""
    running = KafkaTools(tmp_path_factory.mktemp("kafka-tools") / "tools.log")
    yield running
    running.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    """A broker with its default settings."""
    started = brokers.start_broker(tmp_path_factory.mktemp("broker") / "data")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def bootstrap(broker: brokers.BrokerProcess) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name no other test uses; the topic itself does not exist."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")
    return f"{name}-{next(_topic_numbers)}"


@pytest.fixture
def create_topic(bootstrap: str, get_client: GetClient) -> Callable[..., None]:
    """Make a topic with the named client, or with another one when that has no admin API."""

    def create(client: ClientProgram, topic: str, partitions: int = 1, **config: str) -> None:
        maker = get_client("confluent-kafka") if "create_topic" in client.lacks else client
        settings = {name.replace("_", "."): value for name, value in config.items()}
        maker.ask("create_topic", bootstrap, topic=topic, partitions=partitions, config=settings)

        def known() -> bool:
            try:
                return len(maker.ask("describe_topic", bootstrap, topic=topic)["partitions"]) == partitions
            except ClientFailedError:
                return False

        assert eventually(known)

    return create

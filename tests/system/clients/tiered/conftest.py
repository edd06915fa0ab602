"""The fixtures of the clients, on a broker that tiers every topic they create to a real S3 server.

Before a client reads a partition, searches it or deletes records, all segments but the last are in the store only.
Segments are small: most have one batch. What a client writes at once goes out in several batches.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.s3_server import FaultyStore, faulty_store
from tests.system.clients import brokers
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.conftest import GetClient
from tests.waiting import until
from tools import apache_kafka

_SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "50",
    "log.retention.check.interval.ms": "50",
}
TIERED = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "segment.ms": "1",
    "retention.ms": "-1",
}


class TieredClient(ClientProgram):
    data_dir: Path

    def begin(self, operation: str, bootstrap: str, **arguments: Any) -> None:
        if operation == "create_topic":
            arguments["config"] = {**TIERED, **arguments["config"]}
        if operation == "produce":
            arguments["batch_records"] = min(arguments["batch_records"], max(len(arguments["records"]) // 3, 1))
        is_read = operation == "consume" and arguments["start"] != "latest"
        if is_read or operation in ("list_offsets", "delete_records"):
            until_tiered(self.data_dir, arguments["topic"], arguments["partition"])
        super().begin(operation, bootstrap, **arguments)


def until_tiered(data_dir: Path, topic: str, partition: int) -> None:
    directory = data_dir / f"{topic}-{partition}"

    def is_tiered() -> bool:
        try:
            return sum(path.stat().st_size > 0 for path in directory.glob("*.log")) <= 1
        except FileNotFoundError:
            return False  # deleted just now

    until(is_tiered, f"only the last segment of {directory.name} is on the disk")


@pytest.fixture(scope="session")
def tier_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStore]:
    """The store. Brokers find it in the environment, also those that are started again."""
    try:
        with (
            faulty_store(tmp_path_factory.mktemp("tier") / "s3") as store,
            pytest.MonkeyPatch.context() as patch,
        ):
            for name, value in store.environment.items():
                patch.setitem(os.environ, name, value)
            yield store
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"S3 server: {reason}")


@pytest.fixture(scope="session")
def broker(tier_store: FaultyStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.BrokerProcess]:
    if brokers.RUNS_ON_APACHE:
        pytest.skip("Apache Kafka has no object store of its own")
    settings = tiered_settings(tier_store)
    started = brokers.start_broker(tmp_path_factory.mktemp("tiered-broker") / "data", settings)
    yield started
    started.stop()


def tiered_settings(store: FaultyStore) -> dict[str, str]:
    return {**_SETTINGS, "millstream.tier.url": store.url}


@pytest.fixture(scope="session")
def bootstrap(broker: brokers.BrokerProcess) -> str:
    return broker.bootstrap_servers


@pytest.fixture(scope="session")
def get_client(broker: brokers.BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetClient]:
    logs = tmp_path_factory.mktemp("clients-of-tier")
    running: dict[str, TieredClient] = {}

    def get(name: str) -> ClientProgram:
        if name in running and not running[name].alive:
            running.pop(name).close()
        if name not in running:
            try:
                running[name] = TieredClient(name, logs / f"{name}.log")
            except apache_kafka.ToolchainMissingError as reason:
                pytest.skip(f"{name}: {reason}")
            running[name].data_dir = broker.data_dir
        return running[name]

    yield get
    for client in running.values():
        client.close()

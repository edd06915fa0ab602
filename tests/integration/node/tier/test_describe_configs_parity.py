"""DescribeConfigs of a tiered topic and of its broker: the settings of tiered storage are told as Apache Kafka tells them.

Kafka ships no store. Its own stand-in, which stores nothing, is enough for its settings.
"""

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from millstream.testing import EmbeddedBroker
from tests.waiting import PATIENCE_S
from tools import apache_kafka

_STAND_IN = "org.apache.kafka.server.log.remote.storage.NoOpRemote"
_TOPIC = {
    "remote.storage.enable": "true",
    "retention.ms": "90000000",
    "local.retention.ms": "60000",
    "remote.copy.lag.ms": "1000",
}
_BROKER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "5000",
    "log.local.retention.bytes": "1000000",
}
_OF_KAFKA_ONLY = ("class.name", "class.path", "impl.prefix", "listener.name")
"""Settings of a Java class: there is none here."""


@pytest.mark.slow
def test_settings_are_described_as_by_kafka(tmp_path: Path) -> None:
    try:
        distribution = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka: {reason}")
    theirs = {
        **_BROKER,
        "remote.log.storage.manager.class.name": f"{_STAND_IN}StorageManager",
        "remote.log.metadata.manager.class.name": f"{_STAND_IN}LogMetadataManager",
    }
    ours = {**_BROKER, "millstream.tier.url": f"file://{tmp_path}/tier"}
    jvm = ("-Xmx300M", "-Xms300M")
    with (
        apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "kafka", theirs, jvm=jvm) as kafka,
        EmbeddedBroker(ours) as millstream,
    ):
        expected, found = described(kafka.bootstrap_servers), described(millstream.bootstrap_servers)
    assert len(expected) > 20
    assert found == expected


def described(servers: str) -> dict[str, tuple[object, ...]]:
    """Settings of a tiered topic and of its broker that have to do with tiers, by kind and name."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    admin.create_topics([NewTopic("history", 1, 1, config=_TOPIC)])["history"].result(PATIENCE_S)
    (broker,) = admin.list_topics(timeout=PATIENCE_S).brokers
    found = {}
    for kind, name in ((ResourceType.TOPIC, "history"), (ResourceType.BROKER, str(broker))):
        (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
        for entry in future.result(PATIENCE_S).values():
            of_tier = "remote." in entry.name or "local." in entry.name or entry.name.startswith("retention.")
            if of_tier and not any(part in entry.name for part in _OF_KAFKA_ONLY):
                found[f"{kind.name} {entry.name}"] = (
                    entry.value,
                    entry.source,
                    entry.is_read_only,
                    entry.is_sensitive,
                    sorted((each.name, each.value, each.source) for each in entry.synonyms.values()),
                )
    return found

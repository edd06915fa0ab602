"""FindCoordinator responds as Apache Kafka 4.3.1. Its error_message is "NONE" in versions 1 to 3, and "" from 4 on.

The first test needs no Kafka. The second asks Kafka itself whether the lines are true.
"""

from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.find_coordinator_parity import SETTINGS, lines
from tools import apache_kafka

_REFUSED = ("type 2: INVALID_REQUEST, nowhere", "type 9: INVALID_REQUEST, nowhere")
"""A key that is none of a share coordinator, and a type that does not exist."""
KAFKA = [
    "v0 type 0: NONE, a broker",
    *(
        f"v{version} {line}"
        for version, text in ((1, "NONE"), (2, "NONE"), (3, "NONE"), (4, ""), (5, ""), (6, ""))
        for line in (f"type 0: NONE, {text!r}, a broker", f"type 1: NONE, {text!r}, a broker", *_REFUSED)
    ),
]


def test_millstream_responds_as_kafka() -> None:
    with EmbeddedBroker(SETTINGS) as broker:
        assert lines(broker.bootstrap_servers) == KAFKA


@pytest.mark.slow
def test_kafka_responds_so(tmp_path: Path) -> None:
    try:
        distribution = apache_kafka.resolve()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"Apache Kafka: {reason}")
    settings = {name: str(value) for name, value in SETTINGS.items()}
    jvm = ("-Xmx300M", "-Xms300M")
    with apache_kafka.ApacheKafkaBroker(distribution, tmp_path / "kafka", settings, jvm=jvm) as kafka:
        assert lines(kafka.bootstrap_servers) == KAFKA

"""`millstream pipeline skew`: counted by Spark, compared with what was sent."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

import millstream
from millstream.cli import exit_codes
from millstream.cli.pipeline import skew as pipeline_skew
from millstream.client.partitioners import java_partition
from millstream.pipeline.skew import Counted, Load, Measure, count, report
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run, offline  # noqa: F401  # a fixture

PARTITIONS = 4


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def sent(broker: EmbeddedBroker) -> Counter[str | None]:
    """One key has half of the records; some have none."""
    keys = [("big" if number % 2 else f"k-{number % 50}") for number in range(2000)]
    rows: list[tuple[str | None, str]] = [(key, "x" * 20) for key in keys] + [(None, "y" * 20)] * 100
    with millstream.connect(broker.bootstrap_servers) as client:
        client.create_topic("skewed", partitions=PARTITIONS)
        client.create_topic("empty", partitions=1)
        client.publish_many(
            "skewed", rows, partitioner=lambda key, count, _=0: -1 if key is None else java_partition(key, count)
        )
    return Counter(key for key, _ in rows)


def counted(session: SparkSession, broker: EmbeddedBroker, topic: str, **more: int | None) -> Counted:
    return count(session, topic, broker.bootstrap_servers, {}, top=5, since_ms=more.get("since_ms"))


def test_every_record_is_counted(spark: SparkSession, broker: EmbeddedBroker, sent: Counter[str | None]) -> None:
    found = counted(spark, broker, "skewed")
    assert found.total == Load(sum(sent.values()), sum((len(key or "") + 20) * n for key, n in sent.items()))
    assert found.distinct_keys == len(sent)
    assert {key.key: key.total.records for key in found.keys}.items() >= {b"big": 1000, None: 100}.items()
    told = report(found, Measure.RECORDS)
    assert told.keys[0].key == b"big" and told.keys[0].is_hot
    assert told.keys[0].home == java_partition(b"big", PARTITIONS)
    assert told.spreads[-1].largest < told.largest
    assert sum(told.spreads[-1].shares.values()) == pytest.approx(1.0)
    assert counted(spark, broker, "skewed", since_ms=4102444800000).partitions == {}  # none since 2100


def test_the_command_shows_the_skew_of_a_topic(
    offline: Run,  # noqa: F811
    spark: SparkSession,
    broker: EmbeddedBroker,
    sent: Counter[str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Kept:
        """The session of all tests, which the command must not end."""

        read = spark.read
        stop = staticmethod(lambda: None)

    monkeypatch.setattr("millstream.spark.session.session.start_session", lambda *_, **__: Kept)
    address = ("--bootstrap", broker.bootstrap_servers)
    picture = tmp_path / "skew.svg"
    document = offline("pipeline", "skew", "skewed", *address, "--by", "records", "-o", picture, "--json").json()
    assert document["keys"][0]["key"] == "big" and document["keys"][0]["hot"]
    assert [each["over"] for each in document["spreads"]] == [2, 4]
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    shown = offline("pipeline", "skew", "skewed", *address, "--spread", 3)
    assert "Spreading 1 hot key over 3 partitions" in shown.out and "(no key)" in shown.out
    wrong = offline("pipeline", "skew", "skewd", *address)
    assert wrong.code == exit_codes.NOT_FOUND and "did you mean 'skewed'?" in wrong.err
    assert offline("pipeline", "skew", "empty", *address).code == exit_codes.NOT_FOUND
    assert offline("pipeline", "skew", "skewed", *address, "--by", "weight").code == exit_codes.USAGE
    assert offline("pipeline", "skew", "skewed", *address, "--since", "soon").code == exit_codes.USAGE
    assert offline("pipeline", "skew", "skewed", *address, "-o", "x.png").code == exit_codes.USAGE


def test_since_takes_durations_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    assert pipeline_skew._since_ms("2h") == 1_000_000_000 - 7_200_000
    assert pipeline_skew._since_ms("1970-01-01T00:00:01Z") == 1000

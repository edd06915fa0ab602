"""`millstream migrate check` against a live cluster."""

from tests.integration.cli.conftest import Run
from tests.mirrors import fresh, make_source_topic


def test_what_does_not_come_over_is_listed(run: Run, millstream_broker: object) -> None:
    bootstrap = millstream_broker.bootstrap_servers  # type: ignore[attr-defined]
    topic = make_source_topic(bootstrap, fresh("moving"), 2, {"retention.ms": "1000000", "min.insync.replicas": "1"})
    found = run("migrate", "check", "--from", bootstrap, "--json")
    document = found.json()
    assert document["topics"] >= 1 and document["partitions"] >= 2 and document["cluster_id"]
    about = [each["text"] for each in document["findings"] if each["subject"] == f"topic {topic}"]
    assert len(about) == 1 and about[0].startswith("min.insync.replicas=1")  # retention.ms comes over by itself
    table = run("migrate", "check", "--from", bootstrap)
    assert "min.insync.replicas=1" in table.out


def test_a_cluster_that_is_not_there(offline: Run) -> None:
    found = offline("migrate", "check", "--from", "127.0.0.1:1", "--timeout", "2")
    assert found.code != 0 and "127.0.0.1:1" in found.err

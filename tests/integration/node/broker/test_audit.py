"""The audit log of a running broker: administration and failed logins, without secrets."""

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.raw_client import Cluster, RefusedError
from millstream.testing.embedded import EmbeddedBroker
from tests.waiting import until

SECRET = "hunter2-and-more"


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def records(cluster: Cluster) -> list[dict[str, Any]]:
    from millstream.raw_client import TopicPartition
    from tests.wire import values

    data = cluster.fetch(TopicPartition("__millstream_audit", 0), 0, max_bytes=1 << 20, max_wait_ms=100).data
    return [json.loads(value) for value in values(data)]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    settings = {"millstream.audit.enable": "true", "millstream.audit.file": str(tmp_path / "audit.jsonl")}
    with EmbeddedBroker(settings=settings) as broker:
        yield broker


def test_a_topic_that_is_created_automatically(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Cluster(broker.bootstrap_servers, client_id="producer-7") as cluster:
        topics = [{"name": "by-itself"}, {"name": "not/allowed"}]
        cluster.call("metadata", topics=topics, allow_auto_topic_creation=True)
        file = tmp_path / "audit.jsonl"
        until(lambda: len(events(file)) >= 1)
        (found,) = events(file)
        assert (found["kind"], found["api"], found["client_id"]) == ("administration", "CreateTopics", "producer-7")
        assert found["request"] == {"automatic": True, "topics": topics}
        assert found["errors"] == [{"name": "not/allowed", "error": "INVALID_TOPIC_EXCEPTION"}]


def test_administrative_requests_are_audited(broker: EmbeddedBroker, tmp_path: Path) -> None:
    with Cluster(broker.bootstrap_servers, client_id="admin-tool") as cluster:
        cluster.create_topic("audited", 1, 1)
        with pytest.raises(RefusedError):
            cluster.create_topic("audited", 1, 1)
        rows = [
            {"name": "bob", "mechanism": 1, "iterations": 4096, "salt": b"s" * 20, "salted_password": SECRET.encode()}
        ]
        cluster.call("alter_user_scram_credentials", deletions=[], upsertions=rows)
        config = [
            {"name": "ssl.key.password", "config_operation": 0, "value": SECRET},
            {"name": "log.retention.ms", "config_operation": 0, "value": "1000"},
        ]
        resource = {"resource_type": 4, "resource_name": "", "configs": config}
        cluster.call("incremental_alter_configs", resources=[resource], validate_only=False)
        file = tmp_path / "audit.jsonl"
        until(lambda: len(events(file)) >= 4)
        found = events(file)
        assert [each["api"] for each in found] == [
            "CreateTopics",
            "CreateTopics",
            "AlterUserScramCredentials",
            "IncrementalAlterConfigs",
        ]
        assert [each["result"] for each in found[:2]] == ["success", "failure"]
        assert found[1]["errors"] == [{"name": "audited", "error": "TOPIC_ALREADY_EXISTS"}]
        for each in found:
            assert (each["version"], each["kind"], each["principal"]) == (1, "administration", "User:ANONYMOUS")
            assert (each["address"], each["client_id"]) == ("127.0.0.1", "admin-tool")
        configs = found[3]["request"]["resources"][0]["configs"]
        assert [(each["name"], each["value"]) for each in configs] == [
            ("ssl.key.password", "(hidden)"),
            ("log.retention.ms", "1000"),
        ]
        assert records(cluster) == found
        text = file.read_text()
        assert SECRET not in text and SECRET.encode().hex() not in text
        assert file.stat().st_mode & 0o777 == 0o600
        # Only brokers write to it.
        with pytest.raises(RefusedError):
            cluster.create_topic("__millstream_audit", 1, 1)

"""`millstream group` and `consume --group`, with real members of both protocols."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import millstream
from millstream.client import Client
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.waiting import TIMEOUT_SECONDS
from tests.wire import Wire

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(
        {"group.initial.rebalance.delay.ms": 0, "group.streams.initial.rebalance.delay.ms": 0}
    ) as running:
        yield running


@pytest.fixture
def run(offline: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    return offline


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with millstream.connect(broker.bootstrap_servers, timeout=TIMEOUT_SECONDS) as connected:
        yield connected


@pytest.fixture
def topic(client: Client) -> str:
    """Two partitions with ten records each."""
    name = f"t{next(_numbers)}"
    client.create_topic(name, 2, config={"retention.ms": -1})  # its timestamps are old
    rows = [millstream.client.Message(f"{n}", partition=n % 2, timestamp=1_700_000_000_000 + n) for n in range(20)]
    client.publish_many(name, rows)
    return name


@contextmanager
def member(broker: EmbeddedBroker, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member that has been given its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "client.id": "tester",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not consumer.assignment():
        consumer.poll(0.1)
        assert time.monotonic() < deadline
    try:
        yield consumer
    finally:
        consumer.close()


def first_record(consumer: Consumer) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (message := consumer.poll(0.1)) is None:
        assert time.monotonic() < deadline
    return message


def moved(outcome: Any) -> list[tuple[int | None, int]]:
    return [(row["old"], row["new"]) for row in outcome.json()["partitions"]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_life_of_a_group(run: Run, broker: EmbeddedBroker, topic: str, protocol: str) -> None:
    group = f"g-{protocol}"
    with member(broker, group, topic, protocol) as consumer:
        assert {"group": group, "type": protocol, "state": "Stable"} in run("group", "list", "--json").json()
        listed = run("group", "list", "--state", "stable").out
        assert [group, protocol, "Stable"] in [line.split() for line in listed.splitlines()]
        (document,) = run("group", "members", group, "--json").json()
        assert [(row["client"], row["host"], len(row["partitions"])) for row in document["members"]] == [
            ("tester", "127.0.0.1", 2)
        ]
        assert f"{topic}:0,1" in run("group", "members", group).out

        consumer.commit(message=first_record(consumer), asynchronous=False)
        described = run("group", "describe", group)
        assert described.code == 0
        assert "tester" in described.out and "Stable" in described.out
        (lag,) = run("group", "lag", group, "--json").json()
        assert [row["end"] for row in lag["partitions"]] == [10, 10]
        assert all(row["lag"] is None or row["lag"] == 10 - row["offset"] for row in lag["partitions"])

        shown = run("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--json")
        assert (shown.code, [new for _, new in moved(shown)]) == (0, [10, 10])
        assert "stop its consumers first" in shown.err
        refused = run("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
        assert refused.code == 1
        assert "with 1 member: stop its consumers first" in refused.err
        assert run("group", "delete", group).code == 1

    assert run("group", "reset-offsets", group, "--topic", topic, "--to-offset", 4, "--execute").out.endswith("moved\n")
    (lag,) = run("group", "lag", group, "--json").json()
    assert ([row["offset"] for row in lag["partitions"]], lag["lag"]) == ([4, 4], 12)
    assert "lag 12" in run("group", "lag", group).out
    assert run("group", "delete", group).out == f"deleted {group}\n"
    assert run("group", "describe", group).code == 4
    assert run("group", "delete", group, "--if-exists", "--json").json() == [{"group": group, "deleted": False}]


def test_every_way_to_reset(run: Run, topic: str, tmp_path: Path) -> None:
    def reset(*arguments: object) -> list[tuple[int | None, int]]:
        outcome = run("group", "reset-offsets", "mover", *arguments, "--json")
        assert outcome.code == 0, outcome.err
        return moved(outcome)

    # A group that is not there is made; a dry run makes nothing.
    assert reset("-t", topic, "--to-latest") == [(None, 10), (None, 10)]
    assert run("group", "lag", "mover").code == 4
    assert reset("-t", topic, "--to-latest", "--execute") == [(None, 10), (None, 10)]
    assert reset("--all-topics", "--to-earliest") == [(10, 0), (10, 0)]
    assert reset("-t", f"{topic}:1", "--to-offset", 7) == [(10, 7)]
    assert reset("--all-topics", "--shift-by", -3, "--execute") == [(10, 7), (10, 7)]
    assert reset("--all-topics", "--shift-by", 100) == [(7, 10), (7, 10)]
    assert reset("--all-topics", "--to-time", "@1700000000010") == [(7, 5), (7, 5)]
    assert reset("--all-topics", "--to-time", "2023-11-14T22:13:20.004Z") == [(7, 2), (7, 2)]
    assert reset("--all-topics", "--by-duration", "5m") == [(7, 10), (7, 10)]
    assert reset("--all-topics", "--by-duration", "P36500D") == [(7, 0), (7, 0)]

    offsets = tmp_path / "offsets.csv"
    offsets.write_text(f"# as exported\n{topic},0,3\n{topic},1,9\n")
    assert reset("--from-file", offsets, "--execute") == [(7, 3), (7, 9)]
    saved = tmp_path / "offsets.json"
    saved.write_text(run("group", "lag", "mover", "--json").out)
    reset("--all-topics", "--to-earliest", "--execute")
    assert reset("--from-file", saved, "--execute") == [(0, 3), (0, 9)]
    saved.write_text(run("group", "reset-offsets", "mover", "--all-topics", "--shift-by", 1, "--json").out)
    assert reset("--from-file", saved) == [(3, 4), (9, 10)]

    text = run("group", "reset-offsets", "mover", "--all-topics", "--to-offset", 99).out
    assert "nearest offset in the log" in text
    assert "nothing was changed: add --execute" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("-t", "TOPIC"),
        ("--to-latest",),
        ("-t", "TOPIC", "--to-latest", "--to-earliest"),
        ("-t", "TOPIC", "--all-topics", "--to-latest"),
        ("-t", "TOPIC:x", "--to-latest"),
        ("-t", "TOPIC", "--to-offset", -1),
        ("-t", "TOPIC", "--to-time", "yesterday"),
        ("-t", "TOPIC", "--by-duration", "P"),
        ("--from-file", "EMPTY"),
        ("--from-file", "WRONG"),
    ],
)
def test_wrong_usage_of_reset(run: Run, topic: str, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "WRONG").write_text('[{"topic": "x"}, {"offset": 1}]')
    words = [str(tmp_path / word) if word in ("EMPTY", "WRONG") else str(word).replace("TOPIC", topic)
             for word in arguments]  # fmt: skip
    outcome = run("group", "reset-offsets", "wrong", *words)
    assert outcome.code == 2, outcome
    assert outcome.err


def test_a_missing_group_exits_with_4(run: Run, topic: str) -> None:
    for command in ("describe", "members", "lag", "delete"):
        missing = run("group", command, "missing")
        assert missing.code == 4
        assert "millstream group list" in missing.err
    assert run("group", "reset-offsets", "g", "-t", "missing", "--to-latest").code == 4
    assert run("group", "reset-offsets", "g", "-t", f"{topic}:5", "--to-latest").code == 4
    assert run("group", "reset-offsets", "missing", "--all-topics", "--to-latest").code == 4
    assert run("group", "reset-offsets", "g", "--from-file", "/missing", "--execute").code == 4


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consuming_as_a_group(run: Run, topic: str, protocol: str) -> None:
    group = f"reader-{protocol}"
    options = ("consume", topic, "--group", group, "-X", f"group.protocol={protocol}")
    some = run(*options, "--count", 7)
    assert (some.code, len(some.out.split())) == (0, 7)
    rest = run(*options)
    assert sorted(map(int, (some.out + rest.out).split())) == list(range(20))
    assert run(*options).out == ""
    (lag,) = run("group", "lag", group, "--json").json()
    assert lag["lag"] == 0
    run("produce", topic, "new")
    assert run(*options, "--follow", "--idle", 1.5).out == "new\n"


def test_wrong_usage_of_consume(run: Run, topic: str) -> None:
    assert run("consume", topic, "--group", "g", "--partition", 0).code == 2
    assert run("consume", topic, "--group", "g", "--from", 5).code == 2
    assert run("consume", "missing", "--group", "g").code == 4


def test_group_ids_are_completed(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("group", "reset-offsets", "completed-group", "-t", topic, "--to-latest", "--execute")
    monkeypatch.setenv("_MILLSTREAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "millstream group describe completed")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run().out.split() == ["completed-group"]
    monkeypatch.setenv("COMP_WORDS", "millstream share describe completed")
    assert run().out.split() == []


def test_a_streams_group_is_described(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    group = f"application-{topic}"
    roles = ("active_tasks", "standby_tasks", "warmup_tasks")
    unchanged = dict.fromkeys((*roles, "topology", "client_tags", "task_offsets", "task_end_offsets"))
    lists = ("source_topic_regex", "state_changelog_topics", "repartition_sink_topics", "repartition_source_topics")
    subtopology = {"subtopology_id": "0", "source_topics": [topic], **{name: [] for name in lists}}
    joining: dict[str, Any] = {
        "rebalance_timeout_ms": 5000,
        "process_id": "p1",
        "topology": {"epoch": 0, "subtopologies": [{**subtopology, "copartition_groups": []}]},
        **{role: [] for role in roles},
    }
    with Wire(broker.bootstrap_servers) as wire:

        def beat(epoch: int, **fields: Any) -> Any:
            given = {"group_id": group, "member_id": "m1", "member_epoch": epoch, **unchanged, **fields}
            return wire.call("streams_group_heartbeat", 0, **given)

        assert beat(0, **joining).error_code == 0
        assert {"group": group, "type": "streams", "state": "Stable"} in run("group", "list", "--json").json()
        (described,) = run("group", "members", group, "--json").json()
        assert (described["type"], described["state"], described["assignor"]) == ("streams", "Stable", "sticky")
        (only,) = described["members"]
        assert only["partitions"] == [{"topic": topic, "partition": index} for index in (0, 1)]
        assert "streams" in run("group", "describe", group).out
        assert "stop its consumers first" in run("group", "delete", group).err
        beat(-1)
    assert run("group", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute").code == 0
    assert run("group", "delete", group).out == f"deleted {group}\n"

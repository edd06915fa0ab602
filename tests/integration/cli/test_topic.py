"""`millstream topic`."""

from tests.integration.cli.conftest import Run


def test_the_life_of_a_topic(run: Run) -> None:
    created = run("topic", "create", "life", "--partitions", 2, "--config", "retention.ms=60000")
    assert (created.code, created.out) == (0, "created life\n")

    assert ["life", "2", "1"] in [line.split() for line in run("topic", "list").out.splitlines()]
    assert {"topic": "life", "partitions": 2, "replication": 1} in run("topic", "list", "--json").json()

    run("produce", "life", "a", "b", "--partition", 1)
    described = run("topic", "describe", "life").out
    assert "retention.ms  60000" in described
    (document,) = run("topic", "describe", "life", "--json").json()
    assert document["config"] == {"retention.ms": "60000"}
    assert [(part["earliest"], part["latest"]) for part in document["partitions"]] == [(0, 0), (0, 2)]
    (everything,) = run("topic", "describe", "life", "--all", "--json").json()
    assert everything["config"]["segment.bytes"] == "1073741824"

    altered = run("topic", "alter", "life", "-p", 3, "-c", "segment.bytes=2000000", "--reset", "retention.ms")
    assert (altered.code, altered.out) == (0, "altered life\n")
    (document,) = run("topic", "describe", "life", "--json").json()
    assert document["config"] == {"segment.bytes": "2000000"}
    assert len(document["partitions"]) == 3

    deleted = run("topic", "delete", "life")
    assert (deleted.code, deleted.out) == (0, "deleted life\n")
    assert "life" not in run("topic", "list").out


def test_existing_and_missing_topics_have_exit_codes(run: Run, millstream_topic: str) -> None:
    again = run("topic", "create", millstream_topic)
    assert again.code == 5
    assert "exists already" in again.err
    fine = run("topic", "create", millstream_topic, "--if-not-exists", "--json")
    assert (fine.code, fine.json()) == (0, [{"topic": millstream_topic, "created": False}])

    for command in ("describe", "delete"):
        missing = run("topic", command, "missing")
        assert missing.code == 4
        assert "millstream topic create missing" in missing.err
    assert run("topic", "delete", "missing", "--if-exists").code == 0


def test_wrong_names_and_settings_are_refused(run: Run) -> None:
    assert run("topic", "create", "bad name").code == 1
    assert run("topic", "create", "t", "--config", "retention.ms=soon").code == 1
    assert run("topic", "create", "t", "--config", "retention.ms").code == 2
    assert run("topic", "alter", "t").code == 2

"""`millstream bench`, tiny."""

from tests.integration.cli.conftest import Run

TINY = ("--records", 500, "--size", 100, "--rate", 200, "--seconds", 0.5)


def test_bench_measures_all_loads(run: Run) -> None:
    outcome = run("bench", *TINY, "--partitions", 2, "--json")
    assert outcome.code == 0
    document = outcome.json()
    assert [(load["load"], load["records"], load["bytes"]) for load in document["loads"]] == [
        ("produce", 500, 50_000),
        ("consume", 500, 50_000),
        ("latency", 100, 10_000),
    ]
    for load in document["loads"]:
        assert load["records_per_second"] > 0
        if load["load"] != "consume":
            times = load["latency_ms"]
            assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert "millstream-bench" not in run("topic", "list").out, "its topic is gone"


def test_bench_prints_a_table(run: Run) -> None:
    outcome = run("bench", *TINY, "--only", "produce", "--acks", 1, "--compression", "lz4")
    header, row = outcome.out.splitlines()
    assert "records/s" in header
    assert row.startswith("produce")


def test_an_existing_topic_stays(run: Run, millstream_topic: str) -> None:
    assert run("bench", *TINY, "--only", "consume", "--topic", millstream_topic, "--json").code == 0
    (document,) = run("topic", "describe", millstream_topic, "--json").json()
    assert document["records"] == 500


def test_wrong_options_of_bench_are_usage_errors(run: Run) -> None:
    assert run("bench", "--only", "nonsense").code == 2
    assert run("bench", "--records", 0).code == 2

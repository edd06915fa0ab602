"""The model of large clusters runs, on a small one."""

from benchmarks.scaling.large_clusters import measure, table


def test_a_small_cluster_has_all_figures() -> None:
    row = measure(6)
    assert row.partitions > 900
    assert row.death_records > 300
    assert row.create_ms > 2.5
    assert 0 < row.idle_share < 1
    assert table([row]).splitlines()[-1].startswith("| 6 |")

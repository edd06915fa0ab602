"""`millstream capacity`: the estimates of a large cluster, with and without a tier; measured figures; bad options."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.cli import app
from millstream.cli.capacity import PUBLISHED, Load, Machine, Prices, plan, read_figures, seconds_per_record
from millstream.cli.terminal import CommandFailedError

DAY_SECONDS = 86_400.0
LOAD = Load(
    messages_per_second=1e6,
    size=1000,
    compression=1,
    peak=1,
    retention_s=7 * DAY_SECONDS,
    local_retention_s=None,
    replicas=3,
    groups=5,
    history_reads=0,
    partitions=10_000,
    segment_bytes=1e9,
)
MACHINE = Machine(cores=16, disk_bytes=48e12, network_bits=25e9, use=1.0)
PRICES = Prices(600, 0.08, 0.023, 0.005, 0.0004, 0.02)


def test_a_million_messages_a_second_for_a_week() -> None:
    """1 GB/s, 86.4 TB a day, three replicas: 1.8 PB on disks, 38 brokers of 48 TB."""
    found = plan(LOAD, MACHINE, PUBLISHED, PRICES)
    assert found.ingress == 1e9 and found.disk_writes == 3e9
    assert found.stored_per_day == pytest.approx(86.4e12)
    assert found.local_bytes == pytest.approx(1.8144e15)
    assert found.network_in == pytest.approx(3e9) and found.network_out == pytest.approx(7e9)
    assert found.brokers_by["disks"] == 38 and (found.brokers, found.reason) == (39, "disks")
    seventy_percent = plan(LOAD, replace(MACHINE, use=0.7), PUBLISHED, PRICES)
    assert seventy_percent.brokers_by["disks"] == 54, "1,814.4 TB / 33.6 TB, without an error of rounding"
    assert found.costs_month["object storage"] == 0 and found.puts_month == 0
    assert found.costs_month["network between zones"] == pytest.approx(2 * 30 * 86_400 * 0.02)


def test_the_tier_takes_the_history_from_the_disks() -> None:
    year = replace(LOAD, retention_s=365 * DAY_SECONDS)
    tiered = plan(replace(year, local_retention_s=6 * 3600.0, history_reads=0.5), MACHINE, PUBLISHED, PRICES)
    plain = plan(year, MACHINE, PUBLISHED, PRICES)
    assert tiered.tier_bytes == pytest.approx(365 * 86.4e12)
    assert tiered.local_bytes < plain.local_bytes / 100
    assert tiered.cost_month < plain.cost_month / 5
    assert tiered.cores > plain.cores, "copies and reads of history cost cores"
    assert tiered.network_out > plain.network_out
    assert tiered.gets_month == pytest.approx(0.5e9 * 30 * 86_400 / (4 << 20))
    assert tiered.puts_month > 1e9 * 30 * 86_400 / 1e9, "more than one for each segment"


def test_a_small_load_has_enough_brokers_for_its_replicas() -> None:
    found = plan(replace(LOAD, messages_per_second=10), MACHINE, PUBLISHED, PRICES)
    assert (found.brokers, found.reason) == (4, "replicas")


def test_figures_of_one_and_of_two_sizes() -> None:
    assert seconds_per_record(PUBLISHED.produce, 1024) == pytest.approx(1024 / 658.4e6)
    assert seconds_per_record(PUBLISHED.produce, 100) == pytest.approx(100 / 176.3e6)
    one = ((1000.0, 500e6),)
    assert seconds_per_record(one, 10) == pytest.approx(2e-6), "a small record costs what a record cost"
    assert seconds_per_record(one, 5000) == pytest.approx(1e-5)


def test_measured_figures_are_read(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    loads = [{"load": name, "megabytes_per_second": rate} for name, rate in (("produce", 100.0), ("consume", 200.0))]
    file.write_text(json.dumps({"size": 1024, "loads": loads}))
    figures = read_figures(str(file))
    assert figures.produce == ((1024.0, 100e6),) and figures.consume == ((1024.0, 200e6),)
    assert plan(LOAD, MACHINE, figures, PRICES).cores > plan(LOAD, MACHINE, PUBLISHED, PRICES).cores
    for text in ("", "{}", "[1]", '{"size": 0, "loads": []}'):
        file.write_text(text)
        with pytest.raises(ValueError, match="millstream bench --save FILE"):
            read_figures(str(file))
    with pytest.raises(ValueError, match="cannot be read"):
        read_figures(str(tmp_path / "none"))


def test_capacity_prints_a_table_and_json() -> None:
    arguments = ["capacity", "--messages", "1e6", "--groups", "5", "--retention", "365d", "--local-retention", "6h"]
    table = CliRunner().invoke(app.app, arguments)
    assert table.exit_code == 0, table.output
    assert "with the tier" in table.output and "31,536.0 TB" in table.output and "together, per month" in table.output
    document = json.loads(CliRunner().invoke(app.app, [*arguments, "--json"]).output)
    assert document["plan"]["tier_bytes"] == pytest.approx(365 * 86.4e12)
    assert document["plan"]["cost_month"] < document["without_tier"]["cost_month"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--messages", "0"],
        ["--messages", "nan"],
        ["--messages", "10", "--use", "1.5"],
        ["--messages", "10", "--size", "large"],
        ["--messages", "10", "--size", "0"],
        ["--messages", "10", "--retention", "soon"],
        ["--messages", "10", "--history", "2"],
        ["--messages", "10", "--store-price", "-1"],
        ["--messages", "10", "--bench", "none.json"],
    ],
)
def test_bad_options_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app.app, ["capacity", *arguments])
    assert isinstance(done.exception, CommandFailedError) and done.exception.exit_code == 2, done.output
    assert arguments[-2] in str(done.exception)

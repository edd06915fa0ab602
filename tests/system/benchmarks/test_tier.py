"""The benchmarks of tiered storage and of branches run, tiny, so that they cannot rot."""

import json
from pathlib import Path

import pytest

from benchmarks import branch, tier
from tools import apache_kafka, install_test_clients


def test_the_tier_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        install_test_clients.versitygw()
    except apache_kafka.ToolchainMissingError as reason:
        pytest.skip(f"S3 server: {reason}")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "set by the program")  # and as it was before, after the test
    results = tier.main(["--tiny", "--save", str(tmp_path / "tier.json")])
    assert json.loads((tmp_path / "tier.json").read_text()) == results
    assert all(value > 0 for value in results.values()), results


def test_the_branch_benchmark_copies_no_data(tmp_path: Path) -> None:
    results = branch.main(["--gigabytes", "3", "--save", str(tmp_path / "branch.json")])
    assert json.loads((tmp_path / "branch.json").read_text()) == results
    assert results["segments"] == results["gigabytes"] == 3
    assert results["space_bytes"] < 1 << 20

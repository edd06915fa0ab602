"""Source, transformation and sink as a query of its own, struck with kill -9: each input is in the output once.

SPARK_STRIKES=200 SPARK_SEED=7 pytest tests/system/spark_exactly_once/test_under_fire.py -m slow
"""

import os
from pathlib import Path

import pytest

from millstream.testing import EmbeddedCluster
from tests.system.spark_exactly_once.dying import POINTS
from tests.system.spark_exactly_once.harness import SETTINGS, Campaign

SEED = int(os.environ.get("SPARK_SEED", "1"))
STRIKES = int(os.environ.get("SPARK_STRIKES", "50"))


def _campaign(
    directory: Path, cluster: EmbeddedCluster, master: str = "local[2,4]", first_dies_at: str | None = None
) -> Campaign:
    return Campaign(directory, cluster, SEED, master=master, per_second=100, first_dies_at=first_dies_at)


@pytest.mark.timeout(1200)
def test_records_are_written_once_after_three_strikes(tmp_path: Path) -> None:
    """A Python worker, a broker, and the driver: between its decision and the end of the first transaction."""
    point = "after-decision"
    with EmbeddedCluster(3, SETTINGS) as cluster, _campaign(tmp_path, cluster, first_dies_at=point) as campaign:
        campaign.wait_until((tmp_path / "died").exists, 400, "the driver did not come so far")
        campaign.wait_for_progress()
        campaign.tell(campaign.kill_worker())
        campaign.tell(campaign.kill_broker())
        campaign.wait_for_progress()
        campaign.finish()
        assert len(campaign.feeder.sent) > 300


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", [*POINTS, "foreach-batch:after-decision", "foreach-batch:between-ends"])
def test_a_driver_that_dies_at_a_precise_point(tmp_path: Path, point: str) -> None:
    with EmbeddedCluster(3, SETTINGS) as cluster, _campaign(tmp_path, cluster, first_dies_at=point) as campaign:
        campaign.wait_until((tmp_path / "died").exists, 400, "the driver did not come so far")
        campaign.wait_for_progress()
        campaign.finish()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_records_are_written_once_after_many_strikes(tmp_path: Path) -> None:
    """Drivers, their zombies, Python workers and brokers, at random."""
    with EmbeddedCluster(3, SETTINGS) as cluster, _campaign(tmp_path, cluster) as campaign:
        for _ in range(STRIKES):
            campaign.wait_for_progress()
            campaign.strike()
        campaign.finish()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_records_are_written_once_when_executors_die(tmp_path: Path) -> None:
    """Executors in processes of their own, as on a cluster: killed in turn with everything else."""
    with EmbeddedCluster(3, SETTINGS) as cluster, _campaign(tmp_path, cluster, "local-cluster[2,1,700]") as campaign:
        campaign.wait_for_progress()
        for _ in range(5):
            campaign.tell(campaign.kill_executor())
            campaign.wait_for_progress()
        for _ in range(5):
            campaign.strike()
            campaign.wait_for_progress()
        campaign.finish()
        assert sum("kill -9 of executor" in each for each in campaign.told) >= 5

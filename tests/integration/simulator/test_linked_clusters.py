"""Two simulated clusters with a mirror link, under faults on both sides."""

import logging

import pytest

from millstream.simulator.linked_clusters import run_linked
from millstream.simulator.results import LogCapture


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_the_mirror_is_equal_after_faults_and_a_failover(seed: int) -> None:
    with LogCapture(lambda record: None, logging.WARNING):
        result = run_linked(seed)
    assert result.violations == []
    assert result.acknowledged > 200 and result.faults > 5 and result.batches > 200


@pytest.mark.slow
def test_a_seed_gives_the_same_run() -> None:
    with LogCapture(lambda record: None, logging.WARNING):
        assert run_linked(3) == run_linked(3)

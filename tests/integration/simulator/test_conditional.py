"""Conditional append (KIP-27) through faults: no two writers succeed with the same expectation."""

from collections.abc import Callable

import pytest

from millstream.node.data import conditions, produce
from millstream.node.storage.log.partition_log import PartitionLog
from millstream.simulator.scenarios import Options, Scenario
from millstream.simulator.simulation import simulate

SCENARIOS = (Scenario.FAILOVER, Scenario.MIXED, Scenario.FAILOVER, Scenario.DISK)


@pytest.mark.timeout(600)
def test_conditional_appends_hold_for_each_scenario() -> None:
    results = [
        simulate(seed, Options(scenario=scenario, conditional=True)) for seed, scenario in enumerate(SCENARIOS, 701)
    ]
    assert not [f"seed {each.seed}: {each.violation}" for each in results if not each.ok]
    assert all(each.conditional for each in results) and sum(each.refused for each in results) > 10


def test_a_refusal_is_final() -> None:
    """Seed 2000880: the leader refused because of records that were lost with it. The first attempt arrived late, at
    the next leader, and was written; the writer's next record had the same sequence, and was taken for a repetition."""
    result = simulate(2000880, Options(conditional=True))
    assert result.ok, result.violation


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_conditional_appends_hold_for_many_seeds() -> None:
    for seed in range(801, 841):
        result = simulate(seed, Options(conditional=True))
        assert result.ok, f"seed {seed}: {result.violation}"


def _never_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(produce, "check_condition", lambda expected, log, batch: None)


def _check_against_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """What is not committed yet is not seen: two writers are let in before the first one is replicated."""

    def check(expected: int | None, log: PartitionLog, batch: memoryview) -> None:
        if (
            expected is not None
            and expected != log.readable_end
            and not conditions._is_repetition(log, batch, expected)
        ):
            raise conditions.UnexpectedEndError(expected, log.readable_end)

    patch.setattr(produce, "check_condition", check)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", [_never_check, _check_against_the_high_watermark])
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(701, 711):
        violation = simulate(seed, Options(scenario=Scenario.FAILOVER, conditional=True)).violation
        if violation is not None:
            assert violation.invariant == "OneWriterPerExpectation", f"seed {seed}: {violation}"
            return
    pytest.fail("ten seeds have not found it")

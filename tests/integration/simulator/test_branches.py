"""Branches of topics under faults, on disks only and with a tier; and a bug that the simulator must find."""

import pytest

from millstream.node.storage.log import directories
from millstream.node.storage.log.branching import begin_branch
from millstream.simulator.clients.brancher import INVARIANT
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate


@pytest.mark.parametrize("tiered", [False, True], ids=["disk", "tiered"])
def test_branches_have_the_records_of_their_parents(tiered: bool) -> None:
    results = [simulate(seed, Options(branches=True, tiered=tiered)) for seed in (1, 2)]
    assert [str(result.violation) for result in results] == ["None"] * len(results)
    assert sum(result.branches for result in results) > 2


def test_a_branch_that_is_cut_one_record_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_early(parent, root, partition, topic_id, offset, now_ms):  # type: ignore[no-untyped-def]
        return begin_branch(parent, root, partition, topic_id, max(0, offset - 1), now_ms)

    monkeypatch.setattr(directories, "begin_branch", cut_early)
    violation = simulate(1, Options(branches=True)).violation
    assert violation is not None and (violation.invariant == INVARIANT or "the branches" in str(violation))

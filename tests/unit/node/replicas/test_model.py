"""Whatever network and brokers do: what is committed stays, and what was acknowledged is in every later leader."""

from collections.abc import Callable

import pytest

from millstream.node.replicas.core.follower import FollowerPosition, PartitionFollower
from millstream.node.replicas.core.leader import Confirmed, NextStep, PartitionLeader, Proposal
from tests.examples import examples
from tests.unit.node.replicas.cluster_model import NOBODY, ClusterModel


@pytest.mark.parametrize("first_seed", range(0, examples(400), 20))
def test_nothing_acknowledged_is_lost(first_seed: int) -> None:
    acknowledged = 0
    for seed in range(first_seed, first_seed + 20):
        model = ClusterModel(seed, nodes=3 + seed % 2, min_in_sync=1 + seed % 2)
        for _ in range(1500):
            model.step()
        acknowledged += len(model.acked)
    assert acknowledged > 100, "the runs do nothing"


@pytest.mark.parametrize("seed", range(examples(40)))
def test_when_faults_stop_all_replicas_are_in_sync_and_equal(seed: int) -> None:
    model = ClusterModel(seed, nodes=3, min_in_sync=2)
    for _ in range(800):
        model.step()
    model.settle()
    state = model.state
    assert state.leader != NOBODY
    leader = model.brokers[state.leader]
    assert set(state.isr) == {broker.id for broker in model.brokers}
    assert leader.high_watermark == leader.log.log_end_offset
    for broker in model.brokers:
        assert broker.log.log_end_offset == leader.log.log_end_offset
        start = max(broker.log.log_start_offset, leader.log.log_start_offset)
        assert broker.log.read(start, 10_000) == leader.log.read(start, 10_000)
        assert broker.high_watermark == leader.high_watermark


def planted_eager_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = PartitionLeader.propose

    def eager(self: PartitionLeader, now_ms: int) -> Proposal | None:
        proposal = propose(self, now_ms)
        if proposal is not None:
            self.maximal_isr = frozenset(proposal.members)
        return proposal

    monkeypatch.setattr(PartitionLeader, "propose", eager)


def planted_late_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_current(self: PartitionFollower, asked: FollowerPosition) -> bool:
        return asked.leader_epoch == self.leader_epoch and asked.offset == self._log.log_end_offset

    monkeypatch.setattr(PartitionFollower, "is_current", is_current)


def planted_early_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    def members(self: PartitionLeader) -> set[int]:
        return {broker for broker in self.followers if broker not in self.isr}

    monkeypatch.setattr(PartitionLeader, "_in_sync_again", members)


def planted_forgetful_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    on_response = PartitionLeader.on_response

    def forget(
        self: PartitionLeader, proposal: Proposal, error: int, confirmed: Confirmed | None, now_ms: int
    ) -> NextStep:
        step = on_response(self, proposal, error, confirmed, now_ms)
        if error and self.proposal is proposal:
            self.proposal, self.maximal_isr = None, self.isr
        return step

    monkeypatch.setattr(PartitionLeader, "on_response", forget)


@pytest.mark.plain
@pytest.mark.parametrize(
    "plant", [planted_eager_shrink, planted_late_responses, planted_early_growth, planted_forgetful_growth]
)
def test_the_model_finds_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(300):
            model = ClusterModel(seed)
            for _ in range(1500):
                model.step()

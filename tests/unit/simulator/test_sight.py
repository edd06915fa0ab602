"""What the invariants are shown."""

from typing import Any

import pytest

from millstream.simulator.invariants.observation import Observation, ObservedReplica, Observer
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate


def _plain(seen: ObservedReplica) -> tuple[Any, ...]:
    content = (seen.log.start, seen.log.end, seen.log.size) if seen.log is not None else None
    fields = ("node_id", "life", "key", "leader_epoch", "is_leader", "high_watermark", "last_stable_offset")
    return *(getattr(seen, name) for name in fields), content


def test_an_observer_that_remembers_sees_what_one_that_does_not_remember_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Observation] = []
    changes = 0
    look = Observer.look

    def checked(self: Observer, *arguments: Any) -> Observation:
        nonlocal changes
        observation = look(self, *arguments)
        assert list(map(_plain, observation.replicas)) == list(map(_plain, look(Observer(), *arguments).replicas))
        before = {(seen.node_id, seen.life, seen.key): seen for seen in looks[-1].replicas} if looks else {}
        now = {(seen.node_id, seen.life, seen.key): seen for seen in observation.replicas}
        for place, seen in now.items():
            assert (seen in observation.fresh) == (before.get(place) is not seen)
        lives = {(seen.node_id, seen.life) for seen in observation.quorums}
        vanished = {place for place in before.keys() - now.keys() if place[:2] in lives}
        assert vanished <= {(seen.node_id, seen.life, seen.key) for seen in observation.gone}
        changes += len(observation.fresh)
        looks.append(observation)
        return observation

    monkeypatch.setattr(Observer, "look", checked)
    assert simulate(2, Options(fault_seconds=4.0)).ok
    assert changes < sum(len(observation.replicas) for observation in looks) / 2, "most replicas are as they were"

"""What the invariants are shown."""

from typing import Any

import pytest

from millstream.simulator.invariants.observation import Observer, ReplicaSight, Sight
from millstream.simulator.scenarios import Options
from millstream.simulator.simulation import simulate


def _plain(seen: ReplicaSight) -> tuple[Any, ...]:
    content = (seen.log.start, seen.log.end, seen.log.size) if seen.log is not None else None
    fields = ("node_id", "life", "key", "leader_epoch", "is_leader", "high_watermark", "last_stable_offset")
    return *(getattr(seen, name) for name in fields), content


def test_an_observer_that_remembers_sees_what_one_that_does_not_remember_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Sight] = []
    changes = 0
    look = Observer.look

    def checked(self: Observer, *arguments: Any) -> Sight:
        nonlocal changes
        sight = look(self, *arguments)
        assert list(map(_plain, sight.replicas)) == list(map(_plain, look(Observer(), *arguments).replicas))
        before = {(seen.node_id, seen.life, seen.key): seen for seen in looks[-1].replicas} if looks else {}
        now = {(seen.node_id, seen.life, seen.key): seen for seen in sight.replicas}
        for place, seen in now.items():
            assert (seen in sight.fresh) == (before.get(place) is not seen)
        lives = {(seen.node_id, seen.life) for seen in sight.quorums}
        vanished = {place for place in before.keys() - now.keys() if place[:2] in lives}
        assert vanished <= {(seen.node_id, seen.life, seen.key) for seen in sight.gone}
        changes += len(sight.fresh)
        looks.append(sight)
        return sight

    monkeypatch.setattr(Observer, "look", checked)
    assert simulate(2, Options(trouble_seconds=4.0)).ok
    assert changes < sum(len(sight.replicas) for sight in looks) / 2, "most replicas are as they were"

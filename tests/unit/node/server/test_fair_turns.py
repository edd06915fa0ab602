"""Turns of tenants: who waits, and in which order they are served."""

from collections.abc import Callable

import pytest

from millstream.node.server.fair_turns import BUDGET_SECONDS, PERIOD_SECONDS, SHARE_SECONDS, FairTurns


class Loop:
    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []
        self.turns = FairTurns(self.soon.append, lambda: self.now)

    def turn(self) -> None:
        """One turn of the event loop."""
        due, self.soon[:] = list(self.soon), []
        for callback in due:
            callback()


def test_a_single_tenant_is_not_scheduled() -> None:
    turns = Loop().turns
    first = turns.join("alice")
    turns.join("alice")
    assert not turns.is_shared
    other = turns.join("bob")
    assert turns.is_shared
    turns.leave(other)
    assert not turns.is_shared and turns.tenants == 1
    turns.leave(first)


def test_a_tenant_waits_when_its_budget_is_used_up() -> None:
    loop = Loop()
    alice, bob = loop.turns.join("alice"), loop.turns.join("bob")
    loop.turns.must_wait(bob)
    assert not loop.turns.must_wait(alice)
    alice.spent += BUDGET_SECONDS
    assert loop.turns.must_wait(alice)
    assert not loop.turns.must_wait(bob)
    loop.now += PERIOD_SECONDS
    assert not loop.turns.must_wait(alice)


def test_a_tenant_that_is_alone_for_long_does_not_wait() -> None:
    loop = Loop()
    alice = loop.turns.join("alice")
    loop.turns.join("bob")  # connected, and silent
    loop.turns.must_wait(alice)
    loop.now += 61
    loop.turns.must_wait(alice)
    alice.spent += 1.0
    assert not loop.turns.must_wait(alice)


def test_each_turn_serves_one_share_of_every_tenant() -> None:
    loop = Loop()
    served: list[str] = []

    def work(name: str) -> Callable[[], None]:
        def run() -> None:
            served.append(name)
            loop.now += SHARE_SECONDS

        return run

    alice, bob = loop.turns.join("alice"), loop.turns.join("bob")
    for _ in range(200):
        loop.turns.wait(alice, work("alice"))
    loop.turns.wait(bob, work("bob"))
    assert loop.turns.must_wait(alice)
    loop.turn()
    assert served == ["alice", "bob"]
    assert not bob.is_queued and alice.is_queued
    loop.turn()
    assert served == ["alice", "bob", "alice"]


def test_connections_of_a_tenant_are_served_in_order() -> None:
    loop = Loop()
    alice = loop.turns.join("alice")
    loop.turns.join("bob")
    served: list[int] = []

    def again(number: int) -> Callable[[], None]:
        def run() -> None:
            served.append(number)
            if len(served) < 6:
                loop.turns.wait(alice, run)

        return run

    for number in range(3):
        loop.turns.wait(alice, again(number))
    while loop.soon:
        loop.turn()
    assert served[:6] == [0, 1, 2, 0, 1, 2]
    assert not alice.is_queued


def test_the_connections_of_a_turn_share_its_time() -> None:
    """The second connection of a turn does not get a whole share of its own."""
    loop = Loop()
    alice, _ = loop.turns.join("alice"), loop.turns.join("bob")
    deadlines: list[float] = []

    def serve() -> None:
        deadlines.append(loop.turns.deadline(alice, loop.now) - loop.now)
        loop.now += SHARE_SECONDS * 0.75

    for _ in range(4):
        loop.turns.wait(alice, serve)
    loop.turn()
    assert deadlines == pytest.approx([SHARE_SECONDS, SHARE_SECONDS * 0.25])
    loop.turn()
    assert len(deadlines) == 4


def test_a_connection_outside_of_turns_has_what_is_left_of_the_budget() -> None:
    loop = Loop()
    alice, bob = loop.turns.join("alice"), loop.turns.join("bob")
    loop.turns.must_wait(bob)
    assert not loop.turns.must_wait(alice)
    assert loop.turns.deadline(alice, loop.now) == loop.now + SHARE_SECONDS
    alice.spent += BUDGET_SECONDS * 0.9
    assert not loop.turns.must_wait(alice)
    assert loop.turns.deadline(alice, loop.now) == pytest.approx(loop.now + BUDGET_SECONDS * 0.1)

"""Voter sets, and values by log offset."""

import pytest

from millstream.node.consensus.raft.voter_set import OffsetHistory, ReplicaKey, Voter, VoterSet
from tests.unit.node.consensus.raft.cluster import key_of


def test_a_majority_is_more_than_half_of_the_voters() -> None:
    for size, majority in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)]:
        assert VoterSet(tuple(Voter(ReplicaKey(i)) for i in range(size))).majority == majority


def test_a_directory_counts_where_it_is_named() -> None:
    voters = VoterSet((Voter(key_of(2)), Voter(ReplicaKey(1))))
    assert voters.ids == (1, 2)
    assert voters.has(key_of(1)) and voters.has(key_of(1, 1))
    assert voters.has(key_of(2)) and not voters.has(key_of(2, 1)) and not voters.has(ReplicaKey(2))
    assert not voters.has(key_of(3))


def test_adding_replacing_and_removing() -> None:
    voters = VoterSet((Voter(key_of(1)), Voter(key_of(2))))
    assert voters.with_voter(Voter(key_of(3))).ids == (1, 2, 3)
    assert voters.with_voter(Voter(key_of(2, 1))).by_id[2].key == key_of(2, 1)
    assert voters.without(1).ids == (2,)


def test_an_id_occurs_once() -> None:
    with pytest.raises(AssertionError):
        VoterSet((Voter(key_of(1)), Voter(key_of(1, 1))))


def test_the_history_has_the_value_of_each_offset() -> None:
    history = OffsetHistory("initial")
    assert (history.latest, history.latest_offset, history.at(100)) == ("initial", -1, "initial")
    history.add(3, "a")
    history.add(7, "b")
    assert [history.at(end) for end in (3, 4, 7, 8)] == ["initial", "a", "a", "b"]
    history.truncate_to(7)
    assert history.latest == "a"
    history.add(9, "c")
    history.forget_before(8)
    assert (history.at(8), history.at(10)) == ("a", "c")
    history.forget_before(10)
    assert (history.latest, history.at(10), history.latest_offset) == ("c", "c", 9)
    history.truncate_to(0)
    assert history.latest == "initial"

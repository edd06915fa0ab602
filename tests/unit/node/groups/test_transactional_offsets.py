"""Offsets committed in transactions: who may, when they count, what ends them; and that all of it is in the log."""

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.node.groups.core.offset_expiry import PendingOffsets
from tests.unit.node.coordination.shard_run import message
from tests.unit.node.coordination.test_classic_groups import stable_group
from tests.unit.node.coordination.transactional_run import TransactionalRun

T0, T1 = ("t", 0), ("t", 1)
UNSTABLE = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS


@pytest.fixture
def run() -> TransactionalRun:
    made = TransactionalRun()
    made.topics.add("t", 2)
    made.topics.add("u", 1)
    return made


def test_an_offset_counts_when_its_transaction_is_committed(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    assert run.commit_in_transaction(1, {T0: 7, T1: 8}) == {T0: 0, T1: 0}
    for _ in range(2):
        assert run.committed() == {T0: 3}
        assert run.stable("g", T0, T1, ("u", 0)) == {T0: UNSTABLE, T1: UNSTABLE, ("u", 0): (0, -1)}
        run.restart()
    run.end_transaction(1, committed=True)
    for _ in range(2):
        assert run.committed() == {T0: 7, T1: 8}
        assert run.stable("g", T0, T1) == {T0: (0, 7), T1: (0, 8)}
        run.restart()


def test_an_aborted_transaction_leaves_nothing(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    run.commit_in_transaction(1, {T0: 7, T1: 8})
    run.end_transaction(1, committed=False)
    for _ in range(2):
        assert run.committed() == {T0: 3} and run.stable("g", T0) == {T0: (0, 3)}
        run.restart()


def test_of_several_commits_in_a_transaction_the_last_counts(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 1})
    run.commit_in_transaction(1, {T0: 2})
    run.end_transaction(1, committed=True)
    run.commit_in_transaction(1, {T0: 3}, epoch=1)
    run.end_transaction(1, committed=False, epoch=2)
    for _ in range(2):
        assert run.committed() == {T0: 2}
        run.restart()


def test_a_plain_commit_behind_a_transactional_one_wins(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 7})
    run.commit({T0: 9})
    assert run.committed() == {T0: 9} and run.stable("g", T0) == {T0: UNSTABLE}
    run.end_transaction(1, committed=True)
    for _ in range(2):
        assert run.committed() == {T0: 9}
        run.restart()


def test_the_order_of_two_transactions_is_that_of_their_records(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 1})
    run.commit_in_transaction(2, {T0: 2})
    run.commit_in_transaction(3, {T0: 3})
    run.end_transaction(2, committed=True)
    run.end_transaction(1, committed=True)
    assert run.committed() == {T0: 2} and run.stable("g", T0) == {T0: UNSTABLE}
    run.end_transaction(3, committed=True)
    for _ in range(2):
        assert run.committed() == {T0: 3} and run.stable("g", T0) == {T0: (0, 3)}
        run.restart()


def test_a_transaction_of_several_groups(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 1}, group="a")
    run.commit_in_transaction(1, {T0: 2}, group="b")
    run.end_transaction(1, committed=True)
    assert run.committed("a") == {T0: 1} and run.committed("b") == {T0: 2}


def test_a_marker_of_a_transaction_that_no_one_knows_changes_nothing(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    run.end_transaction(5, committed=True)
    run.restart()
    assert run.committed() == {T0: 3}


def test_a_fetch_of_everything_hides_what_may_change(run: TransactionalRun) -> None:
    run.commit({T0: 3, ("u", 0): 4})
    run.commit_in_transaction(1, {T0: 7, T1: 8})
    wanted = message("offset_fetch", group_id="g", topics=None)
    response = run.shard.offsets.fetch(wanted, 7, require_stable=True)
    shown = {
        (topic["name"], row["partition_index"]): (row["error_code"], row["committed_offset"])
        for topic in response["topics"]
        for row in topic["partitions"]
    }
    assert shown == {T0: UNSTABLE, ("u", 0): (0, 4)}


# Who may


def test_without_a_group_anyone_may(run: TransactionalRun) -> None:
    assert run.commit_in_transaction(1, {T0: 1}) == {T0: ErrorCode.NONE}
    assert run.commit_in_transaction(1, {T0: 1}, group="none", generation=1, member="m") == {
        T0: ErrorCode.ILLEGAL_GENERATION
    }
    assert run.shard.groups["g"].is_simple


def test_members_of_a_classic_group(run: TransactionalRun) -> None:
    (member,) = stable_group(run)
    commit = run.commit_in_transaction
    assert commit(1, {T0: 1}, member=member, generation=1) == {T0: ErrorCode.NONE}
    assert commit(1, {T0: 1}, member=member, generation=0) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert commit(1, {T0: 1}, member=member) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert commit(1, {T0: 1}, member="stranger", generation=1) == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert commit(1, {T0: 1}, member=member, generation=1, instance="i") == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    # A producer of old says nothing of a member, and is believed.
    assert commit(1, {T0: 1}) == {T0: ErrorCode.NONE}
    run.join(member=member)
    assert commit(1, {T0: 2}, member=member, generation=2) == {T0: ErrorCode.NONE}


def test_a_static_member_that_was_replaced_is_fenced(run: TransactionalRun) -> None:
    joining = run.join(instance="i")
    run.advance(5000)
    first = joining.value["member_id"]
    run.sync(first, 1, {first: b""}, group_instance_id="i")
    second = run.join(instance="i")["member_id"]
    codes = run.commit_in_transaction(1, {T0: 1}, member=first, generation=1, instance="i")
    assert codes == {T0: ErrorCode.FENCED_INSTANCE_ID}
    assert run.commit_in_transaction(1, {T0: 1}, member=second, generation=1, instance="i") == {T0: ErrorCode.NONE}


def test_members_of_a_consumer_group(run: TransactionalRun) -> None:
    alone = run.consumer("a", "t")
    run.settle([alone])
    before = alone.epoch
    commit = run.commit_in_transaction
    assert commit(1, {T0: 1}, member="a", generation=before) == {T0: ErrorCode.NONE}
    assert commit(1, {T0: 1}, member="a", generation=before + 1) == {T0: ErrorCode.ILLEGAL_GENERATION}
    assert commit(1, {T0: 1}, member="b", generation=before) == {T0: ErrorCode.UNKNOWN_MEMBER_ID}
    assert commit(1, {T0: 1}) == {T0: ErrorCode.NONE}, "an old producer names nobody"
    other = run.consumer("b", "t")
    run.settle([alone, other])
    # In the epoch before, only for what it has had since then.
    codes = commit(1, {T0: 1, T1: 1}, member="a", generation=before)
    kept = next(iter(alone.owned))
    assert codes == {at: ErrorCode.NONE if at == kept else ErrorCode.ILLEGAL_GENERATION for at in (T0, T1)}


def test_an_empty_consumer_group_takes_offsets_of_anyone(run: TransactionalRun) -> None:
    alone = run.consumer("a", "t")
    run.settle([alone])
    run.beat("a", -1)
    assert run.commit_in_transaction(1, {T0: 1}) == {T0: ErrorCode.NONE}
    assert run.commit_in_transaction(1, {T0: 1}, member="a", generation=1) == {T0: ErrorCode.UNKNOWN_MEMBER_ID}


def test_share_groups_have_no_offsets(run: TransactionalRun) -> None:
    request = message(
        "share_group_heartbeat", group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"]
    )
    run.run(lambda shard, now_ms: shard.share.heartbeat(request, "client", "/127.0.0.1", now_ms))
    assert run.commit_in_transaction(1, {T0: 1}) == {T0: ErrorCode.GROUP_ID_NOT_FOUND}


def test_what_is_wrong_with_one_partition_is_said_of_it_alone(run: TransactionalRun) -> None:
    assert run.commit_in_transaction(1, {T0: 1, ("t", 2): 1, ("gone", 0): 1}) == {
        T0: ErrorCode.NONE,
        ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert run.commit_in_transaction(1, {T1: 1}, metadata="x" * 4097) == {T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}


# The end of offsets


def test_a_deleted_offset_is_not_brought_back_by_a_transaction(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    run.commit_in_transaction(1, {T0: 7, T1: 8})
    assert run.delete_offset("t", 0) == 0 and run.delete_offset("t", 1) == 0
    assert run.stable("g", T0, T1) == {T0: (0, -1), T1: (0, -1)}
    run.end_transaction(1, committed=True)
    for _ in range(2):
        assert run.committed() == {}
        run.restart()


def test_a_group_goes_with_what_its_transactions_have_committed(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    run.commit_in_transaction(1, {T0: 7, T1: 8})
    assert run.run(lambda shard, now_ms: shard.delete_group("g", now_ms))
    assert "g" not in run.shard.groups
    run.end_transaction(1, committed=True)
    for _ in range(2):
        assert run.committed() == {} and "g" not in run.shard.groups
        run.restart()


def test_offsets_of_transactions_go_with_their_topic(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 7, ("u", 0): 8})
    run.topics.remove("t")
    run.run(lambda shard, now_ms: shard.topics_changed({"t"}, now_ms))
    run.end_transaction(1, committed=True)
    for _ in range(2):
        assert run.committed() == {("u", 0): 8}
        run.restart()


def test_a_topic_made_again_keeps_what_was_committed_for_it(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 7, T1: 7})
    run.topics.remove("t")
    run.topics.add("t", 2)
    run.commit_in_transaction(2, {T1: 9})
    run.run(lambda shard, now_ms: shard.topics_changed({"t"}, now_ms))
    run.end_transaction(1, committed=True)
    run.end_transaction(2, committed=True)
    assert run.committed() == {T1: 9}


def test_offsets_of_topics_that_went_while_no_one_looked(run: TransactionalRun) -> None:
    run.commit_in_transaction(1, {T0: 7, ("u", 0): 8})
    run.topics.remove("t")
    run.restart()
    run.advance(1)
    run.end_transaction(1, committed=True)
    assert run.committed() == {("u", 0): 8}


def test_time_does_not_end_what_an_open_transaction_may_change(run: TransactionalRun) -> None:
    run.commit({T0: 3, T1: 4})
    run.commit_in_transaction(1, {T0: 7})
    run.commit_in_transaction(2, {T0: 7}, group="other")
    run.advance(WEEK_MS + 20 * MINUTE_MS)
    assert run.committed() == {T0: 3} and set(run.shard.groups) == {"g", "other"}
    run.end_transaction(1, committed=False)
    run.end_transaction(2, committed=False)
    run.advance(20 * MINUTE_MS)
    assert not run.shard.groups


# What the log may look like


def test_records_that_cannot_be_read_are_passed_over(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    for key, value in ((b"\x00\x01\x00", b"x"), (b"\x00\x63", b"x"), (b"", b"x")):
        run.shard.replay_pending(1, 0, key, value)
    run.shard.end_transaction(1, committed=True)
    assert run.committed() == {T0: 3}
    shard = run._new_shard()
    shard.replay_pending(1, 0, b"\x00\x01\x00", b"x")
    shard.replay_pending(2, 0, b"\x00\x01\x00", b"x")
    shard.end_transaction(2, committed=True)
    shard.replayed()
    shard.loaded(run.now_ms)
    assert not shard.offsets.pending and not shard.groups


def test_keys_of_kafkas_first_version(run: TransactionalRun) -> None:
    run.commit({T0: 3})
    ((key, value),) = run.log
    run.commit_in_transaction(1, {T0: 7})
    run.shard.replay(b"\x00\x00" + key[2:], value)  # behind the transactional one
    run.end_transaction(1, committed=True)
    assert run.committed() == {T0: 3}
    run.shard.replay_pending(1, 0, b"\x00\x00" + key[2:], value)
    assert run.stable("g", T0) == {T0: UNSTABLE}
    run.shard.replay_pending(1, 0, b"\x00\x00" + key[2:], None)
    assert run.committed() == {}


def test_pending_offsets_are_forgotten_wholly() -> None:
    pending = PendingOffsets()
    pending.add(1, b"a", b"1")
    pending.add(2, b"a", b"2")
    pending.supersede(b"b")
    pending.drop(b"b")
    assert pending and b"a" in pending and list(pending) == [(b"a", [b"1", b"2"])]
    pending.drop(b"a")
    assert not pending and b"a" not in pending and pending.end(1, committed=True) == []
    pending.add(1, b"a", b"1")
    pending.supersede(b"a")
    assert list(pending) == [(b"a", [])] and pending.end(1, committed=True) == [] and not pending

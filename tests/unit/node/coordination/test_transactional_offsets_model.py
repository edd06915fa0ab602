"""Any mixture of transactions, plain commits, deletions, restarts and cleanings, against what the log says."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.formats.model.errors import ErrorCode
from tests.examples import examples
from tests.unit.node.coordination.transactional_run import TransactionalRun

GROUPS, PARTITIONS, PRODUCERS = ("a", "b"), (("t", 0), ("t", 1)), (1, 2, 3)
Key = tuple[str, tuple[str, int]]
a_group, a_partition, a_producer = st.sampled_from(GROUPS), st.sampled_from(PARTITIONS), st.sampled_from(PRODUCERS)


@dataclass
class Commit:
    offset: int
    producer: int | None
    """Until its transaction is committed."""


class TransactionalOffsets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.run = TransactionalRun()
        self.run.topics.add("t", 2)
        self.commits: dict[Key, list[Commit]] = {(group, at): [] for group in GROUPS for at in PARTITIONS}
        """In the order of the log; aborted and deleted ones are gone."""
        self.count = 0

    def _next(self) -> int:
        self.count += 1
        return self.count

    @rule(group=a_group, at=a_partition)
    def commit(self, group: str, at: tuple[str, int]) -> None:
        offset = self._next()
        assert self.run.commit({at: offset}, group=group) == {at: 0}
        self.commits[group, at].append(Commit(offset, None))

    @rule(producer=a_producer, group=a_group, chosen=st.lists(a_partition, min_size=1, max_size=2, unique=True))
    def commit_in_transaction(self, producer: int, group: str, chosen: list[tuple[str, int]]) -> None:
        offset = self._next()
        codes = self.run.commit_in_transaction(producer, dict.fromkeys(chosen, offset), group=group)
        assert codes == dict.fromkeys(chosen, 0)
        for at in chosen:
            self.commits[group, at].append(Commit(offset, producer))

    @rule(producer=a_producer, committed=st.booleans())
    def end(self, producer: int, committed: bool) -> None:
        self.run.end_transaction(producer, committed)
        for key, commits in self.commits.items():
            if not committed:
                self.commits[key] = [each for each in commits if each.producer != producer]
            for each in commits:
                if each.producer == producer:
                    each.producer = None

    @rule(group=a_group, at=a_partition)
    def delete(self, group: str, at: tuple[str, int]) -> None:
        if group in self.run.shard.groups:
            assert self.run.delete_offset(*at, group=group) == 0
            self.commits[group, at].clear()

    @rule(group=a_group)
    def delete_group(self, group: str) -> None:
        if group in self.run.shard.groups:
            assert self.run.run(lambda shard, now_ms: shard.delete_group(group, now_ms))
            for at in PARTITIONS:
                self.commits[group, at].clear()

    @rule()
    def restart(self) -> None:
        self.run.restart()

    @rule(empty=st.booleans(), markers=st.booleans(), tombstones=st.booleans())
    def clean_and_restart(self, empty: bool, markers: bool, tombstones: bool) -> None:
        self.run.clean(keeps_empty_batches=empty, keeps_markers=markers, keeps_tombstones=tombstones)
        self.run.restart()

    @invariant()
    def agrees(self) -> None:
        for group in GROUPS:
            shown = self.run.committed(group)
            stable = self.run.stable(group, *PARTITIONS)
            for at in PARTITIONS:
                commits = self.commits[group, at]
                counting = [each.offset for each in commits if each.producer is None]
                offset = counting[-1] if counting else -1
                assert shown.get(at, -1) == offset
                is_open = any(each.producer is not None for each in commits)
                assert stable[at] == ((ErrorCode.UNSTABLE_OFFSET_COMMIT, -1) if is_open else (0, offset))

    @invariant()
    def nothing_is_pending_of_nobody(self) -> None:
        is_open = any(each.producer is not None for commits in self.commits.values() for each in commits)
        assert bool(self.run.shard.offsets.pending) == is_open


TestTransactionalOffsets = TransactionalOffsets.TestCase
TestTransactionalOffsets.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)

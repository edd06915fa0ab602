"""A share-partition under random members, crashes and clocks, against a model that remembers every single record.

At every step: no accepted record comes back, delivery counts are right, a key's records come one after another, nothing
comes before it is due. At the end everything is handed out that was not done with: nothing is lost.
"""

from collections.abc import Iterable
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.node.coordination.core.state_machine import CoordinatorRecord
from millstream.node.queues.core.in_flight import ShareLimits
from millstream.node.queues.core.partition import SharePartition, Transition
from millstream.node.queues.core.runs import Acknowledgement, Acquired
from millstream.node.queues.core.state import ShareKey, ShareStateShard
from tests.examples import examples

KEY = ShareKey("group", UUID(int=7), 0)
MEMBERS = ("a", "b", "c")
LOCK_MS = 100
LIMIT = 3


class SharedLog(RuleBasedStateMachine):
    @initialize(ordered=st.booleans(), delayed=st.booleans(), dead_letters=st.booleans())
    def begin(self, ordered: bool, delayed: bool, dead_letters: bool) -> None:
        self.now_ms = 1000
        self.ordered, self.delayed = ordered, delayed
        self.limits = ShareLimits(
            delivery_count=LIMIT, lock_ms=LOCK_MS, max_locks=12, max_deferred=15, dead_letters=dead_letters
        )
        self.batches: list[tuple[int, int]] = []
        self.control: set[int] = set()
        self.log_start = 0
        self.keys: list[bytes | None] = []
        self.due: list[int] = []
        self.written: list[CoordinatorRecord] = []
        self.shard = ShareStateShard(updates_per_snapshot=3)
        self._write(self.shard.initialize(KEY, 0, 0, self.now_ms).records)
        # The model: what became of each record, how often it was delivered, and who has it until when.
        self.done: dict[int, str] = {}
        self.deliveries: dict[int, int] = {}
        self.persisted: dict[int, int] = {}
        self.held: dict[int, tuple[str, int]] = {}
        self._load()

    def _write(self, records: Iterable[CoordinatorRecord]) -> None:
        for record in records:
            self.written.append(record)
            self.shard.replay(*record)

    def _load(self) -> None:
        state = self.shard.states[KEY]
        self.share = SharePartition(
            state.start_offset, state.batches, self.limits, key_order=self.ordered, inspected=self.delayed
        )
        self.share.log_starts_at(self.log_start, self.now_ms)
        for letter in self.share.archiving():
            self._settle(self.share.finish_archiving(letter.first, letter.last))

    def _settle(self, transition: Transition) -> None:
        """Persists a transition, lets it be, and buries its dead."""
        if transition.runs:
            outcome = self.shard.write(
                KEY,
                state_epoch=0,
                leader_epoch=0,
                start_offset=transition.start,
                complete_count=transition.complete_count,
                batches=transition.batches,
                now_ms=self.now_ms,
            )
            self._write(outcome.records)
        self.share.commit(transition, self.now_ms)
        for letter in transition.dead:
            self._settle(self.share.finish_archiving(letter.first, letter.last))

    # What can happen

    @rule(keys=st.lists(st.sampled_from((b"x", b"y", b"z", None)), min_size=1, max_size=5), delay=st.integers(0, 250))
    def produce(self, keys: list[bytes | None], delay: int) -> None:
        first = len(self.keys)
        self.batches.append((first, first + len(keys) - 1))
        self.keys += keys
        self.due += [self.now_ms + delay * (at % 2) if self.delayed else 0 for at in range(len(keys))]

    @rule()
    def end_a_transaction(self) -> None:
        """A control batch: an offset that no one is ever given."""
        offset = len(self.keys)
        self.batches.append((offset, offset))
        self.control.add(offset)
        self.keys.append(None)
        self.due.append(0)
        self.done[offset] = "nothing"

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def cut_the_log(self, data: st.DataObject) -> None:
        """Retention, or DeleteRecords."""
        self.log_start = data.draw(st.integers(self.log_start, min(self.log_start + 4, len(self.keys))))
        self.share.log_starts_at(self.log_start, self.now_ms)
        for offset in range(self.log_start):
            self.done.setdefault(offset, "nothing")
            self.held.pop(offset, None)

    @rule(member=st.sampled_from(MEMBERS), most=st.integers(1, 8), strict=st.booleans(), reach=st.integers(1, 3))
    def fetch(self, member: str, most: int, strict: bool, reach: int) -> None:
        for each in self._fetch(member, most, strict, reach):
            for offset in range(each.first, each.last + 1):
                assert offset not in self.done, f"{offset} was {self.done[offset]} and came back"
                assert offset not in self.held, f"{offset} is held and was handed out again"
                assert each.deliveries == self.deliveries.get(offset, 0) + 1
                assert each.deliveries <= LIMIT
                assert self.due[offset] <= self.now_ms
                if self.ordered and self.keys[offset] is not None:
                    earlier = [at for at in range(offset) if self.keys[at] == self.keys[offset]]
                    assert all(at in self.done for at in earlier), f"{offset} overtook {earlier}"
                self.deliveries[offset] = each.deliveries
                self.held[offset] = (member, self.now_ms + LOCK_MS)

    def _fetch(self, member: str, most: int, strict: bool, reach: int) -> list[Acquired]:
        """What the leader does: read where the machine says, tell it what is there, acquire."""
        while True:
            offset = self.share.next_offset(self.now_ms)
            if offset is None or offset >= len(self.keys):
                return []
            slice_ = [batch for batch in self.batches if batch[1] >= offset][:reach]
            data = [batch for batch in slice_ if batch[0] not in self.control]
            for first, last in slice_:
                if first in self.control:
                    self.share.absent(first, last, self.now_ms)
            unread, last = self.share.next_unread(), slice_[-1][1]
            if self.share.inspected and slice_[0][0] <= unread <= last:
                rows = [(at, self.keys[at], self.due[at]) for first, end in data for at in range(first, end + 1)]
                self.share.admit(unread, last, rows, self.now_ms)
            acquired = self.share.acquire(member, data, most, self.now_ms, strict=strict)
            if acquired or self.share.next_offset(self.now_ms) == offset:
                return acquired

    @precondition(lambda self: self.held)
    @rule(data=st.data(), fails=st.booleans())
    def acknowledge(self, data: st.DataObject, fails: bool) -> None:
        member = data.draw(st.sampled_from(sorted({member for member, _ in self.held.values()})))
        mine = sorted(offset for offset, (holder, _) in self.held.items() if holder == member)
        chosen = data.draw(st.lists(st.sampled_from(mine), min_size=1, unique=True).map(sorted))
        kinds = data.draw(st.lists(st.sampled_from(Acknowledgement), min_size=len(chosen), max_size=len(chosen)))
        ranges = list(zip(chosen, chosen, kinds, strict=True))
        transition = self.share.acknowledge(member, ranges, self.now_ms)
        for offset, kind in zip(chosen, kinds, strict=True):
            if kind == Acknowledgement.RENEW:
                self.held[offset] = (member, self.now_ms + LOCK_MS)
        if fails:
            self.share.roll_back(transition)
            return
        self._settle(transition)
        for offset, kind in zip(chosen, kinds, strict=True):
            if kind == Acknowledgement.ACCEPT:
                self._finish(offset, "accepted")
            elif kind in (Acknowledgement.REJECT, Acknowledgement.GAP):
                self._finish(offset, "archived")
            elif kind == Acknowledgement.RELEASE:
                self._released(offset)

    def _finish(self, offset: int, how: str) -> None:
        self.done[offset] = how
        del self.held[offset]

    def _released(self, offset: int) -> None:
        if self.deliveries[offset] >= LIMIT:
            self._finish(offset, "archived")
        else:
            self.persisted[offset] = self.deliveries[offset]
            del self.held[offset]

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        self._settle(self.share.release_member(member))
        for offset in [offset for offset, (holder, _) in self.held.items() if holder == member]:
            self._released(offset)

    @rule(passed_ms=st.integers(1, 150))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self._settle(self.share.expire(self.now_ms))
        for offset in [offset for offset, (_, until) in self.held.items() if until <= self.now_ms]:
            self._released(offset)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), backwards=st.booleans())
    def two_decide_at_once(self, data: st.DataObject, backwards: bool) -> None:
        """What was decided first may be written last."""
        for member in MEMBERS:
            self.fetch(member, 2, True, 2)
        kind = st.sampled_from((Acknowledgement.ACCEPT, Acknowledgement.RELEASE))
        decided = []
        for member in data.draw(st.permutations(sorted({member for member, _ in self.held.values()}))):
            mine = sorted(offset for offset, (holder, _) in self.held.items() if holder == member)
            word = data.draw(kind)
            said = [(at, at, word) for at in mine]
            decided.append((self.share.acknowledge(member, said, self.now_ms), said))
        for transition, said in reversed(decided) if backwards else decided:
            self._settle(transition)
            for offset, _, word in said:
                if word is Acknowledgement.ACCEPT:
                    self._finish(offset, "accepted")
                else:
                    self._released(offset)

    @rule()
    def crash(self) -> None:
        """Locks and the counts of what was held are lost; everything that was said is not."""
        self.shard = ShareStateShard(updates_per_snapshot=3)
        written, self.written = self.written, []
        self._write(written)
        self.held.clear()
        self.deliveries = dict(self.persisted)
        self._load()

    # What always holds

    @invariant()
    def the_start_is_where_work_begins(self) -> None:
        if hasattr(self, "share"):
            assert all(offset in self.done for offset in range(self.share.start))
            assert self.share.locks == len(self.held)
            assert self.share.complete_count == sum(
                last - first + 1 for first, last, state, _ in self.share.runs if state in (2, 4)
            )

    @invariant()
    def what_is_kept_is_what_is_known(self) -> None:
        if hasattr(self, "shard"):
            kept = self.shard.states[KEY]
            finished = {
                at for first, last, state, _ in kept.batches if state in (2, 4) for at in range(first, last + 1)
            }
            said = {at for at, how in self.done.items() if how != "nothing"}
            assert finished | set(range(max(kept.start_offset, self.log_start))) >= said
            assert finished <= set(self.done)

    def teardown(self) -> None:
        if not hasattr(self, "share"):
            return
        for _ in range(3 * len(self.keys) + 10):
            self.now_ms += 1000
            self._settle(self.share.expire(self.now_ms))
            for offset in list(self.held):
                self._released(offset)
            self.fetch("last", 100, False, 3)
            if not self.held:
                break
            self._settle(
                self.share.acknowledge(
                    "last", [(at, at, Acknowledgement.ACCEPT) for at in sorted(self.held)], self.now_ms
                )
            )
            for offset in list(self.held):
                self._finish(offset, "accepted")
        assert len(self.done) == len(self.keys), "records were lost"
        assert self.share.start == len(self.keys)


TestSharedLog = SharedLog.TestCase
TestSharedLog.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

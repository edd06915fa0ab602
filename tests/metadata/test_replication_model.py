"""Brokers crash, come back, are fenced, shut down, and replicas move, in any order: no cleanly elected leader lacks
an acknowledged record.

The brokers of the model have logs. A write is acknowledged when the whole ISR has it and the ISR is not too small; a
crash may take any of a broker's records from it, and the controller learns of it only when the broker registers anew.
"""

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.metadata.application import apply
from millstream.metadata.configs import ConfigChange, Operation, incremental_alter_configs
from millstream.metadata.elections import ElectionType, balance_leaders, elect_leaderless, elect_leaders
from millstream.metadata.image import ConfigResource, MetadataImage, PartitionState, ResourceType
from millstream.metadata.membership import Heartbeat, process_heartbeat, unregister_broker
from millstream.metadata.partition_change import RECOVERED, RECOVERING
from millstream.metadata.reassignment import Reassignment, alter_reassignments
from millstream.metadata.records import NO_LEADER
from millstream.metadata.replication_rules import ReplicationRules
from millstream.metadata.snapshot import snapshot_records
from millstream.metadata.topics import NewTopic
from millstream.model.errors import ErrorCode
from millstream.model.identifiers import BrokerId
from tests.metadata.cluster import CLUSTER_ID, Cluster

BROKERS = st.integers(1, 4)
REPLICAS = st.lists(BROKERS, min_size=1, max_size=3, unique=True)
ELR = "eligible.leader.replicas.version"


class Replication(RuleBasedStateMachine):
    with_elr = True

    @initialize(replicas=REPLICAS, min_insync=st.integers(1, 3), unclean=st.sampled_from([False, False, True]))
    def start(self, replicas: list[int], min_insync: int, unclean: bool) -> None:
        self.cluster = Cluster(4)
        if not self.with_elr:
            self.cluster.set_feature(ELR, 0)
        self.cluster.create(
            NewTopic(
                name="a",
                assignments=[(0, replicas)],
                configs={
                    "min.insync.replicas": str(min_insync),
                    "unclean.leader.election.enable": "true" if unclean else "false",
                },
            )
        )
        self.logs: dict[int, set[int]] = {number: set() for number in range(1, 5)}
        self.running = {1, 2, 3, 4}
        self.stopped_cleanly: set[int] = set()
        self.acknowledged: set[int] = set()
        self.written = 0
        self.seen = self.partition

    @property
    def partition(self) -> PartitionState:
        return self.cluster.partition()

    def after(self) -> None:
        """Looks at what the last decision did to the partition."""
        old, new = self.seen, self.partition
        assert new.leader_epoch >= old.leader_epoch
        assert new.partition_epoch >= old.partition_epoch
        assert new == old or new.partition_epoch > old.partition_epoch
        assert new.leader == old.leader or new.leader_epoch > old.leader_epoch
        if new.leader != NO_LEADER and new.leader_epoch > old.leader_epoch:
            if new.leader_recovery_state == RECOVERED:
                if new.leader in self.running:
                    assert self.acknowledged <= self.logs[new.leader]
            else:
                self.acknowledged &= self.logs[new.leader]  # what was lost is lost
        self.seen = new

    # What happens to brokers

    @rule(number=BROKERS, lost=st.booleans())
    def crash(self, number: int, lost: bool) -> None:
        assume(number in self.running)
        self.running.discard(number)
        if lost and self.with_elr:  # without the feature Kafka, too, trusts a crashed log
            self.logs[number].clear()

    @rule(number=BROKERS)
    def session_ends(self, number: int) -> None:
        if BrokerId(number) in self.cluster.image.brokers:
            self.cluster.fence(number)
            self.after()

    @rule(number=BROKERS, unfence=st.booleans())
    def starts(self, number: int, unfence: bool) -> None:
        assume(number not in self.running)
        self.cluster.restart(number, clean=number in self.stopped_cleanly, unfence=False)
        self.stopped_cleanly.discard(number)
        self.running.add(number)
        self.after()
        if unfence:
            self.is_heard_of(number, want_shut_down=False)

    @rule(number=BROKERS, want_shut_down=st.booleans())
    def is_heard_of(self, number: int, want_shut_down: bool) -> None:
        broker = self.cluster.image.brokers.get(BrokerId(number))
        if broker is None or number not in self.running:
            return
        heartbeat = Heartbeat(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            current_metadata_offset=self.cluster.image.offset,
            want_shut_down=want_shut_down,
        )
        decision = process_heartbeat(self.cluster.image, heartbeat, self.cluster.config, others_know=True)
        self.cluster.take(decision)
        self.after()
        if decision.results[0].should_shut_down:
            self.running.discard(number)
            self.stopped_cleanly.add(number)

    @rule(number=BROKERS)
    def is_unregistered(self, number: int) -> None:
        if number in self.running or BrokerId(number) not in self.cluster.image.brokers:
            return
        self.cluster.take(unregister_broker(self.cluster.image, BrokerId(number), self.cluster.config))
        self.after()

    # What the leader does

    def leader_is_running(self) -> bool:
        return self.partition.leader in self.running

    @rule()
    @precondition(leader_is_running)
    def write(self) -> None:
        state = self.partition
        minimum = ReplicationRules(self.cluster.image, self.cluster.config).min_insync_replicas("a")
        if len(state.isr) < min(minimum, len(state.replicas)):  # acks=all is refused; others write all the same
            self.written += 1
            self.logs[state.leader].add(self.written)
            return
        self.written += 1
        self.logs[state.leader].add(self.written)
        for member in state.isr:
            if member in self.running:
                self.logs[member] = set(self.logs[state.leader])
        if all(member in self.running for member in state.isr):
            self.acknowledged.add(self.written)

    @rule(out=BROKERS)
    @precondition(leader_is_running)
    def shrink(self, out: int) -> None:
        if out != self.partition.leader:
            self.alter([member for member in self.partition.isr if member != out])

    @rule(number=BROKERS)
    @precondition(leader_is_running)
    def grow(self, number: int) -> None:
        state = self.partition
        if number in state.isr or number not in state.replicas or number not in self.running:
            return
        self.alter(state.isr)  # recovered, if it had to; this may complete a reassignment
        state = self.partition
        if number in state.replicas and state.leader in self.running:
            self.logs[number] = set(self.logs[state.leader])
            self.alter([*state.isr, number])

    def alter(self, isr: list[int] | tuple[int, ...]) -> None:
        answer = self.cluster.alter_isr(*isr)
        assert answer.error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED, ErrorCode.INELIGIBLE_REPLICA)
        self.after()

    # What people and the controller do

    @rule(replicas=st.none() | REPLICAS)
    def reassign(self, replicas: list[int] | None) -> None:
        asked = [Reassignment(topic="a", partition=0, replicas=replicas)]
        self.cluster.take(alter_reassignments(self.cluster.image, asked, self.cluster.config))
        self.after()

    @rule(kind=st.sampled_from(ElectionType))
    def elect(self, kind: ElectionType) -> None:
        self.cluster.take(elect_leaders(self.cluster.image, kind, None, self.cluster.config))
        self.after()

    @rule()
    def balance(self) -> None:
        self.cluster.take(balance_leaders(self.cluster.image, self.cluster.config))
        self.after()

    @rule()
    def elect_who_is_missing(self) -> None:
        before = self.partition
        self.cluster.take(elect_leaderless(self.cluster.image, self.cluster.config))
        self.after()
        # Every decision elects at once whom it can: here, only what was not allowed before is left.
        assert before == self.partition or self.partition.leader_recovery_state == RECOVERING

    @rule(value=st.integers(1, 3))
    def change_the_minimum(self, value: int) -> None:
        change = ConfigChange("min.insync.replicas", Operation.SET, str(value))
        topic = ConfigResource(ResourceType.TOPIC, "a")
        self.cluster.take(incremental_alter_configs(self.cluster.image, [(topic, [change])], self.cluster.config))
        self.after()

    @invariant()
    def the_partition_is_consistent(self) -> None:
        state, brokers = self.partition, self.cluster.image.brokers
        assert len(set(state.replicas)) == len(state.replicas) == len(state.directories)
        assert set(state.isr) <= set(state.replicas)
        assert set(state.eligible_leader_replicas) <= set(state.replicas)
        assert not set(state.isr) & set(state.eligible_leader_replicas)
        assert len(state.last_known_elr) <= 1
        assert not set(state.adding_replicas) & set(state.removing_replicas)
        assert {*state.adding_replicas, *state.removing_replicas} <= set(state.replicas)
        if state.has_leader:
            assert state.leader in state.isr
            assert brokers[BrokerId(state.leader)].active
            assert state.last_known_elr == ()
        active = [member in brokers and brokers[BrokerId(member)].active for member in state.isr]
        if self.with_elr:
            assert all(active)
            assert state.has_leader == bool(state.isr)
            # What was known to be complete is forgotten only when it is gone for good.
            assert state.isr or state.eligible_leader_replicas or state.last_known_elr
        else:
            assert state.isr
            assert all(active) or len(state.isr) == 1
            assert state.eligible_leader_replicas == ()
        if state.leader_recovery_state == RECOVERING:
            assert len(state.isr) <= 1

    def teardown(self) -> None:
        image = self.cluster.image
        again = apply(MetadataImage(), snapshot_records(image), offset=image.offset, epoch=image.epoch).image
        assert again == image
        assert image.cluster_id == CLUSTER_ID


class ReplicationWithoutElr(Replication):
    with_elr = False


Replication.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestReplication = Replication.TestCase
ReplicationWithoutElr.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestReplicationWithoutElr = ReplicationWithoutElr.TestCase

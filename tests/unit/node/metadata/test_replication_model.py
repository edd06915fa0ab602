"""Brokers crash, come back, are fenced, shut down, and replicas move, in any order: no cleanly elected leader lacks
an acknowledged record.

The brokers of the model have logs. A write is acknowledged when the whole ISR has it and the ISR is not too small; a
crash may take any of a broker's records from it, and the controller learns of it only when the broker registers again.
"""

from collections.abc import Callable
from random import Random

import pytest

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.brokers import Heartbeat, process_heartbeat, unregister_broker
from millstream.node.metadata.configs import ConfigChange, Operation, incremental_alter_configs
from millstream.node.metadata.elections import ElectionType, balance_leaders, elect_leaderless, elect_leaders
from millstream.node.metadata.image import ConfigResource, MetadataImage, PartitionState, ResourceType, apply
from millstream.node.metadata.partitions import RECOVERED, RECOVERING, ReplicationRules
from millstream.node.metadata.reassignment import Reassignment, alter_reassignments
from millstream.node.metadata.records import NO_LEADER
from millstream.node.metadata.snapshot import snapshot_records
from millstream.node.metadata.topics import NewTopic
from tests.examples import examples
from tests.unit.node.metadata.cluster import Cluster

BROKERS = (1, 2, 3)
ELR = "eligible.leader.replicas.version"


class Replication:
    """A partition, its brokers and their logs. Each public method is something that may happen at any time."""

    def __init__(self, random: Random, *, with_elr: bool) -> None:
        self.random = random
        self.with_elr = with_elr
        self.cluster = Cluster(len(BROKERS))
        if not with_elr:
            self.cluster.set_feature(ELR, 0)
        self.cluster.create(
            NewTopic(
                name="a",
                assignments=[(0, self._some_brokers())],
                configs={
                    "min.insync.replicas": str(random.randint(1, 3)),
                    "unclean.leader.election.enable": random.choice(["true", "false", "false", "false"]),
                },
            )
        )
        self.logs: dict[int, set[int]] = {number: set() for number in BROKERS}
        self.running = set(BROKERS)
        self.stopped_cleanly: set[int] = set()
        self.acknowledged: set[int] = set()
        self.written = 0
        self.clean_elections = 0
        self.seen = self.partition

    def _some_broker(self) -> int:
        return self.random.choice(BROKERS)

    def _some_brokers(self) -> list[int]:
        return self.random.sample(BROKERS, self.random.choice([1, 2, 3, 3]))

    @property
    def partition(self) -> PartitionState:
        return self.cluster.partition()

    def check_change(self) -> None:
        """Looks at what the last event did to the partition."""
        old, new = self.seen, self.partition
        assert new.leader_epoch >= old.leader_epoch
        assert new.partition_epoch >= old.partition_epoch
        assert new == old or new.partition_epoch > old.partition_epoch
        assert new.leader == old.leader or new.leader_epoch > old.leader_epoch
        if new.leader != NO_LEADER and new.leader_epoch > old.leader_epoch:
            if new.leader_recovery_state == RECOVERED:
                if new.leader in self.running:
                    assert self.acknowledged <= self.logs[new.leader]
                    self.clean_elections += 1
            else:
                self.acknowledged &= self.logs[new.leader]  # what was lost is lost
        self.seen = new

    # What happens to brokers

    def crash(self) -> None:
        number = self._some_broker()
        if number in self.running:
            self.running.discard(number)
            if self.with_elr:  # without the feature Kafka, too, trusts the log of who crashed
                self.logs[number] = {each for each in self.logs[number] if self.random.random() < 0.5}

    def session_ends(self) -> None:
        number = self._some_broker()
        if BrokerId(number) in self.cluster.image.brokers:
            self.cluster.fence(number)

    def start(self) -> None:
        number = self._some_broker()
        if number not in self.running:
            self.cluster.restart(number, clean=number in self.stopped_cleanly, unfence=False)
            self.stopped_cleanly.discard(number)
            self.running.add(number)

    def heartbeat(self) -> None:
        self._heartbeat(want_shut_down=False)

    def shut_down(self) -> None:
        self._heartbeat(want_shut_down=True)

    def _heartbeat(self, *, want_shut_down: bool) -> None:
        number = self._some_broker()
        broker = self.cluster.image.brokers.get(BrokerId(number))
        if broker is None or number not in self.running:
            return
        heartbeat = Heartbeat(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            current_metadata_offset=self.cluster.image.offset,
            want_shut_down=want_shut_down,
        )
        decision = process_heartbeat(self.cluster.image, heartbeat, self.cluster.config, others_caught_up=True)
        self.cluster.take(decision)
        if decision.results[0].should_shut_down:
            self.running.discard(number)
            self.stopped_cleanly.add(number)

    def unregister(self) -> None:
        number = self._some_broker()
        if number not in self.running and BrokerId(number) in self.cluster.image.brokers:
            self.cluster.take(unregister_broker(self.cluster.image, BrokerId(number), self.cluster.config))

    # What the leader does

    def write(self) -> None:
        state = self.partition
        if state.leader not in self.running:
            return
        minimum = ReplicationRules(self.cluster.image, self.cluster.config).min_insync_replicas("a")
        self.written += 1
        self.logs[state.leader].add(self.written)
        if len(state.isr) < min(minimum, len(state.replicas)):
            return  # refused with acks=all; others write all the same
        for member in state.isr:
            if member in self.running:
                self.logs[member] = set(self.logs[state.leader])
        if all(member in self.running for member in state.isr):
            self.acknowledged.add(self.written)

    def shrink(self) -> None:
        out = self._some_broker()
        if self.partition.leader in self.running and out != self.partition.leader:
            self._alter([member for member in self.partition.isr if member != out])

    def grow(self) -> None:
        number = self._some_broker()
        if self.partition.leader in self.running and self.partition.leader_recovery_state == RECOVERING:
            self._alter(list(self.partition.isr))
        state = self.partition
        able = number in state.replicas and number in self.running and state.leader in self.running
        if able and number not in state.isr:
            self.logs[number] = set(self.logs[state.leader])
            self._alter([*state.isr, number])

    def _alter(self, isr: list[int]) -> None:
        response = self.cluster.alter_isr(*isr)
        assert response.error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED, ErrorCode.INELIGIBLE_REPLICA)

    # What people and the controller do

    def reassign(self) -> None:
        replicas = self.random.choice([None, self._some_brokers()])
        asked = [Reassignment(topic="a", partition=0, replicas=replicas)]
        self.cluster.take(alter_reassignments(self.cluster.image, asked, self.cluster.config))

    def elect(self) -> None:
        kind = self.random.choice([ElectionType.PREFERRED, ElectionType.PREFERRED, ElectionType.UNCLEAN])
        self.cluster.take(elect_leaders(self.cluster.image, kind, None, self.cluster.config))

    def balance(self) -> None:
        self.cluster.take(balance_leaders(self.cluster.image, self.cluster.config))

    def elect_who_is_missing(self) -> None:
        before = self.partition
        self.cluster.take(elect_leaderless(self.cluster.image, self.cluster.config))
        # Every decision elects at once the leaders that it can: here, only what was not allowed before is left.
        assert before == self.partition or self.partition.leader_recovery_state == RECOVERING

    def change_the_minimum(self) -> None:
        change = ConfigChange("min.insync.replicas", Operation.SET, str(self.random.randint(1, 3)))
        topic = ConfigResource(ResourceType.TOPIC, "a")
        self.cluster.take(incremental_alter_configs(self.cluster.image, [(topic, [change])], self.cluster.config))

    def check_consistency(self) -> None:
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


WEIGHTS: dict[Callable[[Replication], None], int] = {
    Replication.crash: 3,
    Replication.session_ends: 6,
    Replication.start: 10,
    Replication.heartbeat: 14,
    Replication.shut_down: 3,
    Replication.unregister: 1,
    Replication.write: 14,
    Replication.shrink: 3,
    Replication.grow: 12,
    Replication.reassign: 2,
    Replication.elect: 1,
    Replication.balance: 2,
    Replication.elect_who_is_missing: 1,
    Replication.change_the_minimum: 2,
}


@pytest.mark.parametrize("with_elr", [True, False])
@pytest.mark.parametrize("seed", range(examples(20)))
def test_no_cleanly_elected_leader_lacks_an_acknowledged_record(seed: int, with_elr: bool) -> None:
    random = Random(seed)
    clean_elections = 0
    for _ in range(15):
        model = Replication(random, with_elr=with_elr)
        for event in random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=150):
            event(model)
            model.check_change()
            model.check_consistency()
        clean_elections += model.clean_elections
        image = model.cluster.image
        again = apply(MetadataImage(), snapshot_records(image), offset=image.offset, epoch=image.epoch).image
        assert again == image
    assert clean_elections > 15

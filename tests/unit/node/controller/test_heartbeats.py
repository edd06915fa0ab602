"""Brokers register, are let in, fenced when they are silent, and at once when they are dead."""

from collections.abc import Iterator

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BrokerId, TopicName
from millstream.formats.protocol.schema import request_schema
from millstream.node.metadata.topics import NewTopic, create_topics
from millstream.node.server.service import Peer
from tests.unit.node.controller.bench import SESSION_SECONDS, Bench, port_of

LISTENERS = ("listeners=CONTROLLER://127.0.0.1:9093", "controller.listener.names=CONTROLLER")


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def make_topic(bench: Bench, *replicas: int) -> None:
    topic = NewTopic(name="t", assignments=[(0, replicas)])
    (result,) = bench.run(
        bench.controller.decide(lambda image, config, chance: create_topics(image, [topic], config, chance))
    )
    assert result.error is ErrorCode.NONE, result


def leader(bench: Bench) -> int:
    return bench.image.topics[TopicName("t")].partitions[0].leader


def test_a_broker_is_fenced_until_it_has_read_the_metadata_up_to_its_registration(bench: Bench) -> None:
    epoch = bench.register(1)
    assert bench.fenced() == {1}
    behind = bench.beat(1, offset=epoch - 1)
    assert behind.is_fenced and not behind.is_caught_up
    assert bench.beat(1, offset=epoch, want_fence=True).is_fenced
    response = bench.beat(1, offset=epoch)
    assert response.is_caught_up and not response.is_fenced
    assert bench.fenced() == set()


def test_the_broker_epoch_is_the_offset_of_the_registration(bench: Bench) -> None:
    epoch = bench.register(1)
    assert bench.quorum.log[epoch].broker_id == 1  # type: ignore[union-attr]


def test_a_silent_broker_is_fenced_when_its_session_ends_and_comes_back_by_itself(bench: Bench) -> None:
    bench.join(1, 2)
    make_topic(bench, 1, 2)
    for _ in range(4):
        bench.pass_time(SESSION_SECONDS / 3)
        bench.beat(2)
    assert bench.fenced() == {1}
    assert leader(bench) == 2
    assert not bench.beat(1).is_fenced
    assert bench.fenced() == set()


def test_heartbeats_keep_a_session_alive(bench: Bench) -> None:
    bench.join(1)
    for _ in range(10):
        bench.pass_time(SESSION_SECONDS - 1)
        assert not bench.beat(1).is_fenced
    assert bench.fenced() == set()


def test_a_broker_whose_address_refuses_connections_is_fenced_at_once(bench: Bench) -> None:
    bench.join(1, 2)
    make_topic(bench, 1, 2)
    bench.network.refused.add(port_of(1))
    bench.peer(1).close()
    bench.pass_time(0.1)
    assert bench.fenced() == {1}
    assert leader(bench) == 2


def test_a_broken_connection_alone_proves_nothing(bench: Bench) -> None:
    bench.join(2)
    bench.peer(2).close()
    bench.pass_time(SESSION_SECONDS - 0.1)
    assert bench.fenced() == set()
    bench.pass_time(0.2)
    assert bench.fenced() == {2}


def beat_for(bench: Bench, seconds: float, *broker_ids: int, every_s: float = 0.5) -> None:
    for _ in range(round(seconds / every_s)):
        bench.pass_time(every_s)
        for broker_id in broker_ids:
            bench.beat(broker_id)


@pytest.mark.parametrize("how", ["stopped", "unreachable"])
def test_a_broker_that_hangs_or_is_cut_off_is_fenced_long_before_its_session_ends(bench: Bench, how: str) -> None:
    bench.join(2, 3)
    make_topic(bench, 2, 3)
    beat_for(bench, 5, 2, 3)
    getattr(bench.network, how).add(port_of(2))
    beat_for(bench, 1.5, 3)
    assert bench.fenced() == set()
    beat_for(bench, 1, 3)
    assert bench.fenced() == {2}
    assert leader(bench) == 3
    assert not bench.beat(2).is_fenced


def test_a_broker_that_responds_to_probes_has_a_whole_session(bench: Bench) -> None:
    bench.join(2, 3)
    beat_for(bench, SESSION_SECONDS - 0.5, 3)
    assert bench.fenced() == set()
    beat_for(bench, 1, 3)
    assert bench.fenced() == {2}


def test_a_broker_whose_heartbeats_were_late_before_is_given_more_time(bench: Bench) -> None:
    bench.join(2, 3)
    for _ in range(3):
        beat_for(bench, 2, 3)
        bench.beat(2)
    bench.network.stopped.update((port_of(2), port_of(3)))
    bench.pass_time(3)
    assert bench.fenced() == {3}
    bench.pass_time(2)
    assert bench.fenced() == {2, 3}


def test_a_controller_that_runs_late_blames_the_brokers_later(bench: Bench) -> None:
    bench.join(2)
    beat_for(bench, 2, 2)
    bench.network.stopped.add(port_of(2))
    for _ in range(4):
        bench.loop.clock_of_selector.now_s += 1  # someone else had the processor
        bench.pass_time(0.1)
    assert bench.fenced() == set(), "the controller had little time to listen in"
    beat_for(bench, 8, every_s=0.5)
    assert bench.fenced() == {2}


def test_a_session_timeout_that_was_set_holds_as_in_kafka() -> None:
    bench = Bench("broker.session.timeout.ms=6000")
    try:
        bench.join(2)
        bench.network.stopped.add(port_of(2))
        bench.pass_time(5.9)
        assert bench.fenced() == set()
        bench.pass_time(0.2)
        assert bench.fenced() == {2}
    finally:
        bench.close()


def take_over(bench: Bench, former: int) -> None:
    """This node leads again, after another that did not respond for two seconds."""
    bench.quorum.is_leader = False
    bench.controller.no_longer_leading()
    bench.last_leader = former, bench.loop.time()
    bench.pass_time(2.2)
    bench.quorum.is_leader, bench.quorum.epoch = True, bench.quorum.epoch + 1
    bench.controller.leading(bench.quorum.epoch)
    bench.pass_time(0)


def test_the_broker_of_a_controller_that_was_lost_is_fenced_soon_after_the_takeover(bench: Bench) -> None:
    bench.join(2, 3)
    make_topic(bench, 2, 3)
    bench.network.stopped.add(port_of(2))
    take_over(bench, 2)
    beat_for(bench, 1, 3)
    assert bench.fenced() == {2}
    assert leader(bench) == 3


def test_a_follower_probes_a_leader_that_is_silent_so_that_a_takeover_need_not_wait_for_it(bench: Bench) -> None:
    """A probe has to be without a response for 0.3 s. It was, before this node led."""
    bench.join(2, 3)
    bench.network.stopped.add(port_of(2))
    take_over(bench, 2)
    bench.pass_time(0.2)
    assert bench.fenced() == {2}


def test_a_leader_that_responds_to_a_follower_s_probe_is_not_fenced_after_a_takeover(bench: Bench) -> None:
    bench.join(2, 3)
    bench.quorum.is_leader = False
    bench.controller.no_longer_leading()
    bench.last_leader = 2, bench.loop.time()
    bench.pass_time(1.5)  # it is probed by now, and responds
    bench.network.stopped.add(port_of(2))
    bench.pass_time(0.7)
    bench.quorum.is_leader, bench.quorum.epoch = True, bench.quorum.epoch + 1
    bench.controller.leading(bench.quorum.epoch)
    beat_for(bench, 1, 3)
    assert bench.fenced() == set()
    beat_for(bench, 1, 3)
    assert bench.fenced() == {2}


def hear_leader(bench: Bench, node: int, seconds: float, every_s: float) -> None:
    for _ in range(round(seconds / every_s)):
        bench.last_leader = node, bench.loop.time()
        bench.pass_time(every_s)


def test_a_controller_that_led_before_and_leads_again_was_not_late(bench: Bench) -> None:
    bench.join(2, 3)
    hear_leader(bench, 2, 2, every_s=0.5)
    beat_for(bench, 30, 2, 3)  # this one leads
    bench.network.stopped.add(port_of(2))
    hear_leader(bench, 2, 2, every_s=0.5)
    take_over(bench, 2)
    beat_for(bench, 1, 3)
    assert bench.fenced() == {2}


def test_a_controller_that_responded_late_before_it_was_lost_is_given_more_time(bench: Bench) -> None:
    bench.join(2, 3)
    bench.quorum.is_leader = False
    bench.controller.no_longer_leading()
    hear_leader(bench, 2, 6, every_s=1.8)
    bench.network.stopped.add(port_of(2))
    take_over(bench, 2)
    beat_for(bench, 1, 3)
    assert bench.fenced() == set()
    beat_for(bench, 2, 3)
    assert bench.fenced() == {2}


def test_the_broker_of_a_controller_that_was_lost_may_prove_that_it_lives(bench: Bench) -> None:
    bench.join(2, 3)
    take_over(bench, 2)
    beat_for(bench, 3, 3)
    assert bench.fenced() == set()


def test_an_old_connection_that_ends_late_does_not_matter(bench: Bench) -> None:
    bench.join(1)
    old = bench.peers.pop(1)
    bench.beat(1)
    bench.network.refused.add(port_of(1))
    old.close()
    bench.pass_time(0.1)
    assert bench.fenced() == set()


def test_a_controller_that_takes_over_probes_everyone_and_gives_the_living_time(bench: Bench) -> None:
    bench.join(2, 3)
    make_topic(bench, 2, 3)
    bench.quorum.is_leader = False
    bench.controller.no_longer_leading()
    bench.pass_time(100)
    bench.network.refused.add(port_of(2))
    bench.quorum.is_leader, bench.quorum.epoch = True, 2
    bench.controller.leading(2)
    bench.pass_time(0.1)
    assert bench.fenced() == {2}
    assert leader(bench) == 3
    bench.pass_time(SESSION_SECONDS - 1)
    assert not bench.beat(3).is_fenced


def test_a_controller_that_did_not_run_does_not_blame_the_brokers(bench: Bench) -> None:
    bench.join(1, 2)
    bench.loop.clock_of_selector.now_s += 60  # the process was stopped
    bench.pass_time(1)
    assert bench.fenced() == set()
    bench.beat(1)
    bench.pass_time(SESSION_SECONDS - 0.5)
    assert bench.fenced() == {2}


def test_a_second_process_with_the_number_of_a_living_one_is_refused(bench: Bench) -> None:
    bench.join(1)
    stranger = Peer(host="127.0.0.1", port=1, listener="CONTROLLER")
    with pytest.raises(KafkaError) as caught:
        bench.register(1, process=2, peer=stranger, own_directory=False)
    assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    bench.peer(1).close()  # a connection may break, and be made again
    bench.pass_time(0.1)
    with pytest.raises(KafkaError):
        bench.register(1, process=2, peer=stranger, own_directory=False)
    assert not bench.beat(1).is_fenced


def test_a_process_that_comes_back_after_a_crash_need_not_wait_for_its_own_session(bench: Bench) -> None:
    bench.join(1)
    bench.peer(1).close()
    bench.pass_time(0.1)
    again = bench.register(1, process=2)
    assert bench.image.brokers[BrokerId(1)].epoch == again
    assert bench.fenced() == {1}


def test_a_heartbeat_of_a_former_process_is_refused(bench: Bench) -> None:
    bench.join(1)
    old_epoch = bench.image.brokers[BrokerId(1)].epoch
    bench.peer(1).close()
    bench.register(1, process=2)
    fields = {"broker_id": 1, "broker_epoch": old_epoch, "current_metadata_offset": bench.image.offset}
    with pytest.raises(KafkaError) as caught:
        bench.ask("broker_heartbeat", fields, bench.peer(1))
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_forged_registration_does_not_replace_a_broker_that_sends_heartbeats(bench: Bench) -> None:
    """The directory id and the address of a broker can be read by others."""
    bench.join(1)
    epoch = bench.image.brokers[BrokerId(1)].epoch
    stranger = Peer(host="127.0.0.1", port=1, listener="CONTROLLER")
    for _ in range(3):
        with pytest.raises(KafkaError) as caught:
            bench.register(1, process=2, peer=stranger)
        assert caught.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
        bench.pass_time(2.0)
        bench.beat(1)
    assert bench.image.brokers[BrokerId(1)].epoch == epoch


def test_a_process_with_the_same_directory_waits_only_until_the_first_is_silent(bench: Bench) -> None:
    """A machine that lost power cannot close its connection."""
    bench.join(1)
    stranger = Peer(host="127.0.0.1", port=1, listener="CONTROLLER")
    with pytest.raises(KafkaError):
        bench.register(1, process=2, peer=stranger)
    bench.pass_time(4.1)  # twice the interval of heartbeats
    bench.register(1, process=2, peer=stranger)


def test_the_same_process_may_ask_twice(bench: Bench) -> None:
    assert bench.register(1) == bench.register(1)


def test_a_broker_that_stops_is_let_go_when_the_others_know(bench: Bench) -> None:
    bench.join(1, 2)
    make_topic(bench, 1, 2)
    bench.beat(2)
    assert not bench.beat(1, want_shut_down=True).should_shut_down
    assert leader(bench) == 2
    assert bench.image.brokers[BrokerId(1)].in_controlled_shutdown
    assert not bench.beat(1, want_shut_down=True).should_shut_down
    bench.beat(2)
    response = bench.beat(1, want_shut_down=True)
    assert response.should_shut_down and response.is_fenced
    again = bench.register(1, process=2, previous_epoch=bench.image.brokers[BrokerId(1)].epoch)
    assert again > 0


def test_unregistering_forgets_a_broker(bench: Bench) -> None:
    bench.join(1, 2)
    bench.ask("unregister_broker", {"broker_id": 1}, bench.peer(2))
    assert set(bench.image.brokers) == {2}
    with pytest.raises(KafkaError) as caught:
        bench.ask("unregister_broker", {"broker_id": 1}, bench.peer(2))
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_controller_that_does_not_lead_refuses_heartbeats(bench: Bench) -> None:
    bench.join(1)
    bench.quorum.is_leader = False
    bench.controller.no_longer_leading()
    with pytest.raises(KafkaError) as caught:
        bench.beat(1)
    assert caught.value.code is ErrorCode.NOT_CONTROLLER


def test_a_listener_that_outlives_the_connection_by_a_moment_is_looked_at_again(bench: Bench) -> None:
    bench.join(1)
    bench.peer(1).close()
    bench.pass_time(0.1)
    assert bench.fenced() == set()
    bench.network.refused.add(port_of(1))
    bench.pass_time(1.5)
    assert bench.fenced() == {1}


def test_probes_end_when_the_broker_is_heard_of(bench: Bench) -> None:
    bench.join(1)
    bench.peer(1).close()
    bench.pass_time(0.1)
    bench.beat(1)
    beat_for(bench, 1, 1)
    probes = len(bench.network.probed)
    beat_for(bench, 5, 1)
    assert len(bench.network.probed) == probes


def test_the_only_broker_goes_on_after_a_clean_stop_as_if_nothing_had_been(bench: Bench) -> None:
    bench.join(1)
    make_topic(bench, 1)
    before = bench.image.topics
    epoch = bench.image.brokers[BrokerId(1)].epoch
    bench.peer(1).close()
    bench.register(1, process=2, previous_epoch=epoch)
    assert not bench.beat(1).is_fenced
    assert bench.image.topics == before
    bench.peer(1).close()
    bench.register(1, process=3, previous_epoch=epoch)
    assert bench.fenced() == {1}, "an unclean stop"
    assert leader(bench) == -1


def test_one_of_two_is_out_of_the_isr_after_a_restart_however_quick(bench: Bench) -> None:
    bench.join(1, 2)
    make_topic(bench, 1, 2)
    epoch = bench.image.brokers[BrokerId(1)].epoch
    bench.peer(1).close()
    bench.register(1, process=2, previous_epoch=epoch)
    assert bench.fenced() == {1}
    assert bench.image.topics[TopicName("t")].partitions[0].isr == (2,)


def test_after_a_takeover_a_new_process_waits_only_as_long_as_the_old_one_has_to_turn_up(bench: Bench) -> None:
    bench.join(2, 3)
    bench.quorum.epoch = 2
    bench.controller.leading(2)
    bench.beat(3)
    with pytest.raises(KafkaError):
        bench.register(2, process=2, own_directory=False)
    bench.pass_time(4.1)  # twice the interval of heartbeats
    bench.register(2, process=2, own_directory=False)
    stranger = Peer(host="127.0.0.1", port=1, listener="CONTROLLER")
    with pytest.raises(KafkaError):
        bench.register(3, process=2, peer=stranger, own_directory=False)


def test_a_broker_that_is_let_in_again_while_its_fencing_is_being_committed_is_watched(bench: Bench) -> None:
    bench.join(1, 2)
    bench.quorum.commits = False
    bench.network.refused.add(port_of(1))
    bench.peer(1).close()
    bench.pass_time(0.1)  # decided, not committed
    bench.network.refused.clear()
    schema = request_schema("broker_heartbeat")
    fields = {"broker_id": 1, "broker_epoch": bench.image.brokers[BrokerId(1)].epoch}
    fields["current_metadata_offset"] = bench.image.offset
    request = schema.decode(schema.encode(fields, schema.versions.high), schema.versions.high)
    beat = bench.loop.create_task(
        bench.heartbeats.broker_heartbeat(request, bench.context("broker_heartbeat", bench.peer(1)))  # type: ignore[arg-type]
    )
    bench.pass_time(0.01)
    bench.quorum.commits = True
    bench.quorum.commit()
    bench.run(beat)
    assert bench.fenced() == set()
    for _ in range(4):
        bench.pass_time(SESSION_SECONDS / 3)
        bench.beat(2)
    assert bench.fenced() == {1}, "nobody would ever have noticed that it is gone"


def test_a_controller_that_was_a_broker_fences_its_former_self() -> None:
    bench = Bench("process.roles=controller", "node.id=1", "controller.quorum.voters=1@127.0.0.1:9093", *LISTENERS)
    try:
        bench.join(1, 2)
        bench.controller.no_longer_leading()
        bench.controller.leading(1)
        for _ in range(4):
            bench.pass_time(SESSION_SECONDS / 3)
            bench.beat(2)
        assert bench.fenced() == {1}
    finally:
        bench.close()

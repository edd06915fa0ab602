"""What the simulator found, each in its smallest form. docs/simulation.md has the stories."""

import asyncio

import pytest

from millstream.config.topic_config import LogConfig
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.server.channel import Channel
from millstream.node.storage.cleaner.copying import CleanedTransactions
from millstream.node.storage.index.transaction_index import AbortedTransaction
from millstream.node.storage.log.directory import LogDirectory
from millstream.simulator.disk import SimulatedDisk
from millstream.simulator.machine import Process
from tests.unit.node.storage.batches import NOW, batch
from tests.unit.node.storage.conftest import TOPIC_ID
from tests.unit.simulator.conftest import World

PARTITION = TopicPartition(TopicName("orders"), 0)


def test_who_waits_along_for_a_connection_is_not_cancelled_with_it(world: World) -> None:
    """A broker whose heartbeat gave up connecting sent the next one at once, and that was cancelled: it never sent
    another."""
    failures: list[BaseException] = []

    async def main(process: Process) -> None:
        channel = Channel("server", 9092, process.network, process.loop, client_id="test")
        fields = {"client_software_name": "x", "client_software_version": "1"}

        async def ask(timeout_s: float) -> None:
            try:
                await channel.request("api_versions", fields, timeout_s=timeout_s)
            except (OSError, asyncio.CancelledError) as error:
                failures.append(error)

        longer = asyncio.ensure_future(ask(5.0))
        await ask(0.5)
        await ask(0.5)
        await longer

    world.run_on("server", _idle)
    world.run(0.1)
    world.machine("server").kill(power_lost=True)
    world.run_on("client", main)
    world.run(10.0)
    assert len(failures) == 3
    assert all(isinstance(each, OSError) for each in failures), failures


@pytest.mark.parametrize("offset", [5, 6])
def test_an_aborted_transaction_that_ended_earlier_takes_no_later_one_with_it(offset: int) -> None:
    """The cleaner reads the dirty part of a log only, and the marker that ended the transaction lies before it: all
    that the producer wrote later counted as aborted, and was gone."""
    transactions = CleanedTransactions([AbortedTransaction(7, 3, 4, 5), AbortedTransaction(7, 8, 9, 10)])
    assert not transactions.is_aborted(7, offset)
    assert transactions.is_aborted(7, 8)
    assert not transactions.is_aborted(7, 10)


async def _idle(process: Process) -> None:
    return


@pytest.mark.parametrize("offset", [3, 7])
def test_an_epoch_in_which_nothing_was_written_goes_with_a_truncation_that_cuts_nothing(offset: int) -> None:
    """A follower that had led for a moment asked for an epoch no leader knew, was told where the logs part, cut
    nothing, and asked again for ever."""
    machine = SimulatedDisk("test")
    machine.make_root("/data")
    directory = LogDirectory(machine.attach(lambda: 0), "/data", max_open_files=8)
    directory.start(NOW)
    log = directory.create(PARTITION, TOPIC_ID, LogConfig(), NOW)
    for _ in range(3):
        log.append(batch(), leader_epoch=0, now_ms=NOW)
    log.assign_leader_epoch(1)
    assert log.latest_epoch == 1
    assert log.truncate_to(offset) == 3
    assert log.latest_epoch == 0

"""Frames that once made the broker fail, byte for byte. Each may be refused, but must not be a surprise."""

from collections.abc import Iterator

import pytest

from millstream.testing import EmbeddedBroker
from tests.system.fuzz.values import PARTITIONS, TOPICS
from tests.wire import Closed, Wire, framed, request

FRAMES = {
    # Seed 1: an epoch below -1 in a log that knows no epoch yet; IndexError.
    "offset_for_leader_epoch-v4": bytes.fromhex(
        "0000004a001700040000000000047769726500ffffffff040766757a7a2d35020000000000000000ffffefff0000"
        "0766757a7a2d340200000002fffffbff7fffffff00000766757a7a2d33010000"
    ),
    "offset_for_leader_epoch-v3": bytes.fromhex(
        "0000005e0017000300000000000477697265ffffffff00000003000666757a7a2d320000000100000002ffffffff"
        "00000000000666757a7a2d330000000200000003ffffffff0000000000000000fffffffffffe0000000666757a7a"
        "2d3000000000"
    ),
    "offset_for_leader_epoch-v2": bytes.fromhex(
        "00000052001700020000000000047769726500000001000666757a7a2d350000000300000000ffffffff00000000"
        "00000003000000000000000000000000ffffffffffff00000000000000000000ffffffffffffffff"
    ),
    # A broker's number of more digits than Python takes; ValueError.
    "incremental_alter_configs-v1": framed(
        request(
            "incremental_alter_configs",
            1,
            {"resources": [{"resource_type": 4, "resource_name": "9" * 4301, "configs": []}], "validate_only": True},
        )
    ),
    # Seed 31: a retention time that, added to the present, is no 64-bit number any more; struct.error.
    "offset_commit-v2": bytes.fromhex(
        "000000ae00080002000000000000000666757a7a2d3480000000000666757a7a2d347fffffffffffffff0000000200"
        "0666757a7a2d3300000003000000017fffffffffffffffffff00000002ffffffffffffffff000666757a7a2d350000"
        "00030000000000000001000666757a7a2d33000666757a7a2d3300000003000000017fffffffffffffffffff000000"
        "02ffffffffffffffff000666757a7a2d35000000030000000000000001000666757a7a2d33"
    ),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        with Wire(running.bootstrap_servers) as wire:
            for name in TOPICS:
                wire.create_topic(name, PARTITIONS)
        yield running


@pytest.mark.parametrize("name", FRAMES)
def test_it_is_no_surprise_any_more(broker: EmbeddedBroker, name: str) -> None:
    before = len(broker.log_file.read_text())
    with Wire(broker.bootstrap_servers) as wire:
        wire.send_raw(FRAMES[name])
        try:
            wire.receive_raw()
        except Closed:
            pass
    with Wire(broker.bootstrap_servers) as wire:
        assert wire.call("api_versions", 0).error_code == 0
    log = broker.log_file.read_text()[before:]
    assert "handler_failed" not in log and "Traceback" not in log, log

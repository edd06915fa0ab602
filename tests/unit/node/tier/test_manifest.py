"""The manifest of a tiered partition: what it names, and how it changes."""

import json
from dataclasses import replace
from uuid import UUID

import pytest

from millstream.config.topic_config import LogConfig
from millstream.node.storage.log.leader_epochs import LeaderEpochs
from millstream.node.tier.core.decisions import LocalSegment, backoff_s, expired_start, to_copy
from millstream.node.tier.core.manifest import (
    DamagedManifestError,
    DataKey,
    Manifest,
    State,
    TieredSegment,
    copies_of,
    decode_manifest,
    encode_manifest,
    parse_copy_name,
    segment_name,
)

TOPIC_ID = UUID(int=7)


def segment(base: int, end: int, *, timestamp: int = 0, epochs: tuple[tuple[int, int], ...] = ()) -> TieredSegment:
    return TieredSegment(f"s{base}", base, end, 100, 120, timestamp, 3, epochs or ((0, base),), False)


def manifest(*segments: TieredSegment, start: int = 0) -> Manifest:
    return Manifest("t", TOPIC_ID, 0, 1, {"remote.storage.enable": "true"}, 3, start, segments)


def test_a_manifest_is_read_as_it_was_written() -> None:
    written = manifest(segment(0, 10), segment(10, 25, epochs=((0, 10), (2, 15)))).starting_at(10)
    assert decode_manifest(encode_manifest(written)) == written


def test_a_manifest_with_keys_has_a_version_that_others_refuse() -> None:
    written = manifest(replace(segment(0, 10), key=DataKey("k1", b"wrapped")))
    assert decode_manifest(encode_manifest(written)) == written
    assert json.loads(encode_manifest(written))["version"] == 2
    assert json.loads(encode_manifest(manifest(segment(0, 10))))["version"] == 1


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 3}', b"\xff\xfe"])
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedManifestError):
        decode_manifest(data)


def test_segments_continue_each_other() -> None:
    present = manifest(segment(0, 10))
    assert present.adding(segment(10, 20)) is not None
    assert present.adding(segment(5, 20)) is not None, "replicas close segments at different offsets"
    assert present.adding(segment(11, 20)) is None, "a gap"
    assert present.adding(segment(0, 10)) is None, "another leader was faster"
    assert manifest().adding(segment(30, 40)) is not None, "the first one may begin anywhere"


def test_an_offset_is_in_the_first_segment_that_ends_after_it() -> None:
    present = manifest(segment(0, 10), segment(5, 20), segment(20, 30), start=3)
    names = [found.name if (found := present.segment_of(offset)) else None for offset in (3, 9, 10, 19, 20, 29, 30)]
    assert names == ["s0", "s0", "s5", "s5", "s20", "s20", None]
    assert present.end_offset == 30


def test_segments_before_the_start_are_deleted_in_two_steps() -> None:
    moved = manifest(segment(0, 10), segment(10, 20)).starting_at(10)
    assert [each.state for each in moved.segments] == [State.DELETING, State.FINISHED]
    assert [each.name for each in moved.deleting] == ["s0"]
    assert moved.segment_of(5) is None
    assert [each.name for each in moved.without(frozenset({"s0"})).segments] == ["s10"]
    assert moved.starting_at(5).log_start_offset == 10, "the start never goes back"


def test_an_unclean_election_cuts_the_tier() -> None:
    tiered = manifest(segment(0, 10, epochs=((0, 0),)), segment(10, 20, epochs=((0, 10), (1, 15))))
    same = LeaderEpochs([(0, 0), (1, 15)])
    assert tiered.agreed_end(same, 40) == 20
    other = LeaderEpochs([(0, 0), (2, 13)])
    assert tiered.agreed_end(other, 40) == 13
    shorter = LeaderEpochs([(0, 0), (1, 15), (2, 18)])
    assert tiered.agreed_end(shorter, 18) == 18
    cut = tiered.ending_at(13)
    assert [(each.base_offset, each.end_offset) for each in cut.segments] == [(0, 10), (10, 13)]
    assert tiered.agreed_end(LeaderEpochs([(1, 17)]), 40) == 20, "older epochs are not known, and not doubted"


def test_the_epochs_of_the_tier_are_those_of_its_segments() -> None:
    tiered = manifest(segment(0, 10), segment(8, 20, epochs=((0, 8), (4, 12))), segment(20, 30, epochs=((4, 20),)))
    assert tiered.epochs() == [(0, 0), (4, 12)]


def test_the_next_segment_to_copy_is_the_oldest_that_is_stable() -> None:
    local = [LocalSegment(0, 10, 1), LocalSegment(10, 20, 1), LocalSegment(20, 30, 1)]
    assert to_copy(local, 0, 30) == local[0]
    assert to_copy(local, 10, 30) == local[1]
    assert to_copy(local, 15, 30) == local[1], "it reaches beyond the tier"
    assert to_copy(local, 20, 29) is None, "it is not committed, or has an open transaction"
    assert to_copy(local, 30, 99) is None


def test_retention_counts_the_tier_and_the_disk() -> None:
    tiered = manifest(segment(0, 10, timestamp=1000), segment(10, 20, timestamp=2000), segment(20, 30, timestamp=3000))
    keep = LogConfig(retention_ms=-1, retention_bytes=-1)
    assert expired_start(tiered, keep, 50, 10_000) == 0
    assert expired_start(tiered, LogConfig(retention_ms=8500), 50, 10_000) == 10
    assert expired_start(tiered, LogConfig(retention_ms=-1, retention_bytes=250), 50, 10_000) == 10
    assert expired_start(tiered, LogConfig(retention_ms=-1, retention_bytes=350), 50, 10_000) == 0
    assert expired_start(tiered, LogConfig(retention_ms=1), 50, 10_000) == 30
    assert expired_start(tiered, LogConfig(retention_ms=1, cleanup_policy=frozenset()), 50, 10_000) == 0


def test_pauses_grow_up_to_half_a_minute() -> None:
    assert [backoff_s(failures, 0.5) for failures in (1, 2, 3, 100_000)] == [0.5, 1.0, 2.0, 30.0]


def test_the_name_of_a_copy_says_who_made_it() -> None:
    name = segment_name("c", UUID(int=1), 3, 700, 4, 12, "ab")
    assert name.startswith(copies_of("c", UUID(int=1), 3, 700)) and parse_copy_name(name) == (4, 12)
    assert parse_copy_name(f"c/{UUID(int=1)}/3/{700:020d}-{4:010d}-ab.segment") is None, "of an earlier version"

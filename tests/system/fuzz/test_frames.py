"""A small run of the fuzzer, always with the same seed; `make fuzz` sends a million frames of all APIs."""

from tests.system.fuzz.frames import Fuzzer
from tests.system.fuzz.target import Target

FRAMES = 15_000
SEED = 20_250_601
# The log itself: produce, fetch, positions, topics, settings, metadata. Coordinators are left to the long run.
APIS = (
    "produce", "fetch", "list_offsets", "metadata", "find_coordinator", "api_versions", "create_topics",
    "delete_topics", "delete_records", "init_producer_id", "offset_for_leader_epoch", "describe_configs",
    "alter_configs", "describe_log_dirs", "create_partitions", "incremental_alter_configs", "describe_cluster",
    "describe_topic_partitions",
)  # fmt: skip


def test_the_broker_serves_on_after_thousands_of_mutated_frames() -> None:
    with Target() as target:
        fuzzer = Fuzzer(target, SEED, APIS)
        try:
            for _ in fuzzer.run(FRAMES):
                pass
        finally:
            fuzzer.close()
        assert fuzzer.summary.frames >= FRAMES
        assert fuzzer.summary.closed_by_broker > 0, "no mutation was noticed"


def test_every_api_the_broker_offers_is_among_the_frames_of_a_long_run() -> None:
    with Target() as target:
        fuzzer = Fuzzer(target, SEED)
        fuzzer.renew_corpus()
        fuzzer.close()
        sent = {(frame[5], frame[7]) for frame in fuzzer.corpus}
        offered = target.offered_keys()
    assert sent == {(key, version) for key, first, last in offered for version in range(first, last + 1)}

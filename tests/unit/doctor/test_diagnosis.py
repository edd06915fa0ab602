"""Each cause has a rule; the largest delay is named, and noise is not."""

import pytest

from millstream.doctor.diagnosis import BrokerReport, ClientReport, QuotaUse, diagnose


def client(**metrics: float) -> ClientReport:
    named = {name.replace("__", ".").replace("_", "."): value for name, value in metrics.items()}
    return ClientReport("app", "java 4.3.1", "User:a", "10.0.0.1", 1.0, named)


def broker(**values: object) -> BrokerReport:
    return BrokerReport(name="broker 1", **{"seconds": 10.0, **values})  # type: ignore[arg-type]


def test_a_healthy_cluster_has_no_cause() -> None:
    found = diagnose([client()], [broker(syncs=10, sync_s=0.01, loop_lags=100, loop_lag_s=0.01)])
    found = diagnose([client()], [broker(syncs=10, sync_s=0.2, produces=10, produce_s=0.01)])  # nothing waits for it
    assert found.cause == "none" and found.sentence.startswith("Nothing is slow: 1 broker and 1 client with")


@pytest.mark.parametrize(
    ("clients", "brokers", "cause", "text"),
    [
        ([client(producer_produce_throttle_time_avg=40)], [], "throttling", "app is throttled by a quota for 40 ms"),
        ([client(consumer_fetch_manager_fetch_throttle_time_avg=9)], [], "throttling", "while fetching"),
        (
            [
                client(
                    producer_records_per_request_avg=1.1, producer_record_send_rate=900, producer_request_latency_avg=2
                )
            ],
            [],
            "client",
            "app sends 1.1 records per request, 818 requests per second; set linger.ms",
        ),
        ([client(producer_record_queue_time_avg=50, producer_request_latency_avg=2)], [], "client", "wait 50 ms in"),
        ([client(consumer_coordinator_rebalance_latency_avg=3000)], [], "client", "rebalances, for 3000 ms"),
        ([], [broker(syncs=10, sync_s=1.0)], "disk", "an fsync on broker 1 takes 100 ms"),
        (
            [],
            [broker(loop_lags=100, loop_lag_s=2.0, tenants={"User:bob": 6.0, "User:eve": 1.0})],
            "broker",
            "is 20 ms late, and User:bob uses 60% of it",
        ),
        ([], [broker(syncs=10, sync_s=0.2, produces=10, produce_s=0.3)], "disk", "an fsync on broker 1 takes 20 ms"),
        ([], [broker(cold_reads=10, cold_read_s=0.5)], "broker", "read old records from the disk, 50 ms"),
        ([], [broker(produces=9000, produce_s=9.0, received_records=9000)], "client", "1.0 records per request"),
        (
            [],
            [broker(partitions={("orders", 0): 10, ("orders", 1): 9000})],
            "broker",
            "partition 1 of orders gets 100%",
        ),
        (
            [],
            [broker(throttled=[QuotaUse(quota="producer_byte_rate", who="alice", throttles=10, throttled_s=5.0)])],
            "throttling",
            "alice is throttled by the quota producer_byte_rate for 500 ms",
        ),
    ],
)
def test_each_cause_is_found(clients: list[ClientReport], brokers: list[BrokerReport], cause: str, text: str) -> None:
    found = diagnose(clients, brokers, {"orders": 4})
    assert found.cause == cause
    assert text in found.sentence and found.findings[0].evidence


def test_the_largest_delay_is_named_first() -> None:
    found = diagnose([client(producer_produce_throttle_time_avg=40)], [broker(syncs=10, sync_s=1.0)])
    assert [each.cause for each in found.findings] == ["disk", "throttling"]


def test_waiting_because_of_a_quota_is_not_the_clients_fault() -> None:
    found = diagnose([client(producer_record_queue_time_avg=500, producer_produce_throttle_time_avg=40)], [])
    assert [each.cause for each in found.findings] == ["throttling"]

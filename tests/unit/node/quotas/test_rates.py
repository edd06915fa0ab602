"""Rates over samples and token buckets, with numbers computed by hand from Kafka's formula."""

from millstream.node.quotas.core.rates import SampledRate, TokenBucket


def test_a_rate_is_measured_over_ten_whole_samples_at_least() -> None:
    rate = SampledRate(11, 1.0)
    rate.record(1000, 100.0)
    assert rate.measure(100.0) == (100.0, 10.0)
    assert rate.throttle_ms(100, 100.0) == 0
    assert rate.throttle_ms(50, 100.0) == 10_000  # (100 - 50) / 50 * 10 s


def test_after_the_throttle_time_the_rate_is_within_the_limit() -> None:
    rate = SampledRate(11, 1.0)
    for number in range(10):
        rate.record(300, 100.0 + number)
    assert rate.measure(110.0) == (300.0, 10.0)
    throttle_ms = rate.throttle_ms(200, 110.0)
    assert throttle_ms == 5000  # (300 - 200) / 200 * 10 s
    assert rate.throttle_ms(200, 110.0 + throttle_ms / 1000) == 0


def test_samples_leave_the_rate_after_the_window() -> None:
    rate = SampledRate(11, 1.0)
    rate.record(1000, 100.0)
    assert not rate.is_idle(110.9)
    assert rate.is_idle(111.0)
    assert rate.measure(111.0)[0] == 0.0


def test_what_is_taken_back_does_not_count() -> None:
    rate = SampledRate(11, 1.0)
    rate.record(1000, 100.0)
    rate.record(-1000, 100.0)
    assert rate.measure(100.0)[0] == 0.0


def test_a_rate_keeps_a_bounded_number_of_samples() -> None:
    rate = SampledRate(2, 1.0)
    for second in range(100):
        rate.record(10, float(second))
    measured, seconds = rate.measure(99.0)
    assert seconds <= 3.0 and measured <= 20


def test_a_bucket_allows_a_burst_and_then_a_steady_rate() -> None:
    bucket = TokenBucket(2.0, 11.0, now=0.0)
    bucket.take(22, 0.0)
    assert bucket.throttle_ms(0.0) == 0
    bucket.take(4, 0.0)
    assert bucket.throttle_ms(0.0) == 2000
    assert bucket.throttle_ms(2.0) == 0
    assert not bucket.is_full(10.0)
    assert bucket.is_full(13.0)

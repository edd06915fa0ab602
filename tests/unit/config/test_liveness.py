"""How often heartbeats are sent and how long the controller waits, by which settings were written."""

import pytest

from millstream.config.broker_config import contact_limit_s, heartbeat_interval_s, suspect_after_s
from millstream.config.loading import load_broker_config


@pytest.mark.parametrize(
    ("settings", "interval_s", "suspect_s"),
    [
        ((), 0.5, 2.0),
        (("millstream.broker.suspect.after.ms=1000",), 0.25, 1.0),
        (("broker.heartbeat.interval.ms=2000",), 2.0, 2.0),
        (("broker.session.timeout.ms=9000",), 2.0, None),
        (("broker.session.timeout.ms=9000", "millstream.broker.suspect.after.ms=2000"), 0.5, 2.0),
        (("millstream.broker.suspect.after.ms=0",), 2.0, None),
        (("millstream.broker.suspect.after.ms=9000",), 2.0, None),
    ],
)
def test_the_heartbeat_interval_follows_the_settings(
    settings: tuple[str, ...], interval_s: float, suspect_s: float | None
) -> None:
    config = load_broker_config(overrides=settings)
    assert heartbeat_interval_s(config) == interval_s
    assert suspect_after_s(config) == suspect_s


@pytest.mark.parametrize(
    ("settings", "limit_s"),
    [
        ((), 1.5),
        (("millstream.broker.suspect.after.ms=4000",), 3.0),
        (("broker.session.timeout.ms=6000",), 4.5),
        (("millstream.broker.suspect.after.ms=0",), 6.75),
    ],
)
def test_a_broker_doubts_before_the_controller_acts(settings: tuple[str, ...], limit_s: float) -> None:
    assert contact_limit_s(load_broker_config(overrides=settings)) == limit_s

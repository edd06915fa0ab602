"""Limits on the size and the record count of a batch that this broker decompresses, by its settings."""

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import log
from millstream.formats.records.opening import OpeningLimits


def opening_limits(config: BrokerConfig) -> OpeningLimits:
    """For batches that clients wrote."""
    return OpeningLimits(config[log.BATCH_MAX_DECOMPRESSED_BYTES], config[log.BATCH_MAX_RECORDS])


def replay_limits(config: BrokerConfig) -> OpeningLimits:
    """For the logs of coordinators: never less than the defaults. Batches that the broker wrote must stay readable,
    however low the settings for clients are."""
    return OpeningLimits(
        max(config[log.BATCH_MAX_DECOMPRESSED_BYTES], log.BATCH_MAX_DECOMPRESSED_BYTES.default),
        max(config[log.BATCH_MAX_RECORDS], log.BATCH_MAX_RECORDS.default),
    )

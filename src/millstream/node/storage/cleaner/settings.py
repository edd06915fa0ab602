"""The cleaner's settings as they are now; all but `enable` may change while it works."""

from dataclasses import dataclass

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import log
from millstream.formats.records.opening import WIDEST, OpeningLimits
from millstream.node.storage.opening_limits import opening_limits

SMALLEST_BLOCK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    enable: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 << 10
    io_max_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000
    opening: OpeningLimits = WIDEST
    """A batch that is more than that is not opened, but kept as it is."""

    @property
    def map_bytes(self) -> int:
        """How large the key map of one thread may become."""
        return int(self.dedupe_buffer_bytes / self.threads * self.load_factor)

    @property
    def block_bytes(self) -> int:
        """How much one thread reads at once: half of its buffer, since as much may be on its way to the disk."""
        return max(self.io_buffer_bytes // self.threads // 2, SMALLEST_BLOCK_BYTES)


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config[log.LOG_CLEANER_ENABLE],
        threads=config[log.LOG_CLEANER_THREADS],
        dedupe_buffer_bytes=config[log.LOG_CLEANER_DEDUPE_BUFFER_SIZE],
        load_factor=config[log.LOG_CLEANER_IO_BUFFER_LOAD_FACTOR],
        io_buffer_bytes=config[log.LOG_CLEANER_IO_BUFFER_SIZE],
        io_max_bytes_per_second=config[log.LOG_CLEANER_IO_MAX_BYTES_PER_SECOND],
        backoff_ms=config[log.LOG_CLEANER_BACKOFF_MS],
        opening=opening_limits(config),
    )

"""How fast records become Arrow columns and back: `python -m benchmarks.micro.columnar [--tiny] [--rows N]`.

Rows per second of processor time in one thread, compiled and in plain Python; log batches of 16 KB, as Java's producer
makes them by default, in memory, checksums included. "value" is a decoder that was asked for that column alone.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType

import pyarrow as pa

from millstream.columnar import DEFAULT_COLUMNS, ArrowDecoder, ArrowEncoder, _pure
from millstream.columnar.compiled import compiled_or_none
from millstream.formats.records.compression import Codec

BATCH_BYTES = 16_384
ROUNDS = 7


def rows_of(count: int, value_bytes: int) -> pa.RecordBatch:
    # Half noise, half the same for all: about as compressible as JSON.
    noise = os.urandom(64 << 10)
    half = value_bytes // 2
    filler = b"x" * (value_bytes - half)
    values = [noise[n * 7 % 60_000 :][:half].ljust(half, b"y") + filler for n in range(count)]
    keys = [b"key-%06d" % (n % 5000) for n in range(count)]
    times = pa.array([1_700_000_000_000 + n for n in range(count)], pa.int64())
    return pa.record_batch({"key": pa.array(keys), "value": pa.array(values), "timestamp": times})


def log_of(rows: pa.RecordBatch, codec: Codec) -> bytes:
    log = bytearray()
    offset = 0
    for batch in ArrowEncoder(codec, max_batch_bytes=BATCH_BYTES).encode(rows):
        batch.data[:8] = offset.to_bytes(8, "big")
        offset += batch.record_count
        log += batch.data
    return bytes(log)


def best_rate(rows: int, work: Callable[[], None]) -> float:
    """The best of some rounds, by processor time: others use the machine too."""
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return rows / min(times)


def decode_rate(implementation: ModuleType, log: bytes, columns: Sequence[str], rows: int) -> float:
    decoder = ArrowDecoder(columns, implementation=implementation)

    def work() -> None:
        batches, following = decoder.decode(log, topic="orders", partition=0, start=0, stop=rows)
        assert following == rows and sum(batch.num_rows for batch in batches) == rows

    return best_rate(rows, work)


def encode_rate(implementation: ModuleType, rows: pa.RecordBatch, codec: Codec) -> float:
    encoder = ArrowEncoder(codec, implementation=implementation)
    return best_rate(rows.num_rows, lambda: [encoder.stamp(b, 1, 0, 0, True) for b in encoder.encode(rows)].clear())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few rows only, to see that it works")
    parser.add_argument("--rows", type=int, default=50_000)
    options = parser.parse_args(arguments)
    count = 500 if options.tiny else options.rows
    implementations = {"pure": _pure}
    if (compiled := compiled_or_none()) is not None:
        implementations = {"compiled": compiled, "pure": _pure}
    print(f"{'M rows/s':<24}" + "".join(f"{name:>12}" for name in implementations))
    for value_bytes in (100, 1000):
        size = count if value_bytes == 100 else max(1, count // 5)
        rows = rows_of(size, value_bytes)
        for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD):
            log = log_of(rows, codec)
            for title, columns in (("seven columns", DEFAULT_COLUMNS), ("value", ("value",))):
                rates = [decode_rate(module, log, columns, size) for module in implementations.values()]
                report(f"{value_bytes} B {codec.name.lower()} {title}", rates)
            report(
                f"{value_bytes} B {codec.name.lower()} encode",
                [encode_rate(module, rows, codec) for module in implementations.values()],
            )


def report(title: str, rates: Sequence[float]) -> None:
    print(f"{title:<24}" + "".join(f"{rate / 1e6:12.2f}" for rate in rates))


if __name__ == "__main__":
    main()

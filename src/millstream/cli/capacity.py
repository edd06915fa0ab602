"""`millstream capacity`: from a load to brokers, cores, disks, network and object storage, with costs.

The arithmetic is pure: `plan` takes a load, a machine, figures and prices, and returns a plan. Cores are computed from
throughput that was measured (`millstream bench --save`), or from the published figures of one node on one core.
Sizes and rates are decimal (1 TB = 10^12 bytes), as disks and clouds count.
"""

import json as json_format
import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json, parsed_duration
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table
from millstream.common.lazy_dataclass import dataclass

_MONTH_SECONDS = 30 * 86_400
_RANGE_BYTES = 4 << 20
"""What one read of the tier gets (`node/tier/reading.py`)."""
_PART_BYTES = 8 << 20
"""Segments go up in parts of this size (`node/runtime/object_store.py`)."""
_OPEN_SEGMENTS = 2
"""Segments of each replica that are on the disk beside the local retention: the open one, and one being copied."""


@dataclass(frozen=True, slots=True)
class Load:
    messages_per_second: float
    size: float
    """Bytes of a message, before compression."""
    compression: float
    """Stored bytes for each byte of a message."""
    peak: float
    """The highest rate, as a multiple of the average."""
    retention_s: float
    local_retention_s: float | None
    """None: without tiered storage."""
    replicas: int
    groups: float
    """How many consumer groups read everything."""
    history_reads: float
    """How many times each record is read again from the tier."""
    partitions: int
    segment_bytes: float


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    disk_bytes: float
    network_bits: float
    """Per second, in each direction."""
    use: float
    """How much of cores, disk and network may be used at the peak."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Throughput of one node on one core, at certain sizes of records: (bytes of a record, bytes per second)."""

    source: str
    produce: tuple[tuple[float, float], ...]
    consume: tuple[tuple[float, float], ...]


PUBLISHED = Figures(
    "docs/benchmarks/results.md: librdkafka, acks=all, one node",
    produce=((100.0, 176.3e6), (1024.0, 658.4e6)),
    consume=((1024.0, 766.4e6),),
)


@dataclass(frozen=True, slots=True)
class Prices:
    """In dollars."""

    broker_month: float
    disk_gb_month: float
    store_gb_month: float
    put_1000: float
    get_1000: float
    zone_gb: float
    """For each GB that a replica copies from another zone."""


@dataclass(frozen=True, slots=True)
class Plan:
    tiered: bool
    ingress: float
    """Bytes per second that producers write, on average, as stored."""
    disk_writes: float
    network_in: float
    network_out: float
    """Of all brokers together, at the peak."""
    stored_per_day: float
    local_bytes: float
    tier_bytes: float
    cores: float
    brokers_by: dict[str, int]
    """How many brokers each resource needs."""
    brokers: int
    reason: str
    puts_month: float
    gets_month: float
    costs_month: dict[str, float]

    @property
    def cost_month(self) -> float:
        return sum(self.costs_month.values())


def seconds_per_record(points: tuple[tuple[float, float], ...], size: float) -> float:
    """The time of a core for a record of a size: a cost of each record and a cost of each byte, from two measured
    points. With one point, the record or its bytes cost what they did there, whichever is more."""
    if len(points) == 1:
        ((measured, rate),) = points
        return max(measured, size) / rate
    (small, small_rate), (large, large_rate) = sorted(points)[:: len(points) - 1]
    of_small, of_large = small / small_rate, large / large_rate
    of_byte = max((of_large - of_small) / (large - small), 0.0)
    return max(of_small - of_byte * small, 0.0) + of_byte * size


def _whole(brokers: float) -> int:
    """Rounds up; 54.000000000000007, which is 54 and an error of floating point, is 54."""
    return math.ceil(round(brokers, 9))


def plan(load: Load, machine: Machine, figures: Figures, prices: Prices) -> Plan:
    ingress = load.messages_per_second * load.size * load.compression
    followers = load.replicas - 1
    is_tiered = load.local_retention_s is not None
    local_s = load.retention_s if load.local_retention_s is None else min(load.local_retention_s, load.retention_s)
    upload = ingress if is_tiered else 0.0
    history = ingress * load.history_reads if is_tiered else 0.0
    network_in = (ingress * (1 + followers) + history) * load.peak
    network_out = (ingress * (followers + load.groups) + history + upload) * load.peak
    open_bytes = load.partitions * load.replicas * _OPEN_SEGMENTS * load.segment_bytes
    local_bytes = ingress * local_s * load.replicas + (
        min(open_bytes, ingress * 86_400 * load.replicas) if is_tiered else 0.0
    )
    tier_bytes = ingress * load.retention_s if is_tiered else 0.0
    produce = seconds_per_record(figures.produce, load.size * load.compression)
    consume = seconds_per_record(figures.consume, load.size * load.compression)
    rate = load.messages_per_second * load.peak
    # A follower appends what a leader has sent to it: as much work as a produce, and a fetch on the leader's side.
    # A copy to the tier reads and checks a segment, and history comes through the cache: each counts as a fetch.
    fetches = followers + load.groups + (1 if is_tiered else 0) + (load.history_reads if is_tiered else 0)
    cores = rate * (produce * load.replicas + consume * fetches)
    bits = machine.network_bits * machine.use / 8
    by = {
        "replicas": max(load.replicas, 3),
        "cores": _whole(cores / (machine.cores * machine.use)),
        "disks": _whole(local_bytes / (machine.disk_bytes * machine.use)),
        "network": _whole(max(network_in, network_out) / bits),
    }
    reason = max(by, key=lambda name: by[name])
    brokers = by[reason] + 1
    segments = upload * _MONTH_SECONDS / load.segment_bytes
    puts = (
        segments * (math.ceil(load.segment_bytes / _PART_BYTES) + 3) if is_tiered else 0.0
    )  # parts, begin, end, manifest
    gets = history * _MONTH_SECONDS / _RANGE_BYTES
    costs = {
        "brokers": brokers * prices.broker_month,
        "disks": local_bytes / machine.use / 1e9 * prices.disk_gb_month,
        "object storage": tier_bytes / 1e9 * prices.store_gb_month,
        "requests to the store": puts / 1000 * prices.put_1000 + gets / 1000 * prices.get_1000,
        "network between zones": ingress * followers * _MONTH_SECONDS / 1e9 * prices.zone_gb,
    }
    return Plan(
        tiered=is_tiered,
        ingress=ingress,
        disk_writes=ingress * load.replicas,
        network_in=network_in,
        network_out=network_out,
        stored_per_day=ingress * 86_400,
        local_bytes=local_bytes,
        tier_bytes=tier_bytes,
        cores=cores,
        brokers_by=by,
        brokers=brokers,
        reason=reason,
        puts_month=puts,
        gets_month=gets,
        costs_month=costs,
    )


def read_figures(path: str) -> Figures:
    """The figures of a file that `millstream bench --save` has written; ValueError if it is none."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json_format.load(file)
        loads = {load["load"]: float(load["megabytes_per_second"]) * 1e6 for load in document["loads"]}
        size = float(document["size"])
        produce, consume = loads["produce"], loads["consume"]
        if size <= 0 or produce <= 0 or consume <= 0:
            raise ValueError("a figure is not above 0")
        return Figures(path, ((size, produce),), ((size, consume),))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"it is not a file of `millstream bench --save FILE` with produce and consume ({error!r})"
        ) from None


def capacity(
    messages: Annotated[float, typer.Option("--messages", metavar="N", help="Messages per second, on average.")],
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Size of a message: 1000, 4k.")] = "1000",
    retention: Annotated[str, typer.Option("--retention", metavar="TIME", help="Time that records are kept.")] = "7d",
    local_retention: Annotated[
        str | None,
        typer.Option(
            "--local-retention",
            metavar="TIME",
            help="Time on the brokers' disks; the rest is in the tier. [default: no tier]",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", min=1, help="Replicas.")] = 3,
    groups: Annotated[
        float, typer.Option("--groups", metavar="N", min=0, help="Consumer groups that read everything.")
    ] = 1,
    history: Annotated[
        float,
        typer.Option("--history", metavar="X", min=0, help="How many times each record is read again from the tier."),
    ] = 0,
    compression: Annotated[
        float, typer.Option("--compression", metavar="X", help="Stored size for each byte, such as 0.4 with zstd.")
    ] = 1,
    peak: Annotated[float, typer.Option("--peak", metavar="X", min=1, help="The peak, as a multiple.")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", min=1, help="Partitions.")] = 1000,
    segment: Annotated[str, typer.Option("--segment", metavar="SIZE", help="segment.bytes.")] = "1g",
    cores: Annotated[int, typer.Option("--cores", metavar="N", min=1, help="Cores of a broker.")] = 16,
    disk: Annotated[float, typer.Option("--disk-tb", metavar="TB", help="Disks of a broker together.")] = 48,
    network: Annotated[float, typer.Option("--network-gbit", metavar="N", help="Network of a broker, Gbit/s.")] = 25,
    use: Annotated[
        float, typer.Option("--use", metavar="X", help="The share of cores, disks and network to plan with.")
    ] = 0.7,
    bench: Annotated[
        str | None,
        typer.Option(
            "--bench", metavar="FILE", help="Figures of `millstream bench --save FILE`. [default: the published ones]"
        ),
    ] = None,
    broker_price: Annotated[float, typer.Option("--broker-price", metavar="$", help="A broker, per month.")] = 600,
    disk_price: Annotated[float, typer.Option("--disk-price", metavar="$", help="A GB of disk, per month.")] = 0.08,
    store_price: Annotated[
        float, typer.Option("--store-price", metavar="$", help="A GB in the store, per month.")
    ] = 0.023,
    put_price: Annotated[float, typer.Option("--put-price", metavar="$", help="1,000 writes to the store.")] = 0.005,
    get_price: Annotated[float, typer.Option("--get-price", metavar="$", help="1,000 reads of the store.")] = 0.0004,
    zone_price: Annotated[float, typer.Option("--zone-price", metavar="$", help="A GB between zones.")] = 0.02,
    json: Json = False,
) -> None:
    """Compute brokers, cores, disks, network, object storage and costs for a load. Needs no broker.

    Prices are examples of list prices: give your own. One broker more than needed is planned, so that one can fail.

    \b
    Examples:
      millstream capacity --messages 1000000 --size 1000 --groups 5 --retention 7d
      millstream capacity --messages 1000000 --groups 5 --retention 365d --local-retention 6h
      millstream bench --save bench.json; millstream capacity --messages 50000 --bench bench.json --json
    """
    for option, value in {
        "--messages": messages, "--compression": compression, "--disk-tb": disk, "--network-gbit": network,
        "--use": use,
    }.items():  # fmt: skip
        if not (math.isfinite(value) and value > 0):
            raise CommandFailedError(f"{option} {value:g}: must be above 0", exit_codes.USAGE)
    if use > 1:
        raise CommandFailedError(f"--use {use:g}: at most 1, which leaves nothing free", exit_codes.USAGE)
    for option, value in {
        "--broker-price": broker_price, "--disk-price": disk_price, "--store-price": store_price,
        "--put-price": put_price, "--get-price": get_price, "--zone-price": zone_price,
    }.items():  # fmt: skip
        if not (math.isfinite(value) and value >= 0):
            raise CommandFailedError(f"{option} {value:g}: must be 0 or more", exit_codes.USAGE)
    load = Load(
        messages_per_second=messages,
        size=_size("--size", size),
        compression=compression,
        peak=peak,
        retention_s=parsed_duration("--retention", retention) / 1000,
        local_retention_s=None
        if local_retention is None
        else parsed_duration("--local-retention", local_retention) / 1000,
        replicas=replicas,
        groups=groups,
        history_reads=history,
        partitions=partitions,
        segment_bytes=_size("--segment", segment),
    )
    if history and local_retention is None:
        raise CommandFailedError("--history is of the tier: give --local-retention too", exit_codes.USAGE)
    machine = Machine(cores, disk * 1e12, network * 1e9, use)
    try:
        figures = PUBLISHED if bench is None else read_figures(bench)
    except ValueError as error:
        raise CommandFailedError(f"--bench {bench}: {error}", exit_codes.USAGE) from None
    prices = Prices(broker_price, disk_price, store_price, put_price, get_price, zone_price)
    plans = [plan(load, machine, figures, prices)]
    if plans[0].tiered:
        from dataclasses import replace

        plans.append(plan(replace(load, local_retention_s=None, history_reads=0), machine, figures, prices))
    if json:
        names = ("plan", "without_tier")
        documents = {
            name: {**asdict(each), "cost_month": each.cost_month} for name, each in zip(names, plans, strict=False)
        }
        print_json({"load": asdict(load), "machine": asdict(machine), "figures": asdict(figures), **documents})
        return
    _show(plans, load, machine)
    note(f"Throughput of one core: {figures.source}. A node uses one core: `millstream serve --cores`.")


def _size(option: str, text: str) -> float:
    from millstream.common.quantities import parse_size

    try:
        found = parse_size(text)
    except ValueError as error:
        raise CommandFailedError(f"{option} {error}", exit_codes.USAGE) from None
    if found <= 0:
        raise CommandFailedError(f"{option} {text}: must be above 0", exit_codes.USAGE)
    return float(found)


def _show(plans: list[Plan], load: Load, machine: Machine) -> None:
    titles = ["with the tier", "without"] if plans[0].tiered else ["value"]

    def row(name: str, text: "list[str]") -> tuple[str, ...]:
        return (name, *text)

    rows = [
        row("written by producers", [f"{each.ingress / 1e6:,.1f} MB/s" for each in plans]),
        row("written to disks", [f"{each.disk_writes / 1e6:,.1f} MB/s" for each in plans]),
        row("network in, at the peak", [f"{each.network_in / 1e9:,.2f} GB/s" for each in plans]),
        row("network out, at the peak", [f"{each.network_out / 1e9:,.2f} GB/s" for each in plans]),
        row("new records in a day", [f"{each.stored_per_day / 1e12:,.2f} TB" for each in plans]),
        row(f"on disks, {load.replicas} replicas", [f"{each.local_bytes / 1e12:,.1f} TB" for each in plans]),
        row("in object storage", [f"{each.tier_bytes / 1e12:,.1f} TB" for each in plans]),
        row("busy cores, at the peak", [f"{each.cores:,.1f}" for each in plans]),
        *(row(f"brokers for {name}", [f"{each.brokers_by[name]:,}" for each in plans]) for name in plans[0].brokers_by),
        row("brokers, one may fail", [f"{each.brokers:,} (by {each.reason})" for each in plans]),
        *(
            row(f"{name}, per month", [f"${each.costs_month[name]:,.0f}" for each in plans])
            for name in plans[0].costs_month
        ),
        row("together, per month", [f"${each.cost_month:,.0f}" for each in plans]),
    ]
    print_table(("", *titles), rows)
    note(
        f"A broker: {machine.cores} cores, {machine.disk_bytes / 1e12:g} TB, {machine.network_bits / 1e9:g} Gbit/s, "
        f"of which {machine.use:.0%} is used."
    )

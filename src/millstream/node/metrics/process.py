"""The process and what it runs on: build, memory, files, disk, and what holds up the event loop."""

import platform

from millstream.node.metrics.exposition import Page, counter, gauge, histogram
from millstream.node.metrics.observed_node import ObservedNode, Subject, Turns, why_not_ready
from millstream.version import VERSION

BUILD = gauge("millstream_build_info", "1; what runs here.", "version", "python")
NODE = gauge(
    "millstream_node_info",
    "1; who this node is. cluster_id is empty until it is known.",
    "node_id",
    "roles",
    "cluster_id",
)
READY = gauge("millstream_node_ready", "1 where /readyz says yes.")
CPU = counter("process_cpu_seconds_total", "Processor time of the process, in user and system mode.")
START = gauge("process_start_time_seconds", "When the process started, since the epoch.")
RESIDENT = gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.")
VIRTUAL = gauge("process_virtual_memory_bytes", "Address space of the process.")
FILES = gauge("process_open_fds", "Open file descriptors: sockets and segments.")
MAX_FILES = gauge("process_max_fds", "How many there may be.")
DISK_TOTAL = gauge("millstream_disk_total_bytes", "Size of the file system that the data directory is on.", "directory")
DISK_FREE = gauge("millstream_disk_free_bytes", "What is free there for this process.", "directory")
DIRECTORY_OFFLINE = gauge(
    "millstream_log_directory_offline",
    "1 while the disk of the log directory fails (Kafka: OfflineLogDirectoryCount); a full disk does not count.",
    "directory",
)
LOOP_LAG = histogram(
    "millstream_event_loop_lag_seconds",
    "How late a timer of the event loop is, looked at four times a second: what every request may have to wait.",
)
COLLECTIONS = histogram(
    "millstream_gc_pause_seconds", "How long the garbage collector stopped everything.", "generation"
)
SYNCS = histogram(
    "millstream_disk_sync_duration_seconds",
    "How long each fsync took: flushes of segments and indexes, checkpoints, the metadata log. They run in threads.",
)


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    config = node.config
    page.add(BUILD, 1, VERSION, platform.python_version())
    cluster_id = node.loader.image.cluster_id if node.loader is not None else ""
    roles = [name for name, has in (("broker", config.is_broker), ("controller", config.is_controller)) if has]
    page.add(NODE, 1, str(config.node_id), ",".join(roles), cluster_id)
    page.add(READY, why_not_ready(node) is None)
    if node.directory is not None:
        page.add(DIRECTORY_OFFLINE, node.directory.failure is not None, node.directory.root)
    if node.probe is None:
        return
    reading = await node.probe.read()
    page.add(CPU, round(reading.cpu_seconds, 2))
    page.add(START, reading.start_time_seconds)
    for family, value in (
        (RESIDENT, reading.resident_bytes),
        (VIRTUAL, reading.virtual_bytes),
        (FILES, reading.open_files),
        (MAX_FILES, reading.max_files),
    ):
        if value is not None:
            page.add(family, value)
    page.add(DISK_TOTAL, reading.disk_total_bytes, config.data_dir)
    page.add(DISK_FREE, reading.disk_free_bytes, config.data_dir)
    page.add_histogram(LOOP_LAG, reading.loop_lag)
    for generation, pauses in enumerate(reading.collections):
        page.add_histogram(COLLECTIONS, pauses, str(generation))
    page.add_histogram(SYNCS, reading.syncs)


PROCESS = Subject(
    "process",
    (
        BUILD,
        NODE,
        READY,
        CPU,
        START,
        RESIDENT,
        VIRTUAL,
        FILES,
        MAX_FILES,
        DISK_TOTAL,
        DISK_FREE,
        DIRECTORY_OFFLINE,
        LOOP_LAG,
        COLLECTIONS,
        SYNCS,
    ),
    collect,
)

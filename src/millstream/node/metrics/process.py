"""Metrics of the process: build, memory, files, disk, pauses of the event loop."""

import platform

from millstream.common.prometheus import Page, counter, gauge, histogram
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices, why_not_ready
from millstream.version import VERSION

BUILD = gauge("millstream_build_info", "1; the versions of Millstream and Python.", "version", "python")
NODE = gauge(
    "millstream_node_info",
    "1; the identity of this node. cluster_id is empty until it is known.",
    "node_id",
    "roles",
    "cluster_id",
)
READY = gauge("millstream_node_ready", "1 if /readyz reports that the node is ready.")
CPU = counter("process_cpu_seconds_total", "Processor time of the process, in user and system mode.")
START = gauge("process_start_time_seconds", "When the process started, since the epoch.")
RESIDENT = gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.")
VIRTUAL = gauge("process_virtual_memory_bytes", "Address space of the process.")
FILES = gauge("process_open_fds", "Open file descriptors: sockets and segments.")
MAX_FILES = gauge("process_max_fds", "The limit of open file descriptors.")
DISK_TOTAL = gauge("millstream_disk_total_bytes", "The size of the file system of a log directory.", "directory")
DISK_FREE = gauge("millstream_disk_free_bytes", "The free space of this file system for the process.", "directory")
DIRECTORY_OFFLINE = gauge(
    "millstream_log_directory_offline",
    "1 while the log directory is offline (Kafka: OfflineLogDirectoryCount). A full disk does not count.",
    "directory",
)
DIRECTORY_LOGS = gauge("millstream_log_directory_logs", "The number of logs in the log directory.", "directory")
MOVES = gauge("millstream_log_moves", "Logs that are being moved between the log directories of this broker.")
MOVES_FINISHED = counter(
    "millstream_log_moves_finished_total", "Moves of logs between log directories that have ended."
)
MOVES_FAILED = counter("millstream_log_moves_failed_total", "Moves of logs between log directories that have failed.")
LOOP_LAG = histogram(
    "millstream_event_loop_lag_seconds",
    "The delay of a timer of the event loop, measured four times a second: every request may wait this long.",
)
COLLECTIONS = histogram(
    "millstream_gc_pause_seconds", "The durations of garbage collections, which stop the process.", "generation"
)
SYNCS = histogram(
    "millstream_disk_sync_duration_seconds",
    "The durations of fsync calls: segments, indexes, checkpoints, the metadata log. They run in threads.",
)


async def collect(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    config = node.config
    page.add(BUILD, 1, VERSION, platform.python_version())
    cluster_id = node.loader.image.cluster_id if node.loader is not None else ""
    roles = [name for name, has in (("broker", config.is_broker), ("controller", config.is_controller)) if has]
    page.add(NODE, 1, str(config.node_id), ",".join(roles), cluster_id)
    page.add(READY, why_not_ready(node) is None)
    if node.directories is not None:
        for directory in node.directories.all:
            is_offline = directory.health.failure is not None or not node.directories.is_online(directory)
            page.add(DIRECTORY_OFFLINE, is_offline, directory.root)
            page.add(DIRECTORY_LOGS, len(directory.partitions), directory.root)
    elif node.directory is not None:
        page.add(DIRECTORY_OFFLINE, node.directory.failure is not None, node.directory.root)
    if node.broker is not None:
        page.add(MOVES, len(node.broker.moves))
        page.add(MOVES_FINISHED, node.broker.moves.finished)
        page.add(MOVES_FAILED, node.broker.moves.failed)
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
    for directory in node.directories.data if node.directories is not None else ():
        if directory.health is not node.directory and directory.space is not None:
            page.add(DISK_TOTAL, directory.space.total_bytes, directory.root)
            page.add(DISK_FREE, directory.space.usable_bytes, directory.root)
    page.add_histogram(LOOP_LAG, reading.loop_lag)
    for generation, pauses in enumerate(reading.collections):
        page.add_histogram(COLLECTIONS, pauses, str(generation))
    page.add_histogram(SYNCS, reading.syncs)


PROCESS = MetricsSubject(
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
        DIRECTORY_LOGS,
        MOVES,
        MOVES_FINISHED,
        MOVES_FAILED,
        LOOP_LAG,
        COLLECTIONS,
        SYNCS,
    ),
    collect,
)

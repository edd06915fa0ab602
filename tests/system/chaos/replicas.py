"""The last look: after a clean stop, every replica of a partition must hold the same batches, byte for byte."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from millstream.formats.records.batch import iterate_headers
from tests.system.chaos.nodes import Node
from tests.system.chaos.workload import TOPIC


def differences(nodes: Iterable[Node], partitions: int) -> list[str]:
    """One line for each partition whose replicas disagree; a shorter one must be the beginning of the longer."""
    found = []
    listed = list(nodes)
    for partition in range(partitions):
        copies = {
            node.number: _batches(directory)
            for node in listed
            if (directory := node.data_dir / f"{TOPIC}-{partition}").exists()
        }
        (first, longest), *others = sorted(copies.items(), key=lambda item: -len(item[1]))
        for number, copy in others:
            for at, (one, two) in enumerate(zip(longest, copy, strict=False)):
                if one != two:
                    found.append(f"{TOPIC}-{partition}: batch {at} is {one} on node {first}, {two} on node {number}")
                    break
            else:
                if len(copy) != len(longest):
                    found.append(
                        f"{TOPIC}-{partition}: {len(longest)} batches on node {first}, {len(copy)} on node {number}"
                    )
    return found


def keep(nodes: Iterable[Node], directory: Path) -> None:
    """Copy the logs of the topic and of the metadata to where they can be looked at when the nodes' disks are gone."""
    for node in nodes:
        for found in (*node.data_dir.glob(f"{TOPIC}-*"), *node.data_dir.glob("__cluster_metadata-0")):
            shutil.copytree(found, directory / f"data-{node.number}" / found.name, dirs_exist_ok=True)


def _batches(directory: Path) -> list[tuple[int, int, int]]:
    """Base offset, leader epoch and checksum of each batch."""
    rows = []
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        rows += [(each.base_offset, each.leader_epoch, each.crc) for _, each in iterate_headers(data)]
    return rows

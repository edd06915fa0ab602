"""`handover.json`: what a node takes over from the other nodes of its machine, and what it has given to them.

`serve --cores` writes the file into the folder of a node when the number of nodes has changed, and removes it when all
nodes have started. The logs are moved already then; the node reports them when it registers (see `metadata/handover`),
and waits until its own former logs are assigned to others.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.config.setting import ConfigError
from millstream.formats.model.identifiers import BrokerId
from millstream.node.metadata.handover import AdoptedReplica, still_assigned
from millstream.node.metadata.handover import refused as refused_replicas
from millstream.node.metadata.image import MetadataImage
from millstream.node.storage.disk import Disk

_log = logging.getLogger("millstream.node")
FILE_NAME = "handover.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    adopted: tuple[AdoptedReplica, ...] = ()
    given: tuple[tuple[UUID, int], ...] = ()
    """Topic ids and partitions whose logs are now in the folders of other nodes."""
    retired: tuple[int, ...] = ()
    """The ids of nodes that do not exist any more."""


def read_handover(disk: Disk, root: str) -> Handover:
    """The contents of the file; an empty handover without one. Raises ConfigError if it cannot be read."""
    path = f"{root}/{FILE_NAME}"
    if not disk.exists(path):
        return Handover()
    try:
        document = json.loads(disk.read_bytes(path))
        return Handover(
            adopted=tuple(_adopted(row) for row in document["adopted"]),
            given=tuple((UUID(row["topic_id"]), int(row["partition"])) for row in document["given"]),
            retired=tuple(int(number) for number in document["retired"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged ({type(error).__name__}): start with `millstream serve --cores`, which writes it again",
            name="log.dirs",
        ) from None


async def hand_over(
    handover: Handover,
    image: Callable[[], MetadataImage],
    node_id: int,
    next_change: Callable[[], Awaitable[None]],
) -> None:
    """Waits until the nodes that have logs of this node now have registered: it must not begin empty ones.

    Raises ConfigError if logs that this node has were not assigned to it: it would set them aside as strays.
    """
    refused = refused_replicas(image(), node_id, handover.adopted)
    if refused:
        raise ConfigError(
            f"the controller did not assign {refused[0]} and {len(refused) - 1} other partition(s) to this node, whose "
            "logs it has: upgrade the controllers, keep millstream.machine.id as it was, and start it again"
        )
    if still_assigned(image(), node_id, handover.given):
        _log.info("handover_awaited partitions=%d", len(handover.given))
    while still_assigned(image(), node_id, handover.given):
        await next_change()


def encode_handover(handover: Handover) -> bytes:
    document = {
        "adopted": [
            {
                "topic_id": str(each.topic_id),
                "partition": each.partition,
                "from_broker": each.from_broker,
                "from_directory": str(each.from_directory),
                "from_epoch": each.from_epoch,
            }
            for each in handover.adopted
        ],
        "given": [{"topic_id": str(topic_id), "partition": number} for topic_id, number in handover.given],
        "retired": list(handover.retired),
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def _adopted(row: dict[str, Any]) -> AdoptedReplica:
    return AdoptedReplica(
        topic_id=UUID(row["topic_id"]),
        partition=int(row["partition"]),
        from_broker=BrokerId(int(row["from_broker"])),
        from_directory=UUID(row["from_directory"]),
        from_epoch=int(row["from_epoch"]),
    )

"""`meta.properties`: whose data directory this is. Made on the first start, so that there is no format step.

A node that joins others does not know the cluster's id at first: the file then names only the node and the directory,
and the id is added when the metadata log has told it.
"""

import base64
import random
import uuid
from dataclasses import dataclass, replace

from millstream.config.loading import parse_properties
from millstream.config.setting import ConfigError
from millstream.node.storage.disk import Disk

_FILE = "meta.properties"


@dataclass(frozen=True, slots=True)
class Identity:
    cluster_id: str | None
    node_id: int
    directory_id: uuid.UUID


def short_uuid(value: uuid.UUID) -> str:
    """Kafka's spelling: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def random_uuid(randomness: random.Random) -> uuid.UUID:
    """A UUID as Kafka makes them: one that does not begin with a dash, which would read as an option in a shell."""
    while short_uuid(made := uuid.UUID(int=randomness.getrandbits(128), version=4)).startswith("-"):
        pass
    return made


def claim_directory(disk: Disk, root: str, node_id: int, cluster_id: str | None, randomness: random.Random) -> Identity:
    """Reads who the directory belongs to, or makes it ours; ConfigError if it is another's.

    `cluster_id` is what the settings pin, if they do.
    """
    path = f"{root}/{_FILE}"
    if not disk.exists(path):
        identity = Identity(None, node_id, random_uuid(randomness))
        _write(disk, root, identity)
        return identity
    found = {p.name: p.value for p in parse_properties(disk.read_bytes(path).decode(errors="replace"), path)}
    directory_id = _parse_uuid(found.get("directory.id", ""))
    if found.get("version") != "1" or not found.get("node.id", "").isdigit():
        raise ConfigError(f"{path} is damaged: restore it, or start with an empty --data-dir", name="log.dirs")
    identity = Identity(found.get("cluster.id") or None, int(found["node.id"]), directory_id or random_uuid(randomness))
    if identity.node_id != node_id:
        raise ConfigError(
            f"{root} belongs to node {identity.node_id}, but node.id={node_id}: use that node.id or another --data-dir",
            name="node.id",
        )
    if cluster_id is not None and identity.cluster_id not in (None, cluster_id):
        raise ConfigError(
            f"{root} belongs to cluster {identity.cluster_id}, but cluster.id={cluster_id}: use another --data-dir",
            name="cluster.id",
        )
    if directory_id is None:
        _write(disk, root, identity)
    return identity


def keep_cluster_id(disk: Disk, root: str, identity: Identity, cluster_id: str) -> Identity:
    """The directory belongs to this cluster from now on."""
    kept = replace(identity, cluster_id=cluster_id)
    _write(disk, root, kept)
    return kept


def _write(disk: Disk, root: str, identity: Identity) -> None:
    cluster = f"cluster.id={identity.cluster_id}\n" if identity.cluster_id is not None else ""
    text = (
        "# Whose data this is. Written by Millstream on the first start; do not edit.\n"
        f"{cluster}directory.id={short_uuid(identity.directory_id)}\nnode.id={identity.node_id}\nversion=1\n"
    )
    disk.write_atomically(f"{root}/{_FILE}", text.encode())


def _parse_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError:
        return None

"""`meta.properties`: the identity of a data directory. It is written at the first start; there is no format step.

A node that joins a cluster does not know the cluster id at first. The file then has only the node id and the directory
id. The cluster id is added when the node has read it from the metadata log.
"""

import base64
import random
import uuid
from dataclasses import replace

from millstream.common.lazy_dataclass import dataclass
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
    """Kafka's text form: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def random_uuid(randomness: random.Random) -> uuid.UUID:
    """A random UUID, as in Kafka: its text does not begin with a dash, which a shell would take as an option."""
    while short_uuid(made := uuid.UUID(int=randomness.getrandbits(128), version=4)).startswith("-"):
        pass
    return made


def claim_directory(disk: Disk, root: str, node_id: int, cluster_id: str | None, randomness: random.Random) -> Identity:
    """Reads `meta.properties`, or writes it in a new directory. Raises ConfigError if the directory belongs to another
    node or cluster. `cluster_id` is the setting `cluster.id`.
    """
    path = f"{root}/{_FILE}"
    if not disk.exists(path):
        identity = Identity(None, node_id, random_uuid(randomness))
        write_identity(disk, root, identity)
        return identity
    found = {p.name: p.value for p in parse_properties(disk.read_bytes(path).decode(errors="replace"), path)}
    directory_id = _parse_uuid(found.get("directory.id", ""))
    if found.get("version") == "0":
        raise ConfigError(
            f"{path} is of a Kafka with ZooKeeper (version=0): migrate that cluster to KRaft first, with Kafka 3.9",
            name="log.dirs",
        )
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
        write_identity(disk, root, identity)
    return identity


def read_identity(disk: Disk, root: str) -> Identity | None:
    """The identity of a directory, without changing it; None if it has none, or no directory id."""
    path = f"{root}/{_FILE}"
    if not disk.exists(path):
        return None
    found = {p.name: p.value for p in parse_properties(disk.read_bytes(path).decode(errors="replace"), path)}
    directory_id = _parse_uuid(found.get("directory.id", ""))
    if directory_id is None or not found.get("node.id", "").isdigit():
        return None
    return Identity(found.get("cluster.id") or None, int(found["node.id"]), directory_id)


def keep_cluster_id(disk: Disk, root: str, identity: Identity, cluster_id: str) -> Identity:
    """Stores the cluster id in `meta.properties`."""
    kept = replace(identity, cluster_id=cluster_id)
    write_identity(disk, root, kept)
    return kept


def write_identity(disk: Disk, root: str, identity: Identity) -> None:
    cluster = f"cluster.id={identity.cluster_id}\n" if identity.cluster_id is not None else ""
    text = (
        "# The identity of this data directory. Written by Millstream at the first start; do not edit.\n"
        f"{cluster}directory.id={short_uuid(identity.directory_id)}\nnode.id={identity.node_id}\nversion=1\n"
    )
    disk.write_atomically(f"{root}/{_FILE}", text.encode())


def _parse_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError:
        return None

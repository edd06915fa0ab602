"""`meta.properties`: whose data directory this is. Made on the first start, so that there is no format step."""

import base64
import uuid
from dataclasses import dataclass

from millstream.config.errors import ConfigError
from millstream.config.properties import parse_properties
from millstream.storage.disk import Disk

_FILE = "meta.properties"


@dataclass(frozen=True, slots=True)
class Identity:
    cluster_id: str
    node_id: int
    directory_id: str


def short_uuid(value: uuid.UUID) -> str:
    """Kafka's spelling: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def claim_directory(disk: Disk, root: str, node_id: int, cluster_id: str | None) -> Identity:
    """Reads who the directory belongs to, or makes it ours; ConfigError if it is another's."""
    path = f"{root}/{_FILE}"
    if not disk.exists(path):
        identity = Identity(cluster_id or short_uuid(uuid.uuid4()), node_id, short_uuid(uuid.uuid4()))
        text = (
            "# Whose data this is. Written by Millstream on the first start; do not edit.\n"
            f"cluster.id={identity.cluster_id}\ndirectory.id={identity.directory_id}\n"
            f"node.id={node_id}\nversion=1\n"
        )
        disk.write_atomically(path, text.encode())
        return identity
    found = {p.name: p.value for p in parse_properties(disk.read_bytes(path).decode(errors="replace"), path)}
    if found.get("version") != "1" or not found.get("node.id", "").isdigit() or not found.get("cluster.id"):
        raise ConfigError(f"{path} is damaged: restore it, or start with an empty --data-dir", name="log.dirs")
    identity = Identity(found["cluster.id"], int(found["node.id"]), found.get("directory.id", ""))
    if identity.node_id != node_id:
        raise ConfigError(
            f"{root} belongs to node {identity.node_id}, but node.id={node_id}: use that node.id or another --data-dir",
            name="node.id",
        )
    if cluster_id is not None and cluster_id != identity.cluster_id:
        raise ConfigError(
            f"{root} belongs to cluster {identity.cluster_id}, but cluster.id={cluster_id}: use another --data-dir",
            name="cluster.id",
        )
    return identity

"""The sweeper: finds objects in the tier that no manifest names, and those of topics that are gone.

Such objects are left by a leader that was deposed or killed between a copy and the change of the manifest, and by
topics that were deleted while their leader was down. Only objects of a certain age count, so that a copy under way is
not taken for one.
"""

from collections.abc import Collection
from uuid import UUID

from millstream.node.storage.object_store import NoObjectError, ObjectStore
from millstream.node.tier.core.manifest import MANIFEST, DamagedManifestError, decode_manifest


class Sweeper:
    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id

    async def orphans(self, topics: Collection[UUID], before_ms: int) -> list[str]:
        """The objects of this cluster that belong to none of the topics, and were written before that time."""
        found = await self._store.list(self._cluster_id)
        partitions: dict[str, list[str]] = {}
        for each in found:
            prefix, _, _ = each.name.rpartition("/")
            names = partitions.setdefault(prefix, [])
            if each.modified_ms <= before_ms:
                names.append(each.name)
        known = {str(topic_id) for topic_id in topics}
        orphans: list[str] = []
        for prefix, names in sorted(partitions.items()):
            if not names or len(parts := prefix.split("/")) != 3:
                continue
            kept = await self._named(prefix) if parts[1] in known else set()
            if kept is not None:
                orphans += [name for name in names if name not in kept]
        return orphans

    async def _named(self, prefix: str) -> set[str] | None:
        """The objects that the manifest of a partition names, and itself; None if it cannot be read."""
        name = f"{prefix}/{MANIFEST}"
        try:
            data, _ = await self._store.read_whole(name)
            return {name, *(segment.name for segment in decode_manifest(data).segments)}
        except NoObjectError:
            return set()
        except DamagedManifestError:
            return None

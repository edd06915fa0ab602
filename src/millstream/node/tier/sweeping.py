"""The sweeper: finds objects in the tier that no manifest names, and those of topics that are gone.

Such objects are left by a leader that was deposed or killed between a copy and the change of the manifest, and by
topics that were deleted while their leader was down. Only objects of a certain age count, so that a copy under way is
not taken for one.

Uploads in parts that a crash has cut off are no objects: a store lists them apart, if it does.

A topic that is not known, but has a manifest, may be one of a lost cluster with the same id, to be restored. So brokers
leave it, unless they have seen that it was deleted, and only `millstream tier sweep` deletes it.
"""

from collections.abc import Collection
from uuid import UUID

from millstream.node.storage.object_store import NoObjectError, ObjectStore, Upload
from millstream.node.tier.core.manifest import MANIFEST, REFERENCES, DamagedManifestError, decode_manifest, owner_of
from millstream.node.tier.references import ReferenceSearch


class Sweeper:
    def __init__(self, store: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._cluster_id = cluster_id

    async def abandoned(self, before_ms: int) -> list[Upload]:
        """The uploads of this cluster that began before that time."""
        return [each for each in await self._store.uploads(f"{self._cluster_id}/") if each.began_ms <= before_ms]

    async def orphans(
        self,
        topics: Collection[UUID],
        before_ms: int,
        *,
        of_lost_topics: bool = False,
        deleted: Collection[UUID] = (),
        branches: Collection[str] = (),
    ) -> list[str]:
        """The objects of this cluster that belong to none of the topics, and were written before that time.

        `of_lost_topics`: also those of other topics that have a manifest; `deleted`: those of them that the cluster
        has deleted. `branches`: the partitions of branches, by prefix. One without a manifest is about to refer to
        objects of its parent, which may be deleted.
        """
        found = await self._store.list(self._cluster_id)
        partitions: dict[str, list[str]] = {}
        with_manifest: set[str] = set()
        for each in found:
            prefix, _, name = each.name.rpartition("/")
            names = partitions.setdefault(prefix, [])
            if each.modified_ms <= before_ms:
                names.append(each.name)
            if name == MANIFEST:
                with_manifest.add(prefix)
        known = {str(topic_id) for topic_id in topics}
        gone = {str(topic_id) for topic_id in deleted}
        kept: set[str] = set()
        swept: list[str] = []
        others: list[str] = []
        is_certain = all(prefix in with_manifest for prefix in branches)
        for prefix in partitions:
            parts = prefix.split("/")
            if len(parts) != 3 or parts[0] != self._cluster_id:
                continue
            if parts[1] not in known:
                if of_lost_topics or parts[1] in gone or prefix not in with_manifest:
                    others.append(prefix)
                elif (named := await self._named(prefix)) is not None:
                    kept |= named  # perhaps a new branch, which this broker does not know yet
            elif (named := await self._named(prefix)) is not None:
                kept |= named
                swept.append(prefix)
            else:
                is_certain = False
        if is_certain:  # else a manifest that cannot be read may name them: a restored topic has objects of others
            swept += others
        orphans = [name for prefix in sorted(swept) for name in partitions[prefix] if name not in kept]
        return await self._confirmed(orphans, {each.name for each in found})

    async def _confirmed(self, orphans: list[str], listed: set[str]) -> list[str]:
        """Those that no manifest names which was written after the list, or was not in it yet. A list of references
        goes with the last object of its partition."""
        manifests = {name for name in orphans if name.endswith(f"/{MANIFEST}")}
        lists = {name for name in orphans if name.endswith(f"/{REFERENCES}")}
        try:
            search = ReferenceSearch(self._store, manifests)
            free = set(await search.unreferenced([name for name in orphans if name not in manifests | lists]))
        except DamagedManifestError:
            return []
        left = {owner_of(name) for name in listed - free - manifests - lists}
        free |= manifests | {name for name in lists if owner_of(name) not in left}
        return [name for name in orphans if name in free]

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

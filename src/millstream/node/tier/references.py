"""References to objects of the tier: the manifests that name an object, in addition to that of the partition that has
copied it.

Branches and restored topics name objects of other topics. A leader must not delete an object that another topic names,
even if its metadata are old and do not have that topic. So the store itself has the list: `references.json`, beside the
objects of a partition, has the manifests of branches that may name them. Both sides go in an order:

    branch:  write a manifest with the objects -> add it to the list -> look at the parent again, and leave out what
             the parent deletes
    deleter: mark the object in its own manifest -> read the list and its manifests, until the list is the same as
             before -> delete the object if none of them names it

Whichever is first is seen by the other. A manifest of a lost cluster that was restored names the one that counts now.
"""

import json
from collections.abc import Collection
from dataclasses import replace

from millstream.node.storage.object_store import ConflictError, NoObjectError, ObjectStore, StoreError, Version
from millstream.node.tier.core.manifest import (
    MANIFEST,
    REFERENCES,
    DamagedManifestError,
    decode_manifest,
    encode_manifest,
    owner_of,
)

_MOST_CONFLICTS = 10


async def add(store: ObjectStore, owner: str, manifest: str) -> None:
    """Note that a manifest may name objects of a partition."""
    await _change(store, owner, adding=manifest)


async def take_over(store: ObjectStore, source: str, manifest: str) -> None:
    """Note in the manifest of a lost topic that another one counts in its place."""
    for _ in range(_MOST_CONFLICTS):
        data, version = await store.read_whole(source)
        found = decode_manifest(data)
        if found.taken_over_by == manifest:
            return
        try:
            await store.replace(source, encode_manifest(replace(found, taken_over_by=manifest)), version)
            return
        except ConflictError:
            continue
    raise StoreError(f"{source} is changed by others all the time")


async def _change(store: ObjectStore, owner: str, *, adding: str | None = None, without: Collection[str] = ()) -> None:
    name = f"{owner}/{REFERENCES}"
    for _ in range(_MOST_CONFLICTS):
        listed, version = await _list(store, owner)
        wanted = [each for each in listed if each not in without]
        if adding is not None and adding not in wanted:
            wanted.append(adding)
        if wanted == listed:
            return
        try:
            await store.replace(name, json.dumps({"version": 1, "manifests": wanted}).encode(), version)
            return
        except ConflictError:
            continue
    raise StoreError(f"{name} is changed by others all the time")


async def _list(store: ObjectStore, owner: str) -> tuple[list[str], Version | None]:
    name = f"{owner}/{REFERENCES}"
    try:
        data, version = await store.read_whole(name)
        return [str(each) for each in json.loads(data)["manifests"]], version
    except NoObjectError:
        return [], None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedManifestError(f"{name} cannot be read: {error}") from error


class ReferenceSearch:
    """Finds which of some objects no manifest names, except for manifests that do not count."""

    def __init__(self, store: ObjectStore, ignored: Collection[str]) -> None:
        self._store = store
        self._ignored = ignored
        self._read: dict[str, bool] = {}
        """The manifests that were read; whether they are there."""
        self._named: set[str] = set()

    async def unreferenced(self, names: Collection[str]) -> list[str]:
        for owner in sorted({owner_of(name) for name in names}):
            await self._read_owner(owner)
        return sorted(name for name in names if name not in self._named)

    async def _read_owner(self, owner: str) -> None:
        while True:
            listed, _ = await _list(self._store, owner)
            unread = [name for name in (f"{owner}/{MANIFEST}", *listed) if not self._is_done(name)]
            if not unread:
                break
            for name in unread:
                await self.read(name)
        gone = [name for name in listed if self._read.get(name) is False]
        if gone:  # of deleted topics
            await _change(self._store, owner, without=gone)

    def _is_done(self, name: str) -> bool:
        return name in self._read or name in self._ignored

    async def read(self, name: str) -> bool:
        """Note what a manifest names; whether it is there."""
        if self._is_done(name):
            return self._read.get(name, True)
        try:
            found = decode_manifest((await self._store.read_whole(name))[0])
        except NoObjectError:
            self._read[name] = False
            return False
        self._read[name] = True
        if found.taken_over_by is not None:
            await self.read(found.taken_over_by)
        else:
            self._named.update(segment.name for segment in found.segments)
        return True

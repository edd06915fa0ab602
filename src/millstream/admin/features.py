"""Features of a cluster: their finalized levels, what the nodes support, and upgrades (docs/upgrades.md)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from millstream.admin.errors import InvalidArgumentError, check
from millstream.raw_client import Cluster

METADATA_VERSION = "metadata.version"
QUORUM_FEATURE = "kraft.version"
_OWN = "millstream."
_UPGRADE, _SAFE_DOWNGRADE = 1, 2
RELEASES: Mapping[str, int] = {
    "3.3": 7,
    "3.4": 8,
    "3.5": 11,
    "3.6": 14,
    "3.7": 19,
    "3.8": 20,
    "3.9": 21,
    "4.0": 25,
    "4.1": 27,
    "4.2": 29,
    "4.3": 30,
}
"""The last metadata version of each release of Kafka."""
_FIRST_RELEASE: Mapping[str, Mapping[str, int]] = {
    "4.0": {"group.version": 1, "transaction.version": 2},
    "4.1": {"eligible.leader.replicas.version": 1},
    "4.2": {"share.version": 1, "streams.version": 1},
}
"""The levels of other features that new clusters have from a release on."""


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    level: int
    """The finalized level; 0: off."""
    lowest: int
    highest: int
    """The highest level that all brokers support."""
    newest: int
    """The highest level that some broker supports."""

    @property
    def is_upgraded(self) -> bool:
        """Whether `upgrade` changes it. The quorum decides about `kraft.version` itself, and it cannot be undone."""
        return self.name != QUORUM_FEATURE

    @property
    def release(self) -> str:
        """The release of Kafka with this metadata version; empty for other features."""
        if self.name != METADATA_VERSION:
            return ""
        return next((name for name, level in RELEASES.items() if level >= self.level), "")


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    before: int
    after: int


class FeatureAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def features(self, *, without: Collection[int] = ()) -> list[Feature]:
        """The features whose level is decided for the cluster, by name. Brokers in `without` are not asked."""
        ranges: dict[str, list[tuple[int, int]]] = {}
        levels: dict[str, int] = {}
        epoch = -1
        brokers = [each for each in self._cluster.brokers() if each.node_id not in without]
        for broker in brokers:
            response = self._cluster.call(
                "api_versions",
                node=broker.node_id,
                client_software_name="millstream",
                client_software_version="admin",
            )
            check(f"broker {broker.node_id}", response)
            for row in response.supported_features:
                ranges.setdefault(row.name, []).append((row.min_version, row.max_version))
            if response.finalized_features_epoch >= epoch:
                epoch = response.finalized_features_epoch
                levels = {row.name: row.max_version_level for row in response.finalized_features}
        return [
            Feature(
                name,
                levels.get(name, 0),
                max(low for low, _ in found),
                min(high for _, high in found) if len(found) == len(brokers) else 0,
                max(high for _, high in found),
            )
            for name, found in sorted(ranges.items())
            if not name.startswith(_OWN)
        ]

    def upgrade(self, release: str | None = None, *, dry_run: bool = False) -> list[Change]:
        """Raises features to the newest level that all brokers have, or to those of a release. Returns the changes."""
        wanted = _levels_of(release) if release is not None else None
        changes = []
        for feature in self.features():
            if not feature.is_upgraded:
                continue
            target = feature.highest if wanted is None else wanted.get(feature.name, feature.level)
            if target > feature.level:
                changes.append(Change(feature.name, feature.level, target))
        self._update(changes, _UPGRADE, dry_run)
        return changes

    def downgrade(self, levels: Mapping[str, int], *, dry_run: bool = False) -> list[Change]:
        """Lowers features, where that is safe."""
        known = {each.name: each for each in self.features()}
        changes = []
        for name, level in levels.items():
            if name not in known:
                raise InvalidArgumentError(f"there is no feature {name}: the cluster has {', '.join(known)}")
            changes.append(Change(name, known[name].level, level))
        self._update(changes, _SAFE_DOWNGRADE, dry_run)
        return changes

    def _update(self, changes: Sequence[Change], kind: int, dry_run: bool) -> None:
        if not changes:
            return
        response = self._cluster.call(
            "update_features",
            timeout_ms=int(self._cluster.timeout_s * 1000),
            feature_updates=[
                {"feature": each.name, "max_version_level": each.after, "upgrade_type": kind} for each in changes
            ],
            validate_only=dry_run,
        )
        check("the features", response)
        for row in response.results:
            check(f"feature {row.feature}", row)


def _levels_of(release: str) -> dict[str, int]:
    if release not in RELEASES:
        raise InvalidArgumentError(f"{release!r} is not a release with a metadata version: use {', '.join(RELEASES)}")
    found = {METADATA_VERSION: RELEASES[release]}
    for first, levels in _FIRST_RELEASE.items():
        if RELEASES[first] <= RELEASES[release]:
            found |= levels
    return found

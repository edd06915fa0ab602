"""UpdateFeatures (57): the levels of the cluster's features; `kraft.version`, which is the quorum's own, among them."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.metadata.features import SUPPORTED_FEATURES, FeatureUpdate, UpgradeType, update_features
from millstream.node.metadata.image import MetadataImage
from millstream.node.server.request import Context, Response

KRAFT_VERSION = "kraft.version"
_KRAFT_VERSIONS = (0, 1)
_LOOK_AGAIN_S = 0.01


def features_to_tell(
    image: MetadataImage, kraft_version: int
) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
    """What ApiVersions says: the supported ranges, the finalized levels, and the offset they are of."""
    supported = {each.name: (each.min_supported_version, each.max_supported_version) for each in SUPPORTED_FEATURES}
    finalized = dict(image.features)
    if kraft_version > 0:
        finalized[KRAFT_VERSION] = kraft_version
    return {**supported, KRAFT_VERSION: _KRAFT_VERSIONS}, finalized, image.offset


class KRaftVersions(Protocol):
    """The quorum, as far as its own feature is concerned."""

    @property
    def kraft_version(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def upgrade_kraft_version(self, version: int) -> int:
        """Moves up; the offset that has to be committed."""
        ...


class FeatureHandlers:
    def __init__(self, controller: ActiveController, quorum: KRaftVersions) -> None:
        self._controller = controller
        self._quorum = quorum

    async def update_features(self, request: Message, context: Context) -> Response:
        updates = [
            FeatureUpdate(name=row.feature, level=row.max_version_level, upgrade_type=_upgrade_type(row, context))
            for row in request.feature_updates
        ]
        plain = [update for update in updates if update.name != KRAFT_VERSION]
        own = [update for update in updates if update.name == KRAFT_VERSION]
        if own:
            # It is the quorum's and thus no part of the decision: made first, once the rest is known to be possible.
            if plain:
                await self._update(plain, validate_only=True)
            await self._upgrade_quorum(own, validate_only=request.validate_only)
        if plain:
            await self._update(plain, validate_only=request.validate_only)
        return {"results": [{"feature": update.name} for update in updates]}

    async def _update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        await self._controller.decide(
            lambda image, config, randomness: update_features(image, updates, config, validate_only=validate_only)
        )

    async def _upgrade_quorum(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        controller, quorum = self._controller, self._quorum
        await controller.read()
        epoch = controller.epoch
        (update,) = updates if len(updates) == 1 else (None,)
        if update is None or update.upgrade_type != UpgradeType.UPGRADE or update.level < quorum.kraft_version:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{KRAFT_VERSION} goes up, from {quorum.kraft_version}, and never down.",
            )
        if validate_only:
            return
        offset = quorum.upgrade_kraft_version(update.level)
        while quorum.high_watermark <= offset:
            if not controller.is_active or controller.epoch != epoch:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "The lead was lost while the quorum was upgraded.")
            await asyncio.sleep(_LOOK_AGAIN_S)


def _upgrade_type(row: Message, context: Context) -> int:
    if context.version == 0:
        return UpgradeType.SAFE_DOWNGRADE if row.allow_downgrade else UpgradeType.UPGRADE
    return int(row.upgrade_type)

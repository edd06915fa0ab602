"""Handlers of the controller for the cluster: DescribeCluster (60), UpdateFeatures (57), AllocateProducerIds (67),
ControllerRegistration (70).

`kraft.version` is a feature of the quorum, not of the metadata image.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from millstream.formats.model.access_control import CLUSTER_NAME, AclResourceType
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import BRANCHES, BrokerId
from millstream.formats.protocol.produce import CONDITIONAL_APPEND
from millstream.formats.protocol.wire_types import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBrokers,
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdates,
    UpdateFeaturesResponse,
)
from millstream.node.controller.active_controller import ActiveController, ImageSource, Leadership
from millstream.node.metadata.brokers import allocate_producer_ids, register_controller
from millstream.node.metadata.features import (
    KRAFT_VERSION_RANGE,
    FeatureUpdate,
    UpgradeType,
    update_features,
)
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import Endpoint, RegisterControllerRecord, SupportedFeature
from millstream.node.server.authorization import NO_AUTHORIZER, Authorizer
from millstream.node.server.request import Context

BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2
NOT_REQUESTED = -(1 << 31)

ControllerAddresses = Callable[[], Sequence[tuple[int, str, int]]]
"""Id, host and port of every voter whose address is known."""


class ControllerClusterHandlers:
    """Served by every node with the controller role, active or not: clients find the active controller by it."""

    def __init__(
        self,
        source: ImageSource,
        leadership: Leadership,
        controllers: ControllerAddresses,
        authorizer: Authorizer = NO_AUTHORIZER,
    ) -> None:
        self._authorizer = authorizer
        self._source = source
        self._leadership = leadership
        self._controllers = controllers

    def describe_cluster(self, request: DescribeClusterRequest, context: Context) -> DescribeClusterResponse:
        image = self._source.image
        leader_id = self._leadership.leader_id
        response: DescribeClusterResponse = {
            "endpoint_type": request.endpoint_type,
            "cluster_id": image.cluster_id or "",
            "brokers": [],
            "controller_id": -1 if leader_id is None else leader_id,
            "cluster_authorized_operations": (
                self._authorizer.operations(context.peer, AclResourceType.CLUSTER, CLUSTER_NAME)
                if request.include_cluster_authorized_operations
                else NOT_REQUESTED
            ),
        }
        if request.endpoint_type == CONTROLLER_ENDPOINTS:
            response["brokers"] = self._controller_rows(image, context.peer.listener)
        elif request.endpoint_type == BROKER_ENDPOINTS and context.version == 0:
            response["brokers"] = _brokers(image)
        elif request.endpoint_type == BROKER_ENDPOINTS:
            response["error_code"] = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            response["error_message"] = "this is a controller's listener: request controller endpoints"
        else:
            response["error_code"] = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            response["error_message"] = f"unknown endpoint type {request.endpoint_type}"
        return response

    def _controller_rows(self, image: MetadataImage, listener: str) -> list[DescribeClusterResponseBrokers]:
        """Registered controllers with their address at this listener, and voters that did not register."""
        found = {id_: (host, port) for id_, host, port in self._controllers()}
        for controller in image.controllers.values():
            for at in controller.end_points:
                if at.name == listener:
                    found[controller.controller_id] = at.host, at.port
        return [
            {"broker_id": id_, "host": host, "port": port, "is_fenced": False}
            for id_, (host, port) in sorted(found.items())
        ]


class ControllerRegistrationHandlers:
    """ControllerRegistration (70), of the active controller."""

    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def controller_registration(
        self, request: ControllerRegistrationRequest, context: Context
    ) -> ControllerRegistrationResponse:
        record = RegisterControllerRecord(
            controller_id=request.controller_id,
            incarnation_id=request.incarnation_id,
            zk_migration_ready=request.zk_migration_ready,
            end_points=tuple(
                Endpoint(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
                for each in request.listeners
            ),
            features=tuple(
                SupportedFeature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in request.features
            ),
        )
        await self._controller.decide(lambda image, config, randomness: register_controller(image, record))
        return {}


def _brokers(image: MetadataImage) -> list[DescribeClusterResponseBrokers]:
    """The brokers, for version 0, which has no endpoint type."""
    return [
        {"broker_id": broker.id, "host": at.host, "port": at.port, "rack": broker.rack, "is_fenced": False}
        for broker in image.brokers.values()
        if not broker.fenced
        for at in broker.end_points[:1]
    ]


KRAFT_VERSION = KRAFT_VERSION_RANGE.name
_KRAFT_VERSIONS = KRAFT_VERSION_RANGE.min_supported_version, KRAFT_VERSION_RANGE.max_supported_version
_LOOK_AGAIN_SECONDS = 0.01


def features_for_api_versions(
    image: MetadataImage, kraft_version: int, offered: Sequence[SupportedFeature]
) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
    """The features in an ApiVersions response: supported ranges, finalized levels, and the levels' offset."""
    supported = {each.name: (each.min_supported_version, each.max_supported_version) for each in offered}
    finalized = dict(image.features)
    if kraft_version > 0:
        finalized[KRAFT_VERSION] = kraft_version
    return (
        {**supported, KRAFT_VERSION: _KRAFT_VERSIONS, CONDITIONAL_APPEND: (1, 1), BRANCHES: (1, 1)},
        finalized,
        image.offset,
    )


class KRaftVersions(Protocol):
    """The part of the quorum that has `kraft.version`."""

    @property
    def kraft_version(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def upgrade_kraft_version(self, version: int) -> int:
        """Upgrades; returns the offset that must be committed."""
        ...


class FeatureHandlers:
    def __init__(self, controller: ActiveController, quorum: KRaftVersions) -> None:
        self._controller = controller
        self._quorum = quorum

    async def update_features(self, request: UpdateFeaturesRequest, context: Context) -> UpdateFeaturesResponse:
        updates = [
            FeatureUpdate(name=row.feature, level=row.max_version_level, upgrade_type=_upgrade_type(row, context))
            for row in request.feature_updates
        ]
        plain = [update for update in updates if update.name != KRAFT_VERSION]
        own = [update for update in updates if update.name == KRAFT_VERSION]
        if own:
            # The quorum upgrades it, not the decision: first, after the other updates are validated.
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
                f"{KRAFT_VERSION} is {quorum.kraft_version} and can only be upgraded.",
            )
        if validate_only:
            return
        offset = quorum.upgrade_kraft_version(update.level)
        while quorum.high_watermark <= offset:
            if not controller.is_active or controller.epoch != epoch:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "The controller changed during the upgrade of the quorum.")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def _upgrade_type(row: UpdateFeaturesRequestFeatureUpdates, context: Context) -> int:
    if context.version == 0:
        return UpgradeType.SAFE_DOWNGRADE if row.allow_downgrade else UpgradeType.UPGRADE
    return int(row.upgrade_type)


class ProducerIdHandlers:
    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller

    async def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, context: Context
    ) -> AllocateProducerIdsResponse:
        (block,) = await self._controller.decide(
            lambda image, config, randomness: allocate_producer_ids(
                image, BrokerId(request.broker_id), request.broker_epoch
            )
        )
        return {"producer_id_start": block.first, "producer_id_len": block.size}

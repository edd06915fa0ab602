"""DescribeCluster (60) on the controller's listener: the controllers and their addresses, or the brokers."""

from collections.abc import Callable, Sequence
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.controller.metadata_source import ImageSource, Leadership
from millstream.node.metadata.image import MetadataImage
from millstream.node.server.request import Context, Response

BROKER_ENDPOINTS, CONTROLLER_ENDPOINTS = 1, 2
NOT_ASKED = -(1 << 31)
ALL_CLUSTER_OPERATIONS = 0b1111110100000
"""Bits of AclOperation for one who may do everything: there are no ACLs, so everyone may."""

ControllerAddresses = Callable[[], Sequence[tuple[int, str, int]]]
"""Id, host and port of every voter whose address is known."""


class ControllerClusterHandlers:
    """Answered by every node with the controller role, from what it knows: it is how a client finds the active one."""

    def __init__(self, source: ImageSource, leadership: Leadership, controllers: ControllerAddresses) -> None:
        self._source = source
        self._leadership = leadership
        self._controllers = controllers

    def describe_cluster(self, request: Message, context: Context) -> Response:
        image = self._source.image
        leader_id = self._leadership.leader_id
        answer: dict[str, Any] = {
            "endpoint_type": request.endpoint_type,
            "cluster_id": image.cluster_id,
            "controller_id": -1 if leader_id is None else leader_id,
            "cluster_authorized_operations": (
                ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
            ),
        }
        if request.endpoint_type == CONTROLLER_ENDPOINTS:
            rows = [{"broker_id": id_, "host": host, "port": port} for id_, host, port in self._controllers()]
        elif request.endpoint_type == BROKER_ENDPOINTS and context.version == 0:
            rows = _brokers(image)
        elif request.endpoint_type == BROKER_ENDPOINTS:
            return answer | {
                "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                "error_message": "this is a controller's listener: ask it for endpoints of controllers",
            }
        else:
            return answer | {
                "error_code": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                "error_message": f"there are no endpoints of type {request.endpoint_type}",
            }
        return answer | {"brokers": rows}


def _brokers(image: MetadataImage) -> list[dict[str, Any]]:
    """For version 0, which cannot ask for controllers."""
    return [
        {"broker_id": broker.id, "host": at.host, "port": at.port, "rack": broker.rack}
        for broker in image.brokers.values()
        if not broker.fenced
        for at in broker.end_points[:1]
    ]

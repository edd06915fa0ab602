"""ApiVersions (18): what this broker speaks, and the answer that even a client from the future can read."""

from collections.abc import Callable, Iterable, Mapping

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.server.request import Api, Context, Response

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


class ApiVersions:
    def __init__(
        self, apis: Iterable[Api], features: Callable[[], tuple[Mapping[str, tuple[int, int]], Mapping[str, int], int]]
    ) -> None:
        """`features` gives the supported ranges, the finalized levels and the metadata epoch they stem from."""
        self._rows = [
            # Kafka 4 offers Produce from version 0 although it takes only 3 and later: old librdkafka looks for it.
            {
                "api_key": api.key,
                "min_version": 0 if api.key == 0 else api.first_version,
                "max_version": api.last_version,
            }
            for api in sorted(apis, key=lambda api: api.key)
        ]
        self._features = features

    def handle(self, request: Message, context: Context) -> Response:
        if context.version < 0:
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": self._rows}
        if context.version >= 3:
            if not (_is_name(request.client_software_name) and _is_name(request.client_software_version)):
                return {"error_code": ErrorCode.INVALID_REQUEST}
            context.peer.client_software = f"{request.client_software_name} {request.client_software_version}"
        supported, finalized, epoch = self._features()
        return {
            "api_keys": self._rows,
            "supported_features": [
                {"name": name, "min_version": low, "max_version": high}
                for name, (low, high) in supported.items()
                # Versions before 4 cannot tell a feature that starts at 0.
                if low > 0 or context.version >= 4
            ],
            "finalized_features_epoch": epoch,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in finalized.items()
            ],
        }


def _is_name(text: str) -> bool:
    return bool(text) and text[0] not in "-." and text[-1] not in "-." and _NAME_CHARACTERS.issuperset(text)

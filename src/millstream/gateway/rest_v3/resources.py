"""The form of Confluent's REST v3: every resource says what it is and where, and where its relatives are."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from millstream.gateway.http.asked import Asked
from millstream.gateway.http.errors import BadRequestError

BASE = "/v3/clusters"


class Links:
    """Addresses below one cluster, as whoever asks would spell them."""

    def __init__(self, asked: Asked, cluster_id: str) -> None:
        url = asked.request.url
        self.cluster_id = cluster_id
        self._clusters = f"{url.scheme}://{url.netloc}{BASE}"

    def to(self, *parts: object) -> str:
        return "/".join((self._clusters, *(quote(str(part), safe="") for part in (self.cluster_id, *parts))))

    def related(self, *parts: object) -> dict[str, str]:
        return {"related": self.to(*parts)}

    @property
    def clusters(self) -> str:
        return self._clusters

    def resource(
        self,
        kind: str,
        path: tuple[object, ...],
        named: Iterable[tuple[str, object]],
        fields: Mapping[str, Any],
    ) -> dict[str, Any]:
        """`named`: what the resource is called, from the cluster down, for its name in Confluent's spelling."""
        name = "".join(f"/{part}={value}" for part, value in (("kafka", self.cluster_id), *named))
        return {
            "kind": kind,
            "metadata": {"self": self.to(*path), "resource_name": f"crn://{name}"},
            "cluster_id": self.cluster_id,
            **fields,
        }

    def collection(self, kind: str, path: tuple[object, ...], data: list[dict[str, Any]]) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"self": self.to(*path), "next": None}, "data": data}


def not_found(what: str, hint: str = "") -> BadRequestError:
    return BadRequestError(404, f"{what} cannot be found", hint)


def number_from_path(asked: Asked, name: str, what: str) -> int:
    """A number in the path; what is none can name nothing."""
    text = asked.path(name)
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise not_found(f"{what} {text}")
    return int(text)


def read_fields(document: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """The fields that are given, each of its type; null is as good as left out. Others are refused."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise BadRequestError(400, f"Unrecognized field: {name}", f"there are {', '.join(known)}")
        if value is None:
            continue
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise BadRequestError(400, f"Cannot deserialize the field {name}", "see /docs for what it takes")
        found[name] = value
    return found

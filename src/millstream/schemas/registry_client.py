"""The client of a schema registry that speaks Confluent's API: schemas by id and by subject, register, look up.

The schema of an id never changes and is cached; everything else is requested each time. Errors of the server and of the
network are retried at each address until the timeout.
"""

import base64
import json
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

from millstream.schemas.errors import RegistryError, RegistryUnreachableError, SchemaError, SchemaNotFoundError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
KINDS = ("AVRO", "JSON", "PROTOBUF")
_KEPT = 1000
_NOT_FOUND_KEPT_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Reference:
    """Another schema that this one imports under a name."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    text: str
    kind: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    subject: str
    version: int
    id: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class RegistryAuth:
    """User and password, a bearer token, or neither."""

    user: str | None = None
    password: str = ""
    token: str | None = None

    def header(self) -> dict[str, str]:
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token}"}
        if self.user is not None:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}


class RegistryClient:
    """Thread safe; pickled as its settings."""

    def __init__(
        self, url: str, auth: RegistryAuth | None = None, *, timeout_s: float = 20.0, ca_file: str | None = None
    ) -> None:
        """`url`: one address or several, separated by commas. `timeout_s`: of each request, retries included."""
        self.urls = tuple(part.strip().rstrip("/") for part in url.split(",") if part.strip())
        if not self.urls:
            raise SchemaError("The schema registry's address is empty; give a URL such as http://localhost:8081.")
        for each in self.urls:
            split = urlsplit(each)
            if split.scheme not in ("http", "https") or not split.hostname:
                raise SchemaError(
                    f"{each!r} is not the address of a schema registry; give one such as http://localhost:8081."
                )
        self._auth = auth or RegistryAuth()
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._missing: dict[str, tuple[float, SchemaNotFoundError]] = {}
        self._opener: Any = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("urls", "_auth", "_timeout_s", "_ca_file")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def schema_by_id(self, schema_id: int) -> Schema:
        """SchemaNotFoundError if the registry has none."""
        return _schema(self._immutable(f"/schemas/ids/{schema_id}", f"schema {schema_id}"))

    def serialized_by_id(self, schema_id: int) -> Schema:
        """A Protobuf schema as a descriptor in base64, from registries that offer it; else as text."""
        return _schema(self._immutable(f"/schemas/ids/{schema_id}?format=serialized", f"schema {schema_id}"))

    def version(self, subject: str, version: int) -> RegisteredSchema:
        what = f"version {version} of subject {subject!r}"
        return _registered(self._immutable(f"/subjects/{quote(subject, safe='')}/versions/{version}", what))

    def latest(self, subject: str) -> RegisteredSchema:
        response = self._request("GET", f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject!r}")
        return _registered(response)

    def register(self, subject: str, schema: Schema) -> int:
        """Registers a schema and returns its id; a registered schema keeps its id."""
        what = f"a schema for subject {subject!r}"
        response = self._request("POST", f"/subjects/{quote(subject, safe='')}/versions", what, _body(schema))
        return int(response["id"])

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema | None:
        """The id and version of this schema under a subject, or None."""
        try:
            response = self._request(
                "POST", f"/subjects/{quote(subject, safe='')}", f"subject {subject!r}", _body(schema)
            )
        except SchemaNotFoundError:
            return None
        return _registered({"schemaType": schema.kind, **response})

    def check(self, subject: str, schema: Schema, version: str | None = None) -> list[str]:
        """The reasons for which a schema is not compatible; empty if it is: compared with one version ("latest" or a
        number), or with all versions that the subject's level requires."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions" + (f"/{version}" if version else "")
        response = self._request("POST", f"{path}?verbose=true", f"subject {subject!r}", _body(schema))
        if response.get("is_compatible"):
            return []
        return [str(message) for message in response.get("messages") or ()] or ["the registry does not say why"]

    def versions(self, subject: str) -> list[int]:
        response = self._request("GET", f"/subjects/{quote(subject, safe='')}/versions", f"subject {subject!r}")
        return [int(version) for version in response]

    def subjects(self) -> list[str]:
        return [str(name) for name in self._request("GET", "/subjects", "the list of subjects")]

    def _immutable(self, path: str, what: str) -> Any:
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
            # Bytes that look like a prefix may have an unknown id, perhaps a thousand times in a batch.
            if path in self._missing and self._missing[path][0] > time.monotonic():
                raise self._missing[path][1]
        try:
            response = self._request("GET", path, what)
        except SchemaNotFoundError as error:
            with self._lock:
                if len(self._missing) >= _KEPT:
                    self._missing.clear()
                self._missing[path] = (time.monotonic() + _NOT_FOUND_KEPT_SECONDS, error)
            raise
        with self._lock:
            self._kept[path] = response
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return response

    def _request(self, method: str, path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        deadline = time.monotonic() + self._timeout_s
        pause = _PAUSE_SECONDS
        while True:
            reasons = []
            for url in self.urls:
                try:
                    return self._ask_once(method, url, path, what, body, deadline)
                except _TryAgainError as error:
                    reasons.append(f"{url}: {error}")
            if time.monotonic() + pause >= deadline:
                raise RegistryUnreachableError(
                    f"The schema registry did not respond to the request for {what} within {self._timeout_s:g} s "
                    f"({'; '.join(reasons)}). Check the address, and that the registry is running."
                )
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _ask_once(
        self, method: str, url: str, path: str, what: str, body: Mapping[str, Any] | None, deadline: float
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE, **self._auth.header()}
        request = Request(url + path, data=data, headers=headers, method=method)
        try:
            # No address may use the time of the others.
            timeout_left = min(deadline - time.monotonic(), max(1.0, self._timeout_s / (len(self.urls) + 1)))
            # A last attempt shortly before the deadline still gets a second: less would only hide the reason.
            with self._open(request, max(1.0, timeout_left)) as response:
                content = response.read()
        except HTTPError as error:
            with error:
                detail = error.read()
            self._refuse(error.code, detail, url, what)
        except ssl.SSLError as error:
            raise RegistryError(f"The schema registry at {url} cannot be trusted: {error}.") from None
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLError):
                raise RegistryError(f"The schema registry at {url} cannot be trusted: {reason}.") from None
            raise _TryAgainError(str(reason) or type(reason).__name__) from None
        try:
            return json.loads(content)
        except ValueError:
            raise RegistryError(f"{url}{path} did not respond with JSON; check that it is a schema registry") from None

    def _open(self, request: Request, timeout_s: float) -> Any:
        if self._opener is None:
            context = None
            try:
                if self._ca_file is not None or any(url.startswith("https:") for url in self.urls):
                    context = ssl.create_default_context(cafile=self._ca_file)  # reading all CAs takes a while
            except (OSError, ssl.SSLError) as error:
                raise SchemaError(f"The CA file {self._ca_file!r} cannot be read: {error}.") from None
            self._opener = build_opener(HTTPSHandler(context=context))
        return self._opener.open(request, timeout=timeout_s)

    def _refuse(self, status: int, detail: bytes, url: str, what: str) -> None:
        try:
            response = json.loads(detail)
            code, text = int(response.get("error_code", status)), str(response.get("message", ""))
        except (ValueError, AttributeError, TypeError):
            code, text = status, detail[:200].decode(errors="replace")
        if status >= 500 or status in (408, 429):
            raise _TryAgainError(f"HTTP {status} {text}".strip())
        if status == 404:
            raise SchemaNotFoundError(
                f"The schema registry at {url} does not have {what}: {text or 'not found'}", 404, code
            )
        if status in (401, 403):
            raise RegistryError(
                f"The schema registry at {url} refuses access to {what} (HTTP {status} {text}); check user and "
                "password or token.",
                status,
                code,
            )
        raise RegistryError(
            f"The schema registry at {url} refuses {what} (HTTP {status}, {code}): {text}", status, code
        )


class _TryAgainError(Exception):
    """The request may succeed at another attempt."""


def _body(schema: Schema) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":
        body["schemaType"] = schema.kind
    if schema.references:
        body["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version} for each in schema.references
        ]
    return body


def _schema(response: Mapping[str, Any]) -> Schema:
    references = tuple(
        Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in response.get("references") or ()
    )
    return Schema(str(response["schema"]), str(response.get("schemaType") or "AVRO"), references)


def _registered(response: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(str(response["subject"]), int(response["version"]), int(response["id"]), _schema(response))

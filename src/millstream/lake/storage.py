"""Storage of a table's files: a local directory, or a prefix in an S3-compatible store, with one set of options.

pyarrow reads and writes data files, because it is fast. obstore lists and deletes files, locally and in object stores.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow.fs
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import LocalStore, S3Store

from millstream.lake.errors import LakeError, LakeOptionError
from millstream.lake.options import S3Options

DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class StoredObject:
    """One file below a table's root."""

    path: str
    size: int
    modified: datetime


@dataclass(frozen=True)
class Storage:
    """The root directory of a table; paths are relative to it, with slashes. Picklable: connections are made on use."""

    url: str
    s3: S3Options = field(default_factory=S3Options)

    @staticmethod
    def at(location: str, s3: S3Options) -> "Storage":
        """The storage of a path; local paths become absolute, because processes have other directories."""
        scheme = urlsplit(location).scheme
        if scheme in ("s3", "s3a", "s3n"):
            bucket_and_prefix = location.split("://", 1)[1].strip("/")
            if not bucket_and_prefix:
                raise LakeOptionError(f"{location}: write s3://BUCKET/PREFIX")
            return Storage(f"s3://{bucket_and_prefix}", s3)
        if scheme == "file":
            return Storage(os.path.abspath(urlsplit(location).path), s3)
        if "://" in location:
            raise LakeOptionError(
                f"{location}: tables can be in local directories and S3-compatible stores; write a path or s3://BUCKET/PREFIX"
            )
        return Storage(os.path.abspath(location), s3)

    @property
    def is_local(self) -> bool:
        return not self.url.startswith("s3://")

    @property
    def uri(self) -> str:
        """The root as a URI."""
        return f"file://{self.url}" if self.is_local else self.url

    def full(self, path: str) -> str:
        """A path below the root, for messages and for libraries that take URIs."""
        return f"{self.uri}/{path}"

    def relative(self, uri: str) -> str | None:
        """The path below the root that a URI names, or None if it is not below the root."""
        if self.is_local:  # Java writes file:/path
            plain = "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else uri
        else:
            plain = re.sub("^s3[an]://", "s3://", uri)
        root = self.url.rstrip("/") + "/"
        return plain.removeprefix(root) if plain.startswith(root) else None

    # Data files, through pyarrow.

    @cached_property
    def _files(self) -> tuple[pyarrow.fs.FileSystem, str]:
        if self.is_local:
            return pyarrow.fs.LocalFileSystem(), self.url
        settings: dict[str, Any] = {"region": self.region}
        if self.s3.endpoint:
            parts = urlsplit(self.s3.endpoint)
            settings |= {"endpoint_override": parts.netloc or parts.path, "scheme": parts.scheme or "https"}
            settings["force_virtual_addressing"] = self.s3.virtual_host_style
        if self.s3.access_key:
            settings |= {"access_key": self.s3.access_key, "secret_key": self.s3.secret_key}
            if self.s3.session_token:
                settings["session_token"] = self.s3.session_token
        return pyarrow.fs.S3FileSystem(**settings), self.url.removeprefix("s3://")

    @property
    def region(self) -> str:
        return self.s3.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION

    def open_input(self, path: str) -> Any:
        """A data file to read at random."""
        filesystem, root = self._files
        return filesystem.open_input_file(f"{root}/{path}")

    def open_output(self, path: str) -> Any:
        """A new data file to write."""
        filesystem, root = self._files
        if self.is_local:
            os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
        return filesystem.open_output_stream(f"{root}/{path}")

    # Listing and deleting, through obstore.

    @cached_property
    def _objects(self) -> Any:
        if self.is_local:
            return LocalStore(self.url, mkdir=True)
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        return S3Store(
            bucket,
            prefix=prefix or None,
            config=_obstore_config(self),
            client_options={"connect_timeout": "5s", "allow_http": True},
            retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=30)},
        )

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raises errors of the store as LakeError with the name of the store."""
        try:
            yield
        except NotFoundError:
            raise
        except BaseError as error:
            reason = str(error).split("\n", 1)[0]
            where = self.s3.endpoint or f"AWS in {self.region}" if not self.is_local else "the local disk"
            raise LakeError(f"{self.url} on {where}: {reason}") from error

    def delete(self, path: str) -> None:
        """Deletes a file, if it exists."""
        try:
            with self._reaching():
                obstore.delete(self._objects, path)
        except (NotFoundError, FileNotFoundError):
            pass

    def listed(self, prefix: str = "") -> list[StoredObject]:
        """Every file below a prefix (a directory)."""
        if self.is_local and not os.path.isdir(os.path.join(self.url, prefix)):
            return []
        found: list[StoredObject] = []
        with self._reaching():
            for chunk in obstore.list(self._objects, prefix=prefix or None):
                found += [StoredObject(each["path"], each["size"], each["last_modified"]) for each in chunk]
        return found

    def subdirectories(self) -> list[str]:
        """Names of the directories right below the root."""
        if self.is_local and not os.path.isdir(self.url):
            return []
        with self._reaching():
            response = obstore.list_with_delimiter(self._objects)
        return sorted(str(prefix).rstrip("/").rsplit("/", 1)[-1] for prefix in response["common_prefixes"])

    def has_any(self, prefix: str) -> bool:
        """Whether there is any file below a prefix."""
        if self.is_local:
            return os.path.isdir(os.path.join(self.url, prefix))
        with self._reaching():
            for chunk in obstore.list(self._objects, prefix=prefix, chunk_size=1):
                return len(chunk) > 0
        return False

    def below(self, name: str) -> "Storage":
        return Storage(f"{self.url.rstrip('/')}/{name}", self.s3)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "s3": self.s3}


def _obstore_config(storage: Storage) -> Any:
    s3 = storage.s3
    config: dict[str, Any] = {"region": storage.region, "virtual_hosted_style_request": s3.virtual_host_style}
    if s3.endpoint:
        config["endpoint"] = s3.endpoint
        config["allow_http"] = s3.endpoint.startswith("http://")
    elif not s3.virtual_host_style:
        del config["virtual_hosted_style_request"]
    for name, value in (
        ("access_key_id", s3.access_key),
        ("secret_access_key", s3.secret_key),
        ("session_token", s3.session_token),
    ):
        if value:
            config[name] = value
    return config


def delta_storage_options(storage: Storage) -> dict[str, str]:
    """The settings under the names of deltalake."""
    if storage.is_local:
        return {}
    s3 = storage.s3
    options = {"AWS_REGION": storage.region}
    if s3.endpoint:
        options["AWS_ENDPOINT_URL"] = s3.endpoint
        options["AWS_ALLOW_HTTP"] = str(s3.endpoint.startswith("http://")).lower()
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(s3.virtual_host_style).lower()
    named = (
        ("AWS_ACCESS_KEY_ID", s3.access_key),
        ("AWS_SECRET_ACCESS_KEY", s3.secret_key),
        ("AWS_SESSION_TOKEN", s3.session_token),
    )
    return options | {name: value for name, value in named if value}


def iceberg_properties(storage_s3: S3Options, region: str) -> dict[str, str]:
    """The settings under the names of pyiceberg."""
    named = (
        ("s3.endpoint", storage_s3.endpoint),
        ("s3.access-key-id", storage_s3.access_key),
        ("s3.secret-access-key", storage_s3.secret_key),
        ("s3.session-token", storage_s3.session_token),
    )
    properties = {name: value for name, value in named if value}
    properties["s3.region"] = region
    if storage_s3.virtual_host_style:
        properties["s3.force-virtual-addressing"] = "true"
    return properties

"""Multipart uploads of S3 that were begun and not completed: found, continued and aborted, by botocore.

obstore writes large objects, and has no call for an upload that another process began. So botocore does what is rare:
after a crash, and when a broker sweeps. It is imported then, and its client is made then. All functions block.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from millstream.node.storage.object_store import NoObjectError, StoreError, Upload

_ATTEMPTS = 8
_SECONDS = 20


class S3Uploads:
    """The uploads below the URL of a store."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._bucket = parts.netloc
        self._root = f"{path}/" if (path := parts.path.strip("/")) else ""
        self._client: Any = None
        self._making = threading.Lock()

    def close(self) -> None:
        with self._making:
            if self._client is not None:
                self._client.close()

    def list(self, prefix: str) -> list[Upload]:
        """Those of objects whose name begins with a prefix."""
        found: list[Upload] = []
        markers: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=self._root + prefix, **markers)
            for each in page.get("Uploads", ()):
                began_ms = int(each["Initiated"].timestamp() * 1000)
                found.append(Upload(each["Key"].removeprefix(self._root), each["UploadId"], began_ms))
            if not page.get("IsTruncated"):
                return found
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort(self, uploads: Sequence[Upload]) -> None:
        """Uploads that are gone already are no error."""
        for each in uploads:
            try:
                self._call("abort_multipart_upload", Key=self._root + each.name, UploadId=each.id)
            except NoObjectError:
                pass

    def finish(self, upload: Upload, parts: Iterable[bytes], before_sending: Callable[[int], None]) -> None:
        """Send the parts that are not in the store as they are here, and complete the object.

        The ETag of a part is its MD5, so the store says whether it has the same bytes. Where it is something else, as
        with keys of AWS KMS, all parts are sent. NoObjectError if the upload is gone.
        """
        at: dict[str, Any] = {"Key": self._root + upload.name, "UploadId": upload.id}
        present = self._parts(at)
        completed = []
        for number, part in enumerate(parts, 1):
            tag = present.get(number)
            if tag is None or tag.strip('"') != hashlib.md5(part, usedforsecurity=False).hexdigest():
                before_sending(len(part))
                tag = str(self._call("upload_part", PartNumber=number, Body=part, **at)["ETag"])
            completed.append({"PartNumber": number, "ETag": tag})
        self._call("complete_multipart_upload", MultipartUpload={"Parts": completed}, **at)

    def _parts(self, at: dict[str, Any]) -> dict[int, str]:
        """The ETags of the parts in the store, by number."""
        found: dict[int, str] = {}
        marker: dict[str, int] = {}
        while True:
            page = self._call("list_parts", **at, **marker)
            found |= {each["PartNumber"]: each["ETag"] for each in page.get("Parts", ())}
            if not page.get("IsTruncated"):
                return found
            marker = {"PartNumberMarker": int(page["NextPartNumberMarker"])}

    def _call(self, operation: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._opened(), operation)(Bucket=self._bucket, **arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in ("NoSuchUpload", "InvalidPart", "404"):
                raise NoObjectError(str(error)) from None
            raise StoreError(str(error)) from None
        except BotoCoreError as error:
            raise StoreError(str(error)) from None

    def _opened(self) -> Any:
        with self._making:
            if self._client is None:
                self._client = _make_client()
            return self._client


def open_uploads(url: str) -> S3Uploads | None:
    """None if the store is not S3, or botocore is not installed."""
    is_s3 = url.startswith(("s3://", "s3a://"))
    return S3Uploads(url) if is_s3 and find_spec("botocore") is not None else None


def _make_client() -> Any:
    """With the settings of the environment that obstore uses too; botocore takes endpoint and credentials from it."""
    from botocore.config import Config
    from botocore.session import Session

    is_virtual = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    config = Config(
        s3={"addressing_style": "virtual" if is_virtual else "path"},
        connect_timeout=_SECONDS,
        read_timeout=_SECONDS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return Session().create_client("s3", region_name=region, config=config)


def in_parts(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes, in parts of one size; the last may be smaller."""
    waiting = bytearray()
    for block in blocks:
        waiting += block
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    if waiting:
        yield bytes(waiting)

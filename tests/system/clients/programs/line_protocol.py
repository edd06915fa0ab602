"""The JSON-lines conversation the Python client programs share; `README.md` describes it."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Request = Mapping[str, Any]
Handler = Callable[[Request], "dict[str, Any] | None"]


class UnsupportedError(Exception):
    """The client has no way to do what was asked; the text says why."""


class ClientError(Exception):
    """The client reported an error of its own; `type` is the name its users would see."""

    def __init__(self, type_: str, code: int | None, message: str) -> None:
        super().__init__(message)
        self.type, self.code, self.message = type_, code, message

    def as_json(self) -> dict[str, Any]:
        return {"type": self.type, "code": self.code, "message": self.message}


def librdkafka_security(request: Request) -> dict[str, str]:
    """The settings of librdkafka for the request's `security`."""
    security = request.get("security") or {}
    names = {
        "protocol": "security.protocol",
        "ca": "ssl.ca.location",
        "certificate": "ssl.certificate.location",
        "key": "ssl.key.location",
        "mechanism": "sasl.mechanism",
        "username": "sasl.username",
        "password": "sasl.password",
    }
    return {names[field]: value for field, value in security.items() if field in names and value}


def keyword_security(request: Request) -> dict[str, Any]:
    """The keyword arguments of kafka-python for the request's `security`."""
    security = request.get("security") or {}
    names = {
        "protocol": "security_protocol",
        "ca": "ssl_cafile",
        "certificate": "ssl_certfile",
        "key": "ssl_keyfile",
        "mechanism": "sasl_mechanism",
        "username": "sasl_plain_username",
        "password": "sasl_plain_password",
    }
    return {names[field]: value for field, value in security.items() if field in names and value}


def encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def decode_headers(request_headers: list[list[str | None]]) -> list[tuple[str, bytes | None]]:
    return [(str(name), decode(value)) for name, value in request_headers]


def record(
    offset: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> dict[str, Any]:
    return {
        "offset": offset,
        "key": encode(key),
        "value": encode(value),
        "headers": [[name, encode(content)] for name, content in headers],
        "timestamp": timestamp,
    }


def emit(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def announce(event: str) -> None:
    emit({"event": event})


def serve(handlers: Mapping[str, Handler], to_client_error: Callable[[Exception], ClientError]) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        handler = handlers.get(request["op"])
        try:
            if handler is None:
                raise UnsupportedError(f"the client has no {request['op']}")
            emit({"result": handler(request) or {}})
        except UnsupportedError as reason:
            emit({"unsupported": str(reason)})
        except ClientError as error:
            emit({"error": error.as_json()})
        except Exception as error:
            emit({"error": to_client_error(error).as_json()})

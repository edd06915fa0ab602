"""The metrics page of a broker (`GET /metrics` on the Kafka port), as samples.

Of a cluster with TLS or SASL the page is read on a connection of the raw client, which has logged in: the user needs
the permission to DESCRIBE the cluster. Brokers of Apache Kafka have no such page.
"""

import http.client
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.raw_client import Cluster, WireError
from millstream.raw_client.deadline import Deadline
from millstream.raw_client.settings import SecurityProtocol

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\\": "\\"}
_LARGEST_PAGE = 16 << 20
_TIMEOUT_SECONDS = 0.9
_SECURED_TIMEOUT_SECONDS = 2.0
"""With a TLS handshake and a login before."""


class MetricsError(Exception):
    """No metrics from this broker. `is_no_page`: it has no such page, so it is not unreachable."""

    def __init__(self, text: str, *, is_no_page: bool = True) -> None:
        super().__init__(text)
        self.is_no_page = is_no_page


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


def read_metrics(
    cluster: Cluster, broker: int, host: str, port: int, subjects: Sequence[str], timeout_s: float | None = None
) -> list[Sample]:
    """The metrics of some subjects, of a broker with this id and address. All of them would be thousands of lines."""
    if cluster.settings.protocol is SecurityProtocol.PLAINTEXT:
        return fetch_metrics(host, port, subjects, timeout_s or _TIMEOUT_SECONDS)
    wait_s = timeout_s or _SECURED_TIMEOUT_SECONDS
    try:
        with cluster.connection(broker, Deadline(wait_s)) as connection:
            status, body = connection.http_get(_target(subjects), wait_s)
    except WireError as error:
        raise MetricsError(str(error), is_no_page=False) from error
    if status != http.HTTPStatus.OK:
        raise MetricsError(f"HTTP status {status}")
    return list(parse(body.decode("utf-8", "replace")))


def _target(subjects: Sequence[str]) -> str:
    return "/metrics?" + "&".join(f"collect[]={subject}" for subject in subjects)


def fetch_metrics(host: str, port: int, subjects: Sequence[str], timeout_s: float) -> list[Sample]:
    """Fetches the metrics of some subjects. All of them would be thousands of lines per second."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        # Without a Host: a broker on loopback serves its metrics to names of this machine only, to stop web pages.
        connection.putrequest("GET", _target(subjects), skip_host=True, skip_accept_encoding=True)
        connection.putheader("Accept", "text/plain")
        connection.endheaders()
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise MetricsError(f"HTTP status {response.status}")
        return list(parse(response.read(_LARGEST_PAGE).decode("utf-8", "replace")))
    except http.client.HTTPException as error:
        raise MetricsError(str(error) or type(error).__name__) from error
    except OSError as error:
        raise MetricsError((error.strerror or str(error)).lower(), is_no_page=False) from error
    finally:
        connection.close()


def parse(text: str) -> Iterator[Sample]:
    """Parses Prometheus' text format. Other lines are skipped."""
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {name: _unescape(text) for name, text in _LABEL.findall(found[2] or "")}
        yield Sample(found[1], labels, value)


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)

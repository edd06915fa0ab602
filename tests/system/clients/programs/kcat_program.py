"""kcat behind the line protocol: one kcat process per record written, per partition read.

kcat has no admin API: the first metadata request for a topic creates it. A program that wants partitions makes the
topic with another client.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from typing import Any

from line_protocol import (
    ClientError,
    Request,
    UnsupportedError,
    announce,
    decode,
    decode_headers,
    librdkafka_security,
    record,
    serve,
)

MAX_MESSAGE_BYTES = "10000000"
# Never part of a key or value here.
KEY_END = "<end of key>"
VALUE_END = "<end of value>"
# Written before each record of the output; lengths follow, then exactly that many bytes.
FORMAT = r"%T|%o|%K|%S|%h\n%k%s\n"

# kcat prints librdkafka's text for an error, not its number.
ERROR_CODES = {
    "Message size too large": 10,
    "Unknown topic or partition": 3,
    "Unknown partition": 3,
    "Offset out of range": 1,
}


def to_client_error(error: Exception) -> ClientError:
    return ClientError(type(error).__name__, None, str(error))


def failure(stderr: str) -> ClientError:
    for text, code in ERROR_CODES.items():
        if text in stderr:
            return ClientError(text, code, stderr.strip())
    return ClientError("kcat", None, stderr.strip())


def security(request: Request) -> list[str]:
    return [word for name, value in librdkafka_security(request).items() for word in ("-X", f"{name}={value}")]


def kcat(request: Request, *arguments: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["kcat", "-b", request["bootstrap"], *security(request), *arguments],
        input=stdin,
        capture_output=True,
        timeout=60,
    )
    if done.returncode != 0 or b"ERROR" in done.stderr or b"delivery failed" in done.stderr.lower():
        raise failure(done.stderr.decode(errors="replace"))
    return done.stdout


def hello(_: Request) -> dict[str, Any]:
    version = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+).*librdkafka (\S+)", version)
    return {
        "client": f"kcat {found[1]}, librdkafka {found[2]}" if found else "kcat",
        "codecs": ["none", "gzip", "snappy", "lz4", "zstd"],
        "lacks": {
            "timestamp": "kcat cannot set a timestamp",
            "empty_key": "kcat cannot write an empty key, only a null one",
            "offsets": "kcat does not tell the offset it wrote to",
            "create_topic": "kcat has no admin API; topics appear by auto-creation",
            "transact": "kcat writes one transaction per process, and cannot abort it",
        },
    }


def produce(request: Request) -> dict[str, Any]:
    results: list[dict[str, Any]] = []
    common = [
        *("-P", "-t", request["topic"], "-z", request["codec"]),
        *("-X", f"acks={request['acks']}"),
        *("-X", f"enable.idempotence={'true' if request['idempotent'] else 'false'}"),
        *("-X", f"message.max.bytes={MAX_MESSAGE_BYTES}", "-X", "linger.ms=0"),
        # How long an unknown topic is waited for.
        *("-X", "topic.metadata.propagation.max.ms=5000"),
    ]
    for each in request["records"]:
        key, value = decode(each["key"]), decode(each["value"])
        arguments = list(common)
        if each["partition"] is not None:
            arguments += ["-p", str(each["partition"])]
        for name, content in decode_headers(each["headers"]):
            arguments += ["-H", name if content is None else os.fsdecode(name.encode() + b"=" + content)]
        try:
            if value:
                if key is not None:
                    arguments += ["-k", key.decode()]
                with tempfile.NamedTemporaryFile() as file:
                    file.write(value)
                    file.flush()
                    kcat(request, *arguments, file.name)
            else:
                # A file without bytes sends nothing; only delimited input can carry an empty or null value.
                if value is None:
                    arguments.append("-Z")
                line = VALUE_END.encode()
                if key is not None:
                    arguments += ["-K", KEY_END]
                    line = key + KEY_END.encode() + line
                kcat(request, *arguments, "-D", VALUE_END, stdin=line)
            results.append({"offset": None})
        except ClientError as error:
            results.append({"error": error.as_json()})
    return {"results": results}


def parse_headers(text: bytes) -> list[tuple[str, bytes | None]]:
    headers: list[tuple[str, bytes | None]] = []
    for pair in text.split(b",") if text else []:
        name, _, value = pair.partition(b"=")
        headers.append((name.decode(), None if value == b"NULL" else value))
    return headers


def parse(output: bytes) -> list[dict[str, Any]]:
    records = []
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        timestamp, offset, key_length, value_length, headers = output[position:line_end].split(b"|", 4)
        key_end = line_end + 1 + max(0, int(key_length))
        value_end = key_end + max(0, int(value_length))
        key = None if int(key_length) < 0 else output[line_end + 1 : key_end]
        value = None if int(value_length) < 0 else output[key_end:value_end]
        records.append(record(int(offset), key, value, parse_headers(headers), int(timestamp)))
        position = value_end + 1
    return records


def consume(request: Request) -> dict[str, Any]:
    start = request["start"]
    if isinstance(start, dict):
        offset = f"s@{start['timestamp']}"
    elif start == "latest":
        # Resolved here: kcat itself would resolve it after "waiting" was said.
        offset = str(list_offsets({**request, "at": "latest"})["offset"])
    else:
        offset = "beginning" if start == "earliest" else str(start)
    reset = "error" if request["reset"] == "none" else request["reset"]
    process = subprocess.Popen(
        [
            *(
                "kcat",
                "-C",
                "-b",
                request["bootstrap"],
                *security(request),
                "-t",
                request["topic"],
                "-p",
                str(request["partition"]),
            ),
            *("-o", offset, "-c", str(request["count"]), "-f", FORMAT),
            *("-X", f"topic.auto.offset.reset={reset}"),
            *("-X", f"isolation.level={request['isolation']}"),
            *("-X", f"fetch.wait.max.ms={request['max_wait_ms']}"),
            *("-X", f"socket.timeout.ms={60_000 + request['max_wait_ms']}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    announce("waiting")
    timer = threading.Timer(request["timeout_ms"] / 1000, process.terminate)
    timer.start()
    output, said = process.communicate()
    timer.cancel()
    if b"ERROR" in said:
        raise failure(said.decode(errors="replace"))
    return {"records": parse(output)}


def metadata(request: Request, *arguments: str) -> Any:
    return json.loads(kcat(request, "-L", "-J", *arguments))


def list_topics(request: Request) -> dict[str, Any]:
    return {"topics": [each["topic"] for each in metadata(request)["topics"]]}


def describe_topic(request: Request) -> dict[str, Any]:
    # Asking for the one topic would create it, so ask for all.
    for topic in metadata(request)["topics"]:
        if topic["topic"] == request["topic"]:
            return {
                "partitions": [
                    {
                        "id": each["partition"],
                        "leader": each["leader"],
                        "replicas": [replica["id"] for replica in each["replicas"]],
                    }
                    for each in topic["partitions"]
                ]
            }
    raise UnsupportedError("kcat would create the topic by asking for it")


def list_offsets(request: Request) -> dict[str, Any]:
    if request["at"] == "max_timestamp":
        raise UnsupportedError("kcat has no lookup of the greatest timestamp")
    at = {"latest": -1, "earliest": -2}.get(request["at"], request["at"])
    # Prints "topic [0] offset 12".
    response = kcat(request, "-Q", "-t", f"{request['topic']}:{request['partition']}:{at}").decode()
    return {"offset": int(response.rsplit(maxsplit=1)[1])}


def describe_cluster(request: Request) -> dict[str, Any]:
    described = metadata(request)
    brokers = []
    for each in described["brokers"]:
        host, _, port = each["name"].rpartition(":")
        brokers.append({"id": each["id"], "host": host, "port": int(port)})
    return {"cluster_id": None, "controller": described["controllerid"], "brokers": brokers}


HANDLERS = {
    each.__name__: each
    for each in (hello, produce, consume, list_topics, describe_topic, list_offsets, describe_cluster)
}

if __name__ == "__main__":
    serve(HANDLERS, to_client_error)

"""HTTP itself: who is let in, what is too much, and errors that are always JSON."""

import base64
import gzip
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millstream.access.rules_file import parse_rules
from millstream.cli import exit_codes
from millstream.cli.app import run_app
from millstream.gateway.http import protocol as careful_http
from millstream.gateway.http.configuration import (
    Credentials,
    CredentialsError,
    GatewayError,
    read_credentials,
    unnamed_token,
)
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.conftest import Caller
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
PEOPLE = read_credentials("# people\n\nbasic ann:se:cret\nbearer t0ken\n")


def test_livez_and_readyz_are_ok(call: Caller) -> None:
    assert call("GET", "/livez").json == {"status": "live"}
    assert call("GET", "/readyz").json == {"status": "ready"}
    assert call("GET", "/").status == 200


def test_errors_are_json(call: Caller) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/schemas/ids/one", 404),
        ("PATCH", "/subjects", 405),
        ("GET", "/subjects?deleted=perhaps", 400),
        ("GET", "/subjects?limit=ten", 400),
    ):
        response = call(method, path)
        assert (response.status, response.code) == (status, status)
    for raw in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000):
        assert call("POST", "/subjects/x/versions", raw=raw).code == 400


def test_schemas_that_would_take_too_long(call: Caller) -> None:
    deep = '{"type":"array","items":' * 5_000 + '"int"' + "}" * 5_000
    assert call("POST", "/subjects/deep/versions", {"schema": deep}).status == 422
    for depth in (200, 400, 600, 900):
        nested = '{"properties":{"a":' * depth + "true" + "}}" * depth
        body = {"schema": nested, "schemaType": "JSON"}
        assert call("POST", f"/subjects/deep-{depth}/versions", body).status in (200, 422)
        other = {"schema": nested.replace("true", '{"type":"string"}'), "schemaType": "JSON"}
        assert call("POST", f"/compatibility/subjects/deep-{depth}/versions/latest", other).status in (200, 422)
    # Thirty levels, each with two ways to the next: small, and yet a billion paths.
    levels = {f"L{number}": {"anyOf": [{"$ref": f"#/definitions/L{number + 1}"}] * 2} for number in range(30)}
    for end, expected in (("string", 200), ("integer", 409)):
        definitions = levels | {"L30": {"type": "object", "properties": {"a": {"type": end}}}}
        wide = {"$ref": "#/definitions/L0", "definitions": definitions}
        body = {"schema": json.dumps(wide), "schemaType": "JSON"}
        assert call("POST", "/subjects/wide/versions", body).status == expected


def test_halves_of_characters_are_refused(call: Caller) -> None:
    for path, body in (
        ("/topics", rb'{"name": "\ud800"}'),
        ("/topics", rb'{"name": "x", "configs": {"a": "\ud800"}}'),
        ("/consumers/g/subscribe", rb'{"topics": ["\ud800"]}'),
    ):
        response = call("POST", path, raw=body)
        assert (response.status, response.json["hint"]) == (400, "send whole characters"), path


def test_numbers_that_are_too_long_are_refused(call: Caller) -> None:
    for path in ("/schemas/ids/{}", "/schemas/ids/{}/versions", "/subjects/s/versions/{}", "/subjects?limit={}"):
        response = call("GET", path.format("9" * 5000))
        assert 400 <= response.status < 500, path
    for name in ("NaN", "Infinity", "-Infinity"):
        body = b'{"schema": "\\"string\\"", "metadata": {"properties": {"a": %s}}}' % name.encode()
        assert call("POST", "/subjects/no-number/versions", raw=body).status == 400
    assert call("GET", "/subjects/no-number/versions").status == 404


def _told(gateway: Gateway, *pieces: bytes) -> bytes:
    """All that is sent until the gateway closes the connection."""
    host, port = gateway.address.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # it was closed meanwhile
        response = b""
        try:
            while found := connection.recv(4096):
                response += found
        except ConnectionResetError:
            pass
    return response


def test_heads_have_a_limit(gateway: Gateway, call: Caller) -> None:
    begin = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    for endless in (begin + b"X: ", begin, b"GET /"):
        filler = b"a" * 40_000 if endless != begin else b"a: b\r\n" * 7_000
        response = _told(gateway, endless, filler, filler)
        assert not response or b" 431 " in response or b" 400 " in response, endless
    whole = begin + b"X: " + b"a" * 30_000 + b"\r\n"
    response = _told(gateway, whole + b"\r\n", whole + b"Connection: close\r\n\r\n")
    assert response.count(b"200 OK") == 2, "each request has a head of its own"
    assert call("GET", "/livez").status == 200


def test_heads_have_a_time(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(careful_http, "HEAD_TIMEOUT_SECONDS", 0.3)
    for begin in (b"", b"GET / HT", b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT"):
        response = _told(gateway, begin)
        assert b" 408 " in response and b"send it faster" in response, begin
    whole = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert _told(gateway, whole).count(b"HTTP/1.1 ") == 1, "one that waits for the next request is only closed"


def test_what_is_not_http_gets_json(gateway: Gateway) -> None:
    for nonsense in (b"\x00\x00\x00\x12nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n"):
        head, _, body = _told(gateway, nonsense).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head, nonsense
        assert json.loads(body)["error_code"] == 400 and json.loads(body)["hint"]


def test_probes_need_no_host(gateway: Gateway) -> None:
    """Load balancers probe with HTTP/1.0."""
    for path in (b"/livez", b"/readyz"):
        assert b" 200 OK" in _told(gateway, b"GET %b HTTP/1.0\r\n\r\n" % path)
    assert b" 421 " in _told(gateway, b"GET /topics HTTP/1.0\r\n\r\n")
    assert b" 421 " in _told(gateway, b"GET /livez HTTP/1.0\r\nHost: evil.example\r\n\r\n")


def test_bodies_may_be_gzip_within_the_limits(call: Caller) -> None:
    schema = json.dumps({"schema": '{"type": "string"}'}).encode()
    halves = gzip.compress(schema[:10]) + gzip.compress(schema[10:])  # several members are one body
    for body in (gzip.compress(schema), halves):
        given = call("POST", "/subjects/zipped/versions", raw=body, headers={"Content-Encoding": "gzip"})
        assert given.status == 200, given.body
    bomb = gzip.compress(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    refused = call("POST", "/subjects/zipped/versions", raw=bomb, headers={"Content-Encoding": "gzip"})
    assert refused.code == 413
    produced = call("POST", "/v1/topics/zipped/produce", raw=bomb, headers={"Content-Encoding": "gzip"})
    assert produced.status == 413
    for broken in (b"no gzip", gzip.compress(schema)[:-9], gzip.compress(schema) + b"rest"):
        response = call("POST", "/subjects/zipped/versions", raw=broken, headers={"Content-Encoding": "gzip"})
        assert response.code == 400 and "gzip" in response.json["message"], broken
    endless = gzip.compress(b"") * 5000 + gzip.compress(schema)  # no limit on the plain body ends it
    response = call("POST", "/subjects/zipped/versions", raw=endless, headers={"Content-Encoding": "gzip"})
    assert response.code == 400 and "empty members" in response.json["message"]
    for other in ("br", "gzip, gzip", "deflate"):
        response = call("POST", "/subjects/zipped/versions", raw=schema, headers={"Content-Encoding": other})
        assert (response.code, response.headers["accept-encoding"]) == (415, "gzip")
    record = json.dumps({"records": [{"value": {"n": 1}}]}).encode()
    call("POST", "/topics", {"name": "zipped-topic", "partitions": 1})
    sent = call(
        "POST", "/v1/topics/zipped-topic/produce", raw=gzip.compress(record), headers={"Content-Encoding": "gzip"}
    )
    assert sent.status == 200, sent.body
    cluster_id = call("GET", "/v3/clusters").json["data"][0]["cluster_id"]
    path = f"/v3/clusters/{cluster_id}/topics/zipped-topic/records"
    one = gzip.compress(b'{"value": {"type": "JSON", "data": {"n": 2}}}')
    assert call("POST", path, raw=one, headers={"Content-Encoding": "gzip"}).json["offset"] == 1
    assert b"not gzip" in call("POST", path, raw=one[:-9] + b"x", headers={"Content-Encoding": "gzip"}).body


def test_bodies_have_a_limit(call: Caller) -> None:
    response = call("POST", "/subjects/x/versions", raw=b"x" * (5 << 20))
    assert response.code == 413 and "send less" in response.json["message"]


def test_a_schema_that_the_topic_cannot_take(call: Caller) -> None:
    response = call("POST", "/subjects/x/versions", {"schema": f'{{"type":"string","doc":"{"x" * (2 << 20)}"}}'})
    assert response.code == 42209 and "max.message.bytes" in response.json["message"]
    assert call("POST", "/subjects/small/versions", {"schema": '"string"'}).status == 200, "nothing is stuck"


def test_responses_have_the_requested_type(call: Caller) -> None:
    kind = "application/vnd.schemaregistry.v1+json"
    assert call("GET", "/subjects").headers["content-type"] == kind
    assert (
        call("GET", "/subjects", headers={"Accept": "application/json"}).headers["content-type"] == "application/json"
    )


def test_pages_of_other_sites_may_not_change_anything(call: Caller) -> None:
    body = {"schema": '"string"'}
    assert call("POST", "/subjects/csrf/versions", body, {"Origin": "https://evil.example"}).code == 403
    assert call("POST", "/subjects/csrf/versions", body, {"Origin": f"http://{call.address}"}).status == 200
    assert call("GET", "/subjects", headers={"Host": "evil.example"}).code == 421
    assert call("GET", "/subjects", headers={"Host": "localhost:1"}).status == 200


def test_requests_need_credentials_and_probes_do_not(broker: EmbeddedBroker) -> None:
    with Gateway(GatewayOptions(broker.bootstrap_servers, credentials=PEOPLE)) as gateway:
        call = Caller(gateway.address)
        assert call("GET", "/livez").status == 200
        refused = call("GET", "/subjects")
        assert refused.code == 40101 and "www-authenticate" in refused.headers
        assert call("GET", "/subjects", headers={"Authorization": "Bearer t0ken"}).status == 200
        assert call("GET", "/subjects", headers={"Authorization": "Bearer t0ke"}).status == 401
        assert call("GET", "/subjects", headers={"Authorization": "Basic YW5uOnNlOmNyZXQ="}).status == 200
        assert call("GET", "/subjects", headers={"Authorization": "Basic !!"}).status == 401
        assert call("GET", "/nowhere").status == 401, "nothing is told to strangers"


def test_files_with_credentials_are_parsed_or_refused() -> None:
    assert Credentials((("ann", "se:cret"),), ((unnamed_token("t0ken"), "t0ken"),)) == PEOPLE
    for text in (
        "",
        "# nobody\n",
        "basic ann\n",
        "digest x\n",
        "bearer\n",
        "bearer a:\n",
        "bearer :t\n",
        "bearer t\nbearer b:t",
    ):
        with pytest.raises(CredentialsError):
            read_credentials(text)


def test_every_token_is_a_caller_of_its_own(broker: EmbeddedBroker) -> None:
    people = read_credentials("bearer robot:t-1\nbearer other:t-2\nbearer t-3\nbearer t-4\n")
    rules = parse_rules('[roles]\ndefault = "viewer"\nusers = { robot = "admin", other = "operator" }\n')
    options = GatewayOptions(
        broker.bootstrap_servers, credentials=people, rules=rules, schemas_topic="_schemas_of_tokens"
    )
    with Gateway(options) as gateway:
        call = Caller(gateway.address)
        robot, other, third, fourth = ({"Authorization": f"Bearer t-{number}"} for number in (1, 2, 3, 4))
        assert call("POST", "/topics", {"name": "of-the-robot"}, robot).status == 201
        assert "other has the role operator" in call("POST", "/topics", {"name": "no"}, other).json["message"]
        messages = {call("POST", "/topics", {"name": "no"}, each).json["message"] for each in (third, fourth)}
        assert len(messages) == 2 and not any(token in "".join(messages) for token in ("t-3", "t-4"))
        asked = {"topics": ["of-the-robot"], "instance_id": "one"}
        assert call("POST", "/consumers/g-tokens/subscribe", asked, robot).status == 200
        assert call("GET", "/consumers/g-tokens/poll?instance_id=one", headers=other).status == 404
        assert call("DELETE", "/consumers/g-tokens?instance_id=one", headers=other).status == 404
        assert call("DELETE", "/consumers/g-tokens?instance_id=one", headers=robot).status == 204


def test_the_gateway_has_metrics_of_its_own(broker: EmbeddedBroker) -> None:
    options = GatewayOptions(broker.bootstrap_servers, credentials=PEOPLE, schemas_topic="_schemas_of_metrics")
    with Gateway(options) as gateway:
        call = Caller(gateway.address)
        token = {"Authorization": "Bearer t0ken"}
        assert call("GET", "/metrics").status == 401
        assert call("GET", "/topics", headers={"Authorization": "Bearer t0ke"}).status == 401
        assert call("GET", "/topics", headers={"Authorization": "Basic !!"}).status == 401
        assert call("GET", "/topics", headers=token).status == 200
        page = call("GET", "/metrics", headers=token)
        assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        counts = {name: value for name, _, value in (line.rpartition(" ") for line in page.body.decode().splitlines())}
        checks = "millstream_gateway_authentications_total"
        assert counts[f'{checks}{{method="bearer",result="failed"}}'] == "1"
        assert counts[f'{checks}{{method="basic",result="failed"}}'] == "1"
        assert counts[f'{checks}{{method="bearer",result="succeeded"}}'] == "2"
        assert counts['millstream_gateway_responses_total{status="4xx"}'] == "3"
        assert counts["millstream_gateway_ready"] == "1"


def test_masks_that_would_hide_nothing_are_refused(broker: EmbeddedBroker) -> None:
    masks = '[[masks]]\ntopics = ["a"]\nfields = ["value.card"]\n'
    with pytest.raises(GatewayError, match="every caller is admin"):
        Gateway(GatewayOptions(broker.bootstrap_servers, rules=parse_rules(masks))).start()


def test_tokens_in_any_letters() -> None:
    people = read_credentials("bearer schlüssel\nbasic zoë:gehëim\n")
    assert people.admit("Bearer " + "schlüssel".encode().decode("latin-1"))
    assert people.admit("Basic " + base64.b64encode("zoë:gehëim".encode()).decode())
    assert not people.admit("Bearer schl?ssel") and not people.admit("Bearer schl\u2603ssel")


def test_other_addresses_want_credentials(broker: EmbeddedBroker) -> None:
    with pytest.raises(GatewayError, match="--insecure"):
        Gateway(GatewayOptions(broker.bootstrap_servers, host="0.0.0.0")).start()
    with Gateway(GatewayOptions(broker.bootstrap_servers, host="0.0.0.0", insecure=True)) as gateway:
        call = Caller(f"127.0.0.1:{gateway.address.rpartition(':')[2]}")
        assert call("GET", "/subjects", headers={"Host": "any.name"}).status == 200


def test_an_address_that_is_taken(gateway: Gateway, broker: EmbeddedBroker) -> None:
    port = int(gateway.address.rpartition(":")[2])
    with pytest.raises(GatewayError, match="choose another address"):
        Gateway(GatewayOptions(broker.bootstrap_servers, port=port)).start()


def test_the_gateway_serves_tls(broker: EmbeddedBroker, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    options = GatewayOptions(broker.bootstrap_servers, certificate=str(certificate), key=str(key))
    with Gateway(options) as gateway:
        import urllib.request

        context = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(f"{gateway.url}/livez", context=context, timeout=TIMEOUT_SECONDS) as response:
            assert response.status == 200


@pytest.mark.timeout(300)
def test_a_broker_that_goes_and_comes_back() -> None:
    with EmbeddedBroker() as broker, Gateway(GatewayOptions(broker.bootstrap_servers, timeout_s=5)) as gateway:
        call = Caller(gateway.address)
        schema_id = call("POST", "/subjects/s/versions", {"schema": '"string"'}).json["id"]
        broker.stop()
        assert call("GET", f"/schemas/ids/{schema_id}").status == 200, "what is known is returned"
        refused = call("POST", "/subjects/s/versions", {"schema": '"int"'})
        assert (refused.status, refused.code) == (500, 50002)
        assert call("GET", "/livez").status == 200
        while call("GET", "/readyz").status != 503:
            time.sleep(0.2)
        broker.start()
        call("PUT", "/config", {"compatibility": "NONE"})
        assert call("POST", "/subjects/s/versions", {"schema": '"int"'}).json == {"id": schema_id + 1}


def test_the_gateway_serves_the_schema_command(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["gateway", "-b", broker.bootstrap_servers, "--http", "127.0.0.1:0", "--schemas-topic", "cli-schemas"]
    command += ["--limit", "max_streams=0", "--limit", "max_consumers=5"]
    server = subprocess.Popen(
        [sys.executable, "-m", "millstream", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready.startswith("ready http=127.0.0.1:")
        url = "http://" + ready.strip().partition("=")[2]

        def schema(*words: str) -> tuple[int, str, str]:
            code = run_app(["schema", *words, "--registry", url])
            return code, *capsys.readouterr()

        first, second, bad = tmp_path / "one.avsc", tmp_path / "two.avsc", tmp_path / "bad.txt"
        first.write_text('{"type":"record","name":"R","fields":[]}')
        second.write_text('{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}')
        bad.write_text("x")
        assert schema("register", "orders-value", str(first)) == (0, "1\n", "")
        code, _, complaint = schema("check", "orders-value", str(second))
        assert code == 1 and "give it one" in complaint
        assert schema("check", "orders-value", str(first)) == (0, "compatible\n", "")
        code, _, complaint = schema("register", "orders-value", str(second))
        assert code == 1 and "READER_FIELD_MISSING_DEFAULT_VALUE" in complaint
        assert "orders-value" in schema("list")[1]
        assert json.loads(schema("list", "orders-value", "--json")[1])[0]["version"] == 1
        assert schema("get", "orders-value") == (0, first.read_text() + "\n", "")
        assert schema("get", "1") == (0, first.read_text() + "\n", "")
        assert schema("get", "nothing")[0] == exit_codes.NOT_FOUND
        assert schema("register", "x", str(bad))[0] == exit_codes.USAGE
        assert schema("register", "x", str(first), "--reference", "what")[0] == exit_codes.USAGE

        call = Caller(url.removeprefix("http://"))
        refused = call("GET", "/topics/cli-schemas/stream")
        assert refused.status == 429 and refused.json["message"].startswith("0 streams")

        seen = call("GET", "/console/no/such/page", headers={"Accept": "text/html,*/*;q=0.8"})
        assert (seen.status, seen.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert b'<a href="/console">' in seen.body
        told = call("GET", "/console/no/such/page")
        assert (told.status, told.code) == (404, 404) and "/console" in told.json["hint"]
        assert call("HEAD", "/console/no/such/page", headers={"Accept": "text/html"}).body == b""
    finally:
        server.terminate()
        assert server.wait(TIMEOUT_SECONDS) == 0
        assert server.stdout is not None
        server.stdout.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--http", "nowhere"], "HOST:PORT"),
        (["--http", "0.0.0.0:0"], "--insecure"),
        (["--tls-cert", "x"], "--tls-key"),
        (["--auth-file", "{people}"], "line 1"),
        (["--limit", "max_streams=few"], "--limit max_streams=few: give an integer"),
    ],
)
def test_wrong_options_are_usage_errors(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = tmp_path / "people"
    people.write_text("ann:secret")
    people.chmod(0o600)
    code = run_app(["gateway", *(word.format(people=people) for word in words)])
    assert code == exit_codes.USAGE
    assert says in capsys.readouterr().err

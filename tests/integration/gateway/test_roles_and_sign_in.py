"""Roles on every route, and sign-in to the console by OpenID Connect with a small provider on loopback."""

import base64
import http.client
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from millstream.access.roles import Role
from millstream.access.rules_file import parse_rules
from millstream.gateway.http.configuration import read_credentials
from millstream.gateway.http.routes import DocumentedRoute
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.integration.gateway.conftest import Caller
from tests.oidc import Provider
from tests.system.console.conftest import GatewayProcess
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
PEOPLE = "basic vera:v\nbasic otto:o\nbasic ada:a\nbasic nora:n\nbasic mona:m\n"
ROLES = '[roles]\nusers = { vera = "viewer", otto = "operator", ada = "admin", ann = "viewer", mona = "admin" }\n'
SUBJECTS = """
[[subjects]]
principals = ["User:vera"]
subjects = ["open-*"]
[[subjects]]
principals = ["User:ada", "User:otto"]
subjects = ["*"]
operations = ["read", "write", "delete", "compat"]
"""
MASKS = """
[[masks]]
topics = ["pay"]
fields = ["value.card"]
[[masks]]
topics = ["typed-*"]
fields = ["value.card.number", "headers.authorization"]
"""
AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "shop", "type": "string"},
        {
            "name": "card",
            "type": {"type": "record", "name": "Card", "fields": [{"name": "number", "type": ["null", "string"]}]},
        },
    ],
}
PROTOBUF = """syntax = "proto3";
message Payment { string shop = 1; Card card = 2; message Card { string number = 1; } }
"""


def basic(name: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{name[0]}".encode()).decode()}


PEOPLE_BY_ROLE = {Role.NONE: "nora", Role.VIEWER: "vera", Role.OPERATOR: "otto", Role.ADMIN: "ada"}
OPERATORS = re.compile(
    r"/topics/[^/]+/messages(/batch)?$|/produce$|/records(:batch)?$|/consumers/[^/]+|/(share-)?groups/[^/]+/offsets$"
    r"|/subjects/[^/]+/versions$|/mirrors/[^/]+/(pause|resume|verify)$"
    r"|^/topics/[^/]+(/partitions/[^/]+)?$"
)
QUESTIONS = re.compile(r"^/compatibility/|^/subjects/[^/]+$|^/v1/sql(/pipeline)?$")


def expected_role(method: str, path: str) -> Role:
    """Written down a second time, on purpose: a new route must be thought about."""
    if method == "GET":
        return Role.OPERATOR if path.endswith("/poll") else Role.VIEWER
    if method == "POST" and QUESTIONS.search(path):
        return Role.VIEWER
    if OPERATORS.search(path) and (method == "POST" or path.startswith("/consumers/")):
        return Role.OPERATOR
    return Role.ADMIN


@pytest.fixture(scope="module")
def guarded(broker: EmbeddedBroker) -> Iterator[Gateway]:
    options = GatewayOptions(
        broker.bootstrap_servers,
        credentials=read_credentials(PEOPLE),
        rules=parse_rules(ROLES + SUBJECTS + MASKS),
        schemas_topic="_schemas_of_roles",
    )
    with Gateway(options) as running:
        yield running


def test_every_route_checks_its_role(guarded: Gateway) -> None:
    ask = Caller(guarded.address)
    paths: dict[str, dict[str, Any]] = ask("GET", "/openapi.json", headers=basic("ada")).json["paths"]
    routes = [
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if method in ("get", "post", "put", "patch", "delete") and path not in ("/livez", "/readyz")
    ]
    assert len(routes) > 60
    for method, path in routes:
        lowest = expected_role(method, path)
        place = re.sub(r"\{[^}]*\}", "1", path)
        for role, name in PEOPLE_BY_ROLE.items():
            if role >= lowest:
                continue  # it would be done; other tests do it
            response = ask(method, place, {}, basic(name))
            assert (response.status, response.json["error_code"]) == (403, 40302), (method, path, name, response.body)
    assert ask("GET", "/topics", headers=basic("vera")).status == 200
    assert ask("POST", "/topics", {"name": "made-by-ada"}, basic("ada")).status == 201


def test_the_roles_of_routes_are_in_the_routes() -> None:
    assert DocumentedRoute.__init__.__annotations__["role"] is Role


def test_subjects_have_permissions(guarded: Gateway) -> None:
    ask = Caller(guarded.address)
    schema = {"schema": '{"type": "string"}'}
    for subject in ("open-a", "closed-a"):
        assert ask("POST", f"/subjects/{subject}/versions", schema, basic("otto")).status == 200
    assert ask("GET", "/subjects", headers=basic("vera")).json == ["open-a"]
    refused = ask("GET", "/subjects/closed-a/versions/1", headers=basic("vera"))
    assert (refused.status, refused.json["error_code"]) == (403, 40301)
    assert "denied operation Read on Subject: closed-a" in refused.json["message"]
    assert [row["subject"] for row in ask("GET", "/schemas", headers=basic("vera")).json] == ["open-a"]
    other = {"schema": '{"type": "long"}'}
    secret = ask("POST", "/subjects/closed-b/versions", other, basic("otto")).json["id"]
    assert ask("GET", f"/schemas/ids/{secret}", headers=basic("vera")).json["error_code"] == 40301
    assert ask("GET", f"/schemas/ids/{secret}", headers=basic("ada")).status == 200
    linked = {"schema": '{"type": "string"}', "references": [{"name": "x", "subject": "closed-a", "version": 1}]}
    assert ask("POST", "/subjects/open-a", linked, basic("vera")).json["error_code"] == 40301


def test_streams_are_masked_for_those_without_the_right(guarded: Gateway) -> None:
    ask = Caller(guarded.address)
    ask("POST", "/topics", {"name": "pay", "partitions": 1}, basic("ada"))
    record = {"value": {"card": "4111", "n": 1}}
    assert ask("POST", "/v1/topics/pay/produce", {"records": [record]}, basic("ada")).status == 200

    def first(name: str, form: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(guarded.address, timeout=TIMEOUT_SECONDS)
        connection.request("GET", f"/topics/pay/stream?from=earliest&format={form}", headers=basic(name))
        response = connection.getresponse()
        while not (line := response.readline()).startswith(b"data:"):
            assert line
        connection.close()
        found: dict[str, Any] = json.loads(line[5:])
        return found

    assert first("ada", "json")["value"] == {"card": "4111", "n": 1}
    assert first("vera", "json")["value"] == {"card": "***", "n": 1}
    assert base64.b64decode(first("otto", "base64")["value"]) == b'{"card":"***","n":1}'


def test_no_route_of_the_registry_leads_around_the_permissions(guarded: Gateway) -> None:
    """By every route, also in a context: an admin of the gateway without any permission on subjects."""
    ask = Caller(guarded.address)
    schema = {"schema": '{"type": "enum", "name": "top_secret", "symbols": ["A"]}'}
    number = ask("POST", "/subjects/hidden/versions", schema, basic("ada")).json["id"]
    names = {"subject": "hidden", "version": "1", "id": str(number)}
    bodies: dict[str, Any] = {
        "/config": {"compatibility": "NONE"},
        "/config/{subject}": {"compatibility": "NONE"},
        "/mode": {"mode": "READONLY"},
        "/mode/{subject}": {"mode": "READONLY"},
    }
    paths: dict[str, dict[str, Any]] = ask("GET", "/openapi.json", headers=basic("ada")).json["paths"]
    roots = ("/schemas", "/contexts", "/subjects", "/compatibility", "/config", "/mode")
    walked = 0
    for path, methods in paths.items():
        for method in set(methods) & {"get", "post", "put", "delete"} if path.startswith(roots) else ():
            plain = re.sub(r"\{([^}]*)\}", lambda found: names[found[1]], path)
            for place in (plain, f"/contexts/.{plain}", plain.replace("/hidden", "/:.:hidden")):
                body = None if method == "get" else bodies.get(path, schema)
                response = ask(method.upper(), place, body, basic("mona"))
                walked += 1
                told = re.sub(rb"Subject: [^\"]*", b"", response.body)  # the name that was asked for
                assert b"top_secret" not in told and b"hidden" not in told, (method, place, response.body)
                if method != "get" or "{" in path:
                    assert response.status in (403, 404), (method, place, response.body)
    assert walked > 50
    found = ask("GET", "/subjects/hidden/versions/latest", headers=basic("ada")).json
    assert (found["version"], found["id"]) == (1, number), "nothing was changed"
    assert ask("GET", "/mode", headers=basic("ada")).json["mode"] == "READWRITE"


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "TEXT"])
def test_masks_hold_in_every_format_of_value_and_response(guarded: Gateway, kind: str) -> None:
    ask, topic, secret = Caller(guarded.address), f"typed-{kind.lower()}", "4111-2222"
    ask("POST", "/topics", {"name": topic, "partitions": 1}, basic("ada"))
    query = ""
    if kind != "TEXT":
        schema = json.dumps(AVRO) if kind == "AVRO" else PROTOBUF
        body = {"schema": schema, "schemaType": kind}
        assert ask("POST", f"/subjects/{topic}-value/versions", body, basic("ada")).status == 200
        query = "?value_format=schema"
    value: Any = {"shop": "north", "card": {"number": secret}} if query else f"card {secret}"
    record = {"value": value, "headers": {"authorization": f"Bearer {secret}"}}
    sent = ask("POST", f"/v1/topics/{topic}/produce{query}", {"records": [record]}, basic("ada"))
    assert sent.status == 200, sent.body
    hidden = (secret.encode(), base64.b64encode(secret.encode())[:10], secret.encode().hex().encode())
    for form in ("json", "text", "base64", "registry"):
        group = f"g-{kind}-{form}"
        for name, is_masked in (("otto", True), ("ada", False)):
            opened = {"topics": [topic], "auto_offset_reset": "earliest", "instance_id": name}
            assert ask("POST", f"/consumers/{group}-{name}/subscribe", opened, basic(name)).status == 200
            polled = ask(
                "GET",
                f"/consumers/{group}-{name}/poll?timeout_ms=20000&max_messages=1&format={form}",
                None,
                basic(name),
            )
            assert ask("DELETE", f"/consumers/{group}-{name}", headers=basic(name)).status == 204
            (found,) = polled.json["messages"]
            assert found.get("masked", False) is is_masked
            assert found["headers"]["authorization"] == ("***" if is_masked else f"Bearer {secret}")
            plain = polled.body + base64.b64decode(found["value"]) if form == "base64" else polled.body
            assert (secret.encode() in plain) is not is_masked, (form, polled.body)
            if is_masked:
                assert not any(each in plain for each in hidden)


def test_the_topic_of_the_registry_is_no_way_around_it(guarded: Gateway) -> None:
    """Its records are all schemas of all subjects; who writes them registers, changes and deletes anything."""
    ask, topic = Caller(guarded.address), "_schemas_of_roles"
    schema = {"schema": '{"type": "fixed", "name": "hidden_name", "size": 4}'}
    assert ask("POST", "/subjects/closed-c/versions", schema, basic("otto")).status == 200
    cluster_id = ask("GET", "/v3/clusters", headers=basic("ada")).json["data"][0]["cluster_id"]
    key = {"keytype": "SUBJECT", "magic": 0, "subject": "closed-c"}
    record = {"key": json.dumps(key), "value": None}
    for name in ("otto", "ada"):  # both are bound to rules for subjects
        for path, body in (
            (f"/topics/{topic}/messages", record),
            (f"/topics/{topic}/messages/batch", {"messages": [record]}),
            (f"/v1/topics/{topic}/produce", {"records": [record]}),
            (f"/v3/clusters/{cluster_id}/topics/{topic}/records", {"value": {"type": "STRING", "data": "x"}}),
        ):
            response = ask("POST", path, body, basic(name))
            assert b"schemas of the registry" in response.body, (name, path, response.body)
    branch = ask("POST", f"/topics/{topic}/branches", {"name": "schemas-to-read"}, basic("mona"))
    assert branch.status == 403 and b"hidden from you" in branch.body, branch.body
    assert ask("GET", "/topics/schemas-to-read", headers=basic("mona")).status == 404
    connection = http.client.HTTPConnection(guarded.address, timeout=TIMEOUT_SECONDS)
    connection.request("GET", f"/topics/{topic}/stream?from=earliest&format=text", headers=basic("vera"))
    stream = connection.getresponse()
    lines: list[bytes] = []
    while len(lines) < 3:
        line = stream.readline()
        assert line
        if line.startswith(b"data:"):
            lines.append(line)
    connection.close()
    for line in lines:
        found = json.loads(line[5:])
        assert (found["key"], found["value"]) == ("***", "***")


# OpenID Connect


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    running = Provider()
    yield running
    running.close()
    assert running.complaints == []


@pytest.fixture(scope="module")
def signed(
    broker: EmbeddedBroker, provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A process: the console cannot be loaded here, where warnings are errors."""
    directory = tmp_path_factory.mktemp("signed")
    rules = directory / "access.toml"
    rules.write_text(ROLES + provider.access_rules())
    rules.chmod(0o600)
    options = ("--access-file", str(rules), "--schemas-topic", "_schemas_of_sign_in")
    running = GatewayProcess(broker.bootstrap_servers, directory / "gateway.log", *options)
    yield running
    running.stop()


class Browser:
    """Keeps cookies and follows no redirects by itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookies: dict[str, str] = {}

    def __call__(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> Any:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_SECONDS)
        given = {"Accept": "text/html", "Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        if form is not None:
            given["Content-Type"] = "application/x-www-form-urlencoded"
        body = None if form is None else urlencode(form)
        connection.request(method, path, body, given | {name.replace("_", "-"): each for name, each in headers.items()})
        response = connection.getresponse()
        text = response.read().decode()
        for line in response.headers.get_all("set-cookie") or ():
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies.pop(name, None)
            if value:
                self.cookies[name] = value
        connection.close()
        return response.status, response.headers, text

    def sign_in(self, provider: Provider, return_to: str = "/console/topics") -> tuple[int, str]:
        status, headers, _ = self("GET", "/console/sign-in/start?" + urlencode({"next": return_to}))
        assert status == 303 and headers["location"].startswith(provider.issuer)
        outside = http.client.HTTPConnection(urlsplit(provider.issuer).netloc, timeout=TIMEOUT_SECONDS)
        url = urlsplit(headers["location"])
        outside.request("GET", f"{url.path}?{url.query}")
        back = urlsplit(outside.getresponse().headers["location"])
        outside.close()
        status, headers, _ = self("GET", f"{back.path}?{back.query}")
        return status, headers.get("location", "")


def test_the_console_needs_a_session_and_programs_have_none(signed: GatewayProcess) -> None:
    browser = Browser(signed.url.removeprefix("http://"))
    status, headers, _ = browser("GET", "/console/topics?topic=a")
    assert (status, headers["location"]) == (303, "/console/sign-in?next=%2Fconsole%2Ftopics%3Ftopic%3Da")
    assert Caller(signed.url.removeprefix("http://"))("GET", "/topics").status == 401
    _, headers, page = browser("GET", "/console/sign-in")
    assert "single sign-on" in page and "frame-ancestors 'none'" in headers["content-security-policy"]


def test_a_user_signs_in_and_out(signed: GatewayProcess, provider: Provider) -> None:
    browser = Browser(signed.url.removeprefix("http://"))
    browser.cookies["millstream_session"] = planted = "planted-by-another.0000"  # session fixation
    assert browser.sign_in(provider) == (303, "/console/topics")
    cookie = browser.cookies["millstream_session"]
    assert cookie != planted
    status, _, page = browser("GET", "/console/topics")
    assert status == 200 and "ann · viewer" in page
    assert browser("POST", "/console/sign-out", {"csrf": "guessed"})[0] == 403  # CSRF
    assert browser("POST", "/console/sign-out", {"csrf": "x"}, Origin="http://evil.example")[0] == 403
    token = re.search(r'name="csrf" value="([^"]+)"', browser("GET", "/console/sign-out")[2])
    assert token is not None
    assert browser("POST", "/console/sign-out", {"csrf": token[1]})[0] == 303
    browser.cookies["millstream_session"] = cookie  # kept by someone: it is worth nothing now
    assert browser("GET", "/console/topics")[0] == 303


def test_the_cookie_opens_the_console_only(signed: GatewayProcess, provider: Provider) -> None:
    browser = Browser(signed.url.removeprefix("http://"))
    browser.sign_in(provider)
    assert browser("GET", "/topics")[0] == 401


def test_the_return_address_cannot_lead_elsewhere(signed: GatewayProcess, provider: Provider) -> None:
    for bad in ("https://evil.example", "//evil.example", "/\\evil", "/console\r\nSet-Cookie: a=b"):
        assert Browser(signed.url.removeprefix("http://")).sign_in(provider, bad) == (303, "/console")


def test_a_code_of_another_browser_is_refused(signed: GatewayProcess, provider: Provider) -> None:
    """Login CSRF: a victim follows a link with the attacker's code and state."""
    browser = Browser(signed.url.removeprefix("http://"))
    status, _, page = browser("GET", "/console/sign-in/callback?code=a-code&state=chosen")
    assert status == 401 and "this browser" in page and "millstream_session" not in browser.cookies


def test_a_user_without_a_role_sees_nothing(signed: GatewayProcess, provider: Provider) -> None:
    provider.user = "mallory"
    try:
        browser = Browser(signed.url.removeprefix("http://"))
        browser.sign_in(provider)
        assert browser("GET", "/console/topics")[0] == 403
    finally:
        provider.user = "ann"


def test_behind_a_proxy_its_origin_is_ours(broker: EmbeddedBroker) -> None:
    options = GatewayOptions(broker.bootstrap_servers, origins=("https://console.example.com",))
    with Gateway(options) as running:
        ask = Caller(running.address)
        proxied = {"Host": "console.example.com", "Origin": "https://console.example.com"}
        assert ask("POST", "/topics", {"name": "by-proxy"}, proxied).status == 201
        assert ask("POST", "/topics", {"name": "c"}, proxied | {"Origin": "https://evil.example"}).status == 403
        assert ask("GET", "/topics", headers={"Host": "evil.example"}).status == 421

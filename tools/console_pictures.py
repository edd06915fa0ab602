"""Takes pictures of every page of the console, and lists what is wrong with its looks.

    python -m tools.console_pictures pictures/ --topics 1000 --partitions 5

Each page is taken at 1440 and 390 pixels, light and dark: first of an empty cluster without an authorizer, then of one
with an authorizer, topics, records, groups, schemas, users, ACLs and quotas, long names included. For each page it
prints texts that are cut without a tooltip, elements beyond the edge of the window, tables that have to be scrolled
sideways, and text with too little contrast (below 4.5 to 1).
"""

import argparse
import json
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.admin.acls import Acl, AclAdmin
from millstream.admin.mirrors import MirrorAdmin
from millstream.admin.quotas import QuotaAdmin
from millstream.admin.topics import TopicAdmin
from millstream.admin.users import UserAdmin
from millstream.console.console import ENTRIES
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tools import install_test_clients

_TIMEOUT_MS = 120_000
_SIZES: dict[str, Any] = {"1440": {"width": 1440, "height": 900}, "390": {"width": 390, "height": 844}}
_LONG = "a-very-long-name.of-a-department.of-a-team.of-an-application.with-a-version.and-a-country" * 2
_WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "order", "type": "int"}]}
_EMPTY = {entry.title.lower(): entry.path for entry in ENTRIES} | {
    f"access-{tab}": f"/access?tab={tab}" for tab in ("explain", "users", "tokens")
}
_FULL = _EMPTY | {
    "topic": "/topics?topic=orders",
    "topic-long": f"/topics?topic={_LONG}",
    "topic-settings": "/topics?topic=orders&tab=settings",
    "topic-readers": "/topics?topic=orders&tab=readers",
    "topic-missing": "/topics?topic=nowhere",
    "records": "/messages?topic=orders",
    "group": "/groups?group=billing",
    "group-long": f"/groups?group={_LONG}",
    "group-missing": "/groups?group=nowhere",
    "schema": "/schemas?subject=orders-value",
    "queue": "/queues?group=mailers",
    "queue-letters": "/queues?group=mailers",
    "mirror": "/mirrors?link=from-elsewhere",
    "broker": "/brokers?broker=1",
    "broker-loggers": "/brokers?broker=1&tab=loggers",
    "broker-missing": "/brokers?broker=99",
    "broker-setting": "/brokers?broker=1&filter=retention.ms",
    "brokers": "/brokers",
    "reassignments": "/reassignments",
    "place": "/reassignments?plan=place&topic=orders",
    "connect-java": "/connect?topic=orders&tool=Java",
    "sql-rows": "/sql?q=select%20customer,%20count(*)%20as%20orders%20from%20orders%20group%20by%20all",
    "sql-error": "/sql?q=select%20total%20from%20orders",
    "navigation": "/topics",
    "record": "/messages?topic=orders",
    "produce": "/messages?topic=orders",
    "filter-error": "/messages?topic=orders&filter=total%20%3D%3D%205",
    "new-topic": "/topics",
    "delete-records": "/topics?topic=orders",
    "delete-topic": "/topics?topic=orders",
    "branch": "/topics?topic=orders",
    "move-offsets": "/groups?group=billing",
    "new-schema": "/schemas",
    "new-acl": "/access",
    "new-user": "/access?tab=users",
    "new-quota": "/quotas",
    "new-link": "/mirrors",
    "keys": "/topics",
}
_CLICKS = {
    "queue-letters": "open-letters",
    "sql-rows": "sql-run",
    "sql-error": "sql-run",
    "broker-setting": "broker-settings] a[href='#'",
    "record": "records] tbody a[href",
    "produce": "open-write",
    "new-topic": "open-create",
    "delete-records": "open-delete-records",
    "delete-topic": "delete-topic",
    "branch": "branch-topic",
    "move-offsets": "open-reset",
    "new-schema": "open-register",
    "new-acl": "open-acl",
    "new-user": "open-user",
    "new-quota": "open-quota",
    "new-link": "open-create-link",
    "reassignments": "plan-preview",
}
"""What is clicked before the pictures, by its test id."""
_FAULTS = """() => {
  const found = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1)
    found.push(`the page is ${document.documentElement.scrollWidth} px wide, the window ${width}`);
  const name = (e) => `${e.tagName.toLowerCase()}.${[...e.classList].slice(0, 2).join(".")} ` +
    JSON.stringify((e.innerText ?? "").trim().slice(0, 40));
  const scrolls = (e) => { for (let p = e.parentElement; p; p = p.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(p).overflowX) && p.scrollWidth > p.clientWidth) return true; };
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (e) => { for (let p = e; p; p = p.parentElement) {
    const c = rgb(getComputedStyle(p).backgroundColor);
    if (c.length < 4 || c[3] > .9) return c; } return [255, 255, 255]; };
  for (const e of document.querySelectorAll(".q-table__middle"))
    if (e.scrollWidth > e.clientWidth + 1) found.push(`columns beyond the edge of the table: ${name(e)}`);
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect(), style = getComputedStyle(e);
    if (!box.width || !box.height || style.visibility === "hidden") continue;
    if (e.closest(".q-drawer, .q-icon, .q-tabs, svg, canvas")) continue;
    if (box.right > width + 1 && !scrolls(e)) found.push(`beyond the edge: ${name(e)}`);
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own) continue;
    const told = e.closest("[title], .ms-records, .q-field");
    if (style.overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1 && !told)
      found.push(`cut: ${name(e)}`);
    if (style.opacity === "0" || e.closest(".disabled, [disabled]")) continue;
    const [a, b] = [light(rgb(style.color)), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.45) found.push(`contrast ${ratio.toFixed(1)}: ${name(e)}`);
  }
  return [...new Set(found)].slice(0, 12);
}"""


@contextmanager
def _gateway(bootstrap: str) -> Iterator[str]:
    command = [sys.executable, "-m", "millstream", "gateway", "--bootstrap", bootstrap, "--http", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--exit-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], 120)[0]:
            raise SystemExit("the gateway did not start within two minutes")
        yield "http://" + process.stdout.readline().decode().partition("=")[2].strip()
    finally:
        process.terminate()
        process.wait(60)


def _fill(bootstrap: str, url: str, topics: int, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = ["orders", _LONG, *(f"bench-{number:04d}" for number in range(topics - 2))]
    for begin in range(0, len(names), 100):
        wanted = [NewTopic(name, partitions, 1) for name in names[begin : begin + 100]]
        for made in admin.create_topics(wanted, operation_timeout=120).values():
            made.result(180)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(500):
        value = {"order": number, "customer": f"customer-{number % 7}", "note": "long text " * 30}
        producer.produce("orders", json.dumps(value).encode(), key=f"customer-{number % 7}")
    producer.flush(60)
    for group in ("billing", _LONG):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        consumer.consume(100, 30)
        consumer.commit(asynchronous=False)
        consumer.close()
    body = json.dumps({"schema": json.dumps(_SCHEMA)}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/subjects/orders-value/versions", body, headers)
    urllib.request.urlopen(request, timeout=60).close()
    with Cluster(bootstrap) as cluster:
        QuotaAdmin(cluster).alter({"user": _LONG, "client-id": None}, {"producer_byte_rate": 1e9})
        UserAdmin(cluster).add(_LONG, "only for pictures")
        operation, permission = AclOperation.READ, AclPermission.ALLOW
        for name, pattern in (("orders", AclPatternType.LITERAL), (_LONG, AclPatternType.PREFIXED)):
            acl = Acl(f"User:{_LONG}", AclResourceType.TOPIC, name, pattern, operation, permission, "*")
            AclAdmin(cluster).add([acl])
        MirrorAdmin(cluster).create("from-elsewhere", {"bootstrap.servers": "127.0.0.1:1", "topics": "orders.*"})
        _fill_queue(bootstrap, cluster)


def _fill_queue(bootstrap: str, cluster: Cluster) -> None:
    """A share group that has rejected some records."""
    settings = {"errors.deadletterqueue.topic.name": "dlq.mails", "share.auto.offset.reset": "earliest"}
    configs = [{"name": name, "config_operation": 0, "value": value} for name, value in settings.items()]
    resource = {"resource_type": 32, "resource_name": "mailers", "configs": configs}
    cluster.call("incremental_alter_configs", resources=[resource], validate_only=False)
    TopicAdmin(cluster).create("dlq.mails", 1, 1, configs={"errors.deadletterqueue.group.enable": "true"})
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": "mailers", "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe(["orders"])
    rejected, deadline = 0, time.monotonic() + 60
    while rejected < 20 and time.monotonic() < deadline:
        for record in consumer.poll(1.0):
            rejected += 1
            consumer.acknowledge(record, AcknowledgeType.REJECT if rejected <= 20 else AcknowledgeType.RELEASE)
        consumer.commit_sync()
    consumer.close()


def _take(browser: Any, url: str, pages: dict[str, str], directory: Path, tag: str) -> int:
    """The theme changes while a page is open. The size does too, except under a dialog, which keeps the old layout."""
    faults = 0
    context = browser.new_context(viewport=_SIZES["1440"])
    context.set_default_timeout(_TIMEOUT_MS)
    page = context.new_page()
    for name, path in pages.items():
        for number, (size, viewport) in enumerate(_SIZES.items()):
            page.set_viewport_size(viewport)
            if number == 0 or name in _CLICKS or name == "keys":
                _open(page, f"{url}/console{path}", name)
            if name == "navigation" and size == "390":
                page.get_by_label("Navigation").click()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(500)
                page.screenshot(path=directory / f"{tag}-{name}-{size}-{scheme}.png", full_page=True)
                for fault in page.evaluate(_FAULTS):
                    print(f"{tag} {name} {size} {scheme}: {fault}", flush=True)
                    faults += 1
    context.close()
    return faults


def _open(page: Any, address: str, name: str) -> None:
    page.goto(address)
    page.wait_for_selector("[data-testid=page-title]")
    page.wait_for_function("window.socket?.connected")
    page.wait_for_timeout(2500)  # until what is read beside the page is shown
    if name in _CLICKS:
        page.locator(f"[data-testid={_CLICKS[name]}]").first.click()
        page.wait_for_timeout(2500)
    if name == "keys":
        page.keyboard.press("?")


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=5, help="of each topic")
    parser.add_argument("--only", choices=("empty", "full"))
    parser.add_argument("--pages", help="names of pages, separated by commas; all if not given")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    chosen = set(options.pages.split(",")) if options.pages else None
    (program,) = install_test_clients.chromium().command
    arguments = ["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1"]
    faults = 0
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program, args=arguments) as browser,
    ):
        for tag, every in (("empty", _EMPTY), ("full", _FULL)):
            pages = {name: path for name, path in every.items() if chosen is None or name in chosen}
            if options.only not in (None, tag):
                continue
            settings = _WITH_ACLS if tag == "full" else {}
            with EmbeddedBroker(settings) as broker, _gateway(broker.bootstrap_servers) as url:
                if tag == "full":
                    _fill(broker.bootstrap_servers, url, options.topics, options.partitions)
                    time.sleep(10)  # until the console has read all of it
                faults += _take(browser, url, pages, options.directory, tag)
    print(f"{faults} faults")


if __name__ == "__main__":
    main()

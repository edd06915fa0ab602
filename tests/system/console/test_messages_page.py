"""Messages in a real browser: newest, jumps, filters, live, schemas, hostile and huge records, writing one."""

import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from millstream.testing import EmbeddedCluster
from tests.system.console.conftest import GatewayProcess, Looking, choose
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)

HOSTILE = (
    b"""<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>"""
    b"""{{ constructor.constructor('window.hurt=1')() }}"""
)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "city", "type": "string"},
            {"name": "total", "type": "double"},
        ],
    }
)


@pytest.fixture(scope="module")
def producer(cluster: EmbeddedCluster) -> Iterator[Any]:
    running = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5, "message.max.bytes": 2_000_000})
    yield running
    running.flush(TIMEOUT_SECONDS)


class Payments(NamedTuple):
    topic: str
    began_ms: int
    """Sixty payments from then on, one a second; forty seconds later, five other records."""


@pytest.fixture(scope="module")
def payments(producer: Any, gateway: GatewayProcess, make_topic: Callable[..., str]) -> Payments:
    """Avro through the registry, JSON, text, bytes, a tombstone, something hostile and something huge."""
    with warnings.catch_warnings():
        from authlib.deprecate import AuthlibDeprecationWarning

        # A library of Confluent's client warns of its own when it is imported.
        warnings.simplefilter("ignore", AuthlibDeprecationWarning)
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

    topic = make_topic("payments", 3)
    field = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": gateway.url}) as client:
        serialize = AvroSerializer(client, AVRO)
        values = [
            serialize({"id": number, "city": "Zürich" if number % 10 == 0 else "Wien", "total": number + 0.25}, field)
            for number in range(60)
        ]
    began = int(time.time() * 1000) - 3_600_000
    for number, value in enumerate(values):
        producer.produce(
            topic, value, key=f"customer-{number % 4}", partition=number % 3, timestamp=began + number * 1000
        )
    extra: list[dict[str, Any]] = [
        {"value": b'{"plain": "json", "list": [1, 2, 3]}', "key": "json"},
        {"value": bytes(range(256)), "key": "bytes"},
        {"value": None, "key": "tombstone"},
        {"value": b'{"big": "' + b"x" * 300_000 + b'"}', "key": "huge"},
        {"value": HOSTILE, "key": HOSTILE, "headers": [("trace<b>", b"<i>abc</i>"), ("none", None)]},
    ]
    for number, each in enumerate(extra):
        producer.produce(topic, partition=0, timestamp=began + 100_000 + number, **each)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return Payments(topic, began)


def rows(page: Any) -> list[str]:
    return list(page.get_by_test_id("records").locator("tbody tr").all_inner_texts())


def test_the_newest_are_shown_decoded_and_as_text(
    looking: Looking, payments: Payments, screenshot: Callable[..., None]
) -> None:
    page = looking.open(f"/messages?topic={payments.topic}")
    looking.await_text("status", "50 records")
    first = rows(page)[0]
    assert "<script>window.hurt=1</script>" in first
    assert "{{ constructor" in first
    looking.await_text("records", "Avro #")
    looking.await_text("records", '"city":"Zürich"')
    page.get_by_test_id("more").click()
    looking.await_text("status", "65 records")
    page.get_by_test_id("records").locator("tbody tr").first.click()
    looking.await_text("bytes", '<img src=x onerror="window.hurt=1">')
    page.get_by_test_id("record-headers").click()
    looking.await_text("headers", "trace<b>")
    looking.await_text("headers", "<i>abc</i>")
    page.get_by_test_id("record-key").click()
    page.get_by_test_id("bytes").filter(has_text="<script>").last.wait_for()
    page.keyboard.press("Escape")
    assert page.evaluate("window.hurt") is None
    screenshot("messages", f"/messages?topic={payments.topic}", lambda tab: tab.get_by_text("Avro #").first.wait_for())
    screenshot("message", f"/messages?topic={payments.topic}&contains=Wien", _open_one)


def _open_one(tab: Any) -> None:
    tab.get_by_test_id("records").locator("tbody tr").first.click()
    tab.get_by_test_id("bytes").filter(has_text="Wien").wait_for()


def test_what_is_huge_is_cut_and_can_be_seen_whole_and_bytes_are_hexadecimal(
    looking: Looking, payments: Payments
) -> None:
    page = looking.open(f"/messages?topic={payments.topic}&contains=xxxxxxxxxx")
    looking.await_text("status", "1 record")
    page.get_by_test_id("records").locator("tbody tr").first.click()
    page.get_by_test_id("form").get_by_text("JSON").click()
    looking.await_text("left-out", "more characters are not shown")
    assert len(page.get_by_test_id("bytes").last.inner_text()) < 30_000
    page.get_by_test_id("show-all").click()
    page.wait_for_function(
        "[...document.querySelectorAll('[data-testid=bytes]')].some(each => each.innerText.length > 300000)"
    )
    page.keyboard.press("Escape")
    looking.await_closed("record")
    page.get_by_test_id("contains").fill("bytes")
    page.get_by_test_id("contains").press("Enter")
    looking.await_text("records", "binary")
    page.get_by_test_id("records").locator("tbody tr").first.click()
    page.get_by_test_id("form").get_by_text("Hex").click()
    looking.await_text("bytes", "00000040  40 41 42 43 44 45 46 47  48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO")


def test_the_page_jumps_to_an_offset_and_filters(looking: Looking, payments: Payments) -> None:
    page = looking.open(f"/messages?topic={payments.topic}&partition=1&offset=15")
    looking.await_text("status", "5 records")
    offsets = page.get_by_test_id("records").locator("a.ms-row-link").all_inner_texts()
    assert offsets == ["15", "16", "17", "18", "19"]

    looking.open(f"/messages?topic={payments.topic}")
    looking.await_text("status", "50 records")
    page.get_by_test_id("mode").get_by_text("From time").click()
    page.get_by_test_id("at").fill("sometime")
    page.get_by_test_id("show").click()
    looking.await_text("banner", "is not a time")
    page.get_by_test_id("at").fill(f"@{payments.began_ms + 55_000}")
    page.get_by_test_id("show").click()
    looking.await_text("status", "10 records")
    page.get_by_test_id("mode").get_by_text("Oldest").click()
    page.get_by_test_id("field").fill("value.city == 'Zürich'")
    page.get_by_test_id("field").press("Enter")
    looking.await_text("status", "6 records, 65 searched")
    page.get_by_test_id("field").fill("value.total >= 59")
    page.get_by_test_id("field").press("Enter")
    looking.await_text("status", "1 record, 65 searched")
    page.get_by_test_id("field").fill("total == 5")
    page.get_by_test_id("field").press("Enter")
    looking.await_text("banner", "write value.total")
    page.get_by_test_id("field").fill("value.city > 5")
    page.get_by_test_id("field").press("Enter")
    looking.await_text("status", "could not be compared")


def test_a_filter_is_saved_and_a_link_shows_the_same_view(looking: Looking, payments: Payments, tmp_path: Path) -> None:
    page = looking.open(f"/messages?topic={payments.topic}&mode=oldest&filter=value.total%20%3C%203")
    looking.await_text("status", "3 records, 65 searched")
    page.get_by_test_id("saved-filters").click()
    page.get_by_test_id("save-filter").click()
    page.get_by_test_id("save-filter").wait_for(state="detached")  # the menu is closed
    page.get_by_test_id("field").fill("")
    page.get_by_test_id("field").press("Enter")
    looking.await_text("status", "50 records")
    page.get_by_test_id("saved-filters").click()
    page.get_by_test_id("saved-list").get_by_text("value.total < 3").click()
    looking.await_text("status", "3 records, 65 searched")
    assert "filter=value.total" in page.url and "mode=oldest" in page.url

    page.get_by_test_id("export").click()
    with page.expect_download() as saving:
        page.get_by_test_id("export-json").click()
    saving.value.save_as(tmp_path / "records.json")
    saved = json.loads((tmp_path / "records.json").read_text())
    assert [json.loads(each["value"])["id"] for each in saved] == [0, 1, 2]


def test_where_to_search_and_how_many_records_are_in_the_url(looking: Looking, payments: Payments) -> None:
    page = looking.open(f"/messages?topic={payments.topic}&records=25")
    looking.await_text("status", "25 records")
    page.get_by_test_id("contains").fill("customer-1")
    choose(page, page.get_by_test_id("search-in"), "key")
    page.get_by_test_id("show").click()
    looking.await_text("status", "15 records, 65 searched")
    page.wait_for_function("location.search.includes('in=key') && location.search.includes('records=25')")
    page.reload()
    looking.await_text("status", "15 records, 65 searched")
    looking.open(f"/messages?topic={payments.topic}&in=headers&contains=customer-1")
    looking.await_text("status", "No records match the filter")


def test_a_bar_of_the_histogram_is_a_place_to_read_from(looking: Looking, payments: Payments) -> None:
    page = looking.open(f"/messages?topic={payments.topic}")
    looking.await_text("status", "50 records")
    page.get_by_test_id("histogram").locator("canvas").wait_for()
    bars = "getElement(document.querySelector('[data-testid=histogram]').id.slice(1)).chart.getOption().series[0].data"
    page.wait_for_function(f"{bars}.reduce((sum, each) => sum + each[1], 0) === 65")
    spot = page.evaluate(
        f"""() => {{
            const chart = getElement(document.querySelector('[data-testid=histogram]').id.slice(1)).chart;
            const [at] = {bars}.filter((each) => each[1] > 0);
            return chart.convertToPixel({{seriesIndex: 0}}, [at[0], at[1] / 2]);
        }}"""
    )
    page.get_by_test_id("histogram").click(position={"x": spot[0], "y": spot[1]})
    looking.await_text("status", "50 records")
    page.wait_for_function("location.search.includes('mode=time')")


def test_a_record_with_a_schema_is_written_and_sent_again(looking: Looking, payments: Payments) -> None:
    page = looking.open(f"/messages?topic={payments.topic}&mode=live")
    looking.await_text("status", "Live")
    page.get_by_test_id("open-write").click()
    choose(page, page.get_by_test_id("value-form"), "schema")
    assert page.get_by_test_id("value-subject").input_value() == f"{payments.topic}-value"
    page.get_by_test_id("write-value").fill('{"id": "x"}')
    page.get_by_test_id("write").click()
    looking.await_text("complaint", "does not fit the AVRO schema")
    page.get_by_test_id("write-value").fill('{"id": 4711, "city": "Graz", "total": 1.5}')
    page.get_by_test_id("write").click()
    looking.await_text("records", "Graz")
    page.keyboard.press("Escape")
    looking.await_closed("write-record")

    page.get_by_test_id("records").get_by_text("Graz").click()
    page.get_by_test_id("record").locator(".ms-json-text").filter(has_text="Graz").wait_for()
    page.get_by_test_id("resend").click()
    page.get_by_test_id("write-value").fill('{"id": 4711, "city": "Linz", "total": 1.5}')
    page.get_by_test_id("write").click()
    looking.await_text("records", "Linz")
    looking.await_text("records", "Avro #")


def test_what_arrives_is_seen_and_one_is_written_by_hand(
    looking: Looking, producer: Any, make_topic: Callable[..., str]
) -> None:
    topic = make_topic("by-hand", 2)
    page = looking.open(f"/messages?topic={topic}")
    looking.await_text("status", "No records")
    page.get_by_test_id("mode").get_by_text("Live").click()
    looking.await_text("status", "Live")
    producer.produce(topic, b'{"from": "outside"}', partition=1)
    producer.flush(TIMEOUT_SECONDS)
    looking.await_text("records", "outside")

    page.get_by_test_id("open-write").click()
    page.get_by_test_id("write-key").fill("me")
    page.get_by_test_id("write-value").fill("{")
    page.get_by_test_id("write").click()
    looking.await_text("complaint", "The value is not valid JSON")
    page.get_by_test_id("write-value").fill('{"from": "the console"}')
    page.get_by_test_id("write-headers").fill("by: hand")
    page.get_by_test_id("write").click()
    looking.await_text("records", "the console")
    page.keyboard.press("Escape")
    looking.await_closed("write-record")
    page.get_by_test_id("records").get_by_text("the console").click()
    page.get_by_test_id("record-headers").click()
    looking.await_text("headers", "hand")

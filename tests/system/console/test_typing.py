"""What a person has typed is neither lost nor overwritten, however late messages of browser and gateway come."""

import json
import re
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.system.console.conftest import TIMEOUT_MS, GatewayProcess, Looking
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


class Line:
    """The connection of a page with the gateway. It can hold messages back, and lose what the page says."""

    def __init__(self, page: Any) -> None:
        self.holds = False
        self.loses = ""
        """A message of the page that contains this is lost."""
        self.lost = 0
        self._held: list[Any] = []
        self._page = page
        self._page_side: Any = None
        self._gateway_side: Any = None
        page.route_web_socket(re.compile("_nicegui_ws"), self._opened)

    def _opened(self, page_side: Any) -> None:
        self._page_side = page_side
        gateway_side = self._gateway_side = page_side.connect_to_server()

        def from_page(message: Any) -> None:
            if self.loses and self.loses in str(message):
                self.lost += 1
            else:
                gateway_side.send(message)

        page_side.on_message(from_page)
        gateway_side.on_message(lambda message: self._held.append(message) if self.holds else page_side.send(message))

    def cut(self) -> None:
        """Ends the connection. The page makes a new one."""
        self._gateway_side.close()
        self._page_side.close()

    def await_held(self, text: str) -> None:
        """Waits until a message with this text was held back."""
        self._until(lambda: any(text in str(message) for message in self._held), f"the gateway did not say {text!r}")

    def await_lost(self, count: int) -> None:
        """Waits until so many messages were lost."""
        self._until(lambda: self.lost >= count, f"the page did not send {count} messages")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while not holds():
            assert time.monotonic() < deadline, what
            self._page.wait_for_timeout(50)

    def release(self) -> None:
        self.holds = False
        while self._held:
            self._page_side.send(self._held.pop(0))


@pytest.fixture
def line(page: Any) -> Line:
    return Line(page)


def test_a_form_is_sent_as_it_is_shown(looking: Looking, line: Line, admin: AdminClient) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").wait_for()
    line.loses = '"event"'
    page.get_by_test_id("new-name").fill("as-shown")
    page.get_by_test_id("new-partitions").fill("5")
    page.get_by_test_id("value-retention.ms").fill("3600000")
    page.get_by_test_id("value-retention.ms").blur()
    line.await_lost(3)
    line.loses = ""
    page.get_by_test_id("create").click()
    page.get_by_test_id("page-title").filter(has_text="as-shown").wait_for()
    looking.await_text("topic-partitions", "5")
    page.get_by_test_id("tab-settings").click()
    looking.await_text("settings", "3600000")
    admin.delete_topics(["as-shown"])["as-shown"].result(TIMEOUT_SECONDS)


def test_a_complaint_stays_until_its_field_is_right(looking: Looking, line: Line) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").fill("soon")
    page.get_by_test_id("new-partitions").fill("0")
    page.get_by_test_id("new-name").fill("a b")
    page.get_by_test_id("create").click()
    for about in ("only letters, digits", "retention.ms=soon is not allowed", "enter the number of partitions"):
        looking.await_text("complaint", about)
    page.get_by_test_id("new-name").fill("complaints")
    page.get_by_test_id("complaint").filter(has_not_text="only letters").wait_for()
    assert "retention.ms=soon" in looking.text("complaint")
    assert "enter the number of partitions" in looking.text("complaint")
    page.get_by_test_id("new-partitions").fill("2")
    page.get_by_test_id("complaint").filter(has_not_text="enter the number").wait_for()
    assert "retention.ms=soon" in looking.text("complaint")
    page.get_by_test_id("value-retention.ms").fill("3600000")
    page.get_by_test_id("complaint").wait_for(state="hidden")


def test_a_check_of_the_name_that_comes_late_leaves_other_complaints(looking: Looking, line: Line) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").fill("soon")
    line.holds = True
    page.get_by_test_id("new-name").fill("late-check")
    page.get_by_test_id("create").click()
    page.get_by_test_id("new-name").fill("late-checks")
    line.release()
    page.get_by_test_id("add-retention.bytes").click()
    page.get_by_test_id("value-retention.bytes").wait_for()  # so all that was said before is there, too
    assert "retention.ms=soon is not allowed" in looking.text("complaint")
    assert page.get_by_test_id("new-name").input_value() == "late-checks"


def test_a_dialog_stays_when_the_connection_is_cut(looking: Looking, line: Line) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").fill("soon")
    page.get_by_test_id("new-name").fill("after-a-cut")
    line.cut()
    page.wait_for_function("!window.socket.connected")
    page.get_by_test_id("new-partitions").fill("2")
    page.get_by_test_id("create").click()  # without a connection: it is sent with the next one
    looking.await_text("complaint", "retention.ms=soon is not allowed")
    assert page.get_by_test_id("new-name").input_value() == "after-a-cut"
    assert page.get_by_test_id("new-partitions").input_value() == "2"
    # The browser may complain of the cut itself.
    looking.problems[:] = [each for each in looking.problems if "WebSocket" not in each]


def test_an_option_is_what_the_person_saw_though_the_list_has_changed(
    looking: Looking, line: Line, make_topic: Callable[..., str]
) -> None:
    make_topic("option-one", 1)
    page = looking.open("/messages")
    page.get_by_label("Topic").click()
    wanted = page.get_by_role("option", name="option-one", exact=True)
    wanted.wait_for()
    line.holds = True
    make_topic("option-before-one", 1)  # it moves the others down in the list
    line.await_held("option-before-one")  # so the gateway has another list than the page
    wanted.click()
    line.release()
    looking.await_text("status", "No records.")
    assert page.get_by_label("Topic").input_value() == "option-one"


def test_a_search_is_sent_as_it_is_shown(looking: Looking, line: Line, make_topic: Callable[..., str]) -> None:
    make_topic("searched", 1)
    page = looking.open("/messages?topic=searched")
    looking.await_text("status", "No records.")
    line.loses = '"event"'
    page.get_by_test_id("contains").fill("apples")
    line.await_lost(1)
    line.loses = ""
    page.get_by_test_id("contains").press("Enter")
    looking.await_text("status", "No records match the filter.")


def test_a_browser_that_is_busy_is_waited_for(looking: Looking) -> None:
    """A page whose connection was given up is loaded again, and its dialogs are gone."""
    said: list[str] = []
    looking.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: said.append(str(frame))))
    looking.open("/topics")
    opening = next(json.loads(frame[1:]) for frame in said if frame.startswith("0{"))
    assert opening["pingTimeout"] >= 20_000


def test_a_number_is_not_corrected_while_someone_types(looking: Looking, line: Line) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    field = page.get_by_test_id("new-partitions")
    field.wait_for()
    line.holds = True
    field.fill("0")
    field.blur()
    field.fill("7")
    line.release()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").wait_for()  # so all that was said before is there, too
    assert field.input_value() == "7"
    field.fill("0")
    page.get_by_test_id("new-name").fill("numbers")
    page.get_by_test_id("create").click()
    looking.await_text("complaint", "enter the number of partitions")


def test_a_schema_that_arrives_does_not_replace_what_was_typed(
    looking: Looking, line: Line, gateway: GatewayProcess
) -> None:
    body = json.dumps({"schema": '{"type": "record", "name": "Late", "fields": []}'}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(f"{gateway.url}/subjects/late-value/versions", body, headers), timeout=60
    ).close()
    looking.page.goto(f"{gateway.url}/console/schemas?subject=late-value")
    text = looking.page.get_by_test_id("schema-text")
    text.wait_for()
    # Nothing was typed: the last version is put there.
    looking.page.wait_for_function("document.querySelector('[data-testid=schema-text]').value.includes('Late')")
    line.holds = True
    looking.page.goto(f"{gateway.url}/console/schemas?subject=late-value")
    text.fill("mine")
    line.release()
    looking.page.get_by_test_id("versions").get_by_text("1", exact=True).first.wait_for()
    assert text.input_value() == "mine"

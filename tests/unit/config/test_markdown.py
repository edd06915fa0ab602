"""The settings page is made from the tables, and the one in docs is the one they make."""

from millstream.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from millstream.config.describe import settings_page
from tests.repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "settings.md"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_page(), "run: python -m millstream.config > docs/settings.md"


def test_every_setting_is_on_the_page() -> None:
    page = settings_page()
    for name in (*BROKER_SETTINGS, *TOPIC_SETTINGS):
        assert f"`{name}`" in page

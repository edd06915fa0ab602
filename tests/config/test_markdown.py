"""The settings page is made from the tables, and the one in docs is the one they make."""

from pathlib import Path

from millstream.config.catalog import BROKER_SETTINGS, TOPIC_SETTINGS
from millstream.config.describe import settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert PAGE.read_text() == settings_page(), "run: python -m millstream.config > docs/settings.md"


def test_every_setting_is_on_the_page() -> None:
    page = settings_page()
    for name in (*BROKER_SETTINGS, *TOPIC_SETTINGS):
        assert f"`{name}`" in page

"""`python -m millstream.config > docs/settings.md` writes the settings page."""

from millstream.config.describe import settings_page

if __name__ == "__main__":
    print(settings_page(), end="")

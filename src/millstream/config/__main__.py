"""`python -m millstream.config` prints docs/settings.md."""

from millstream.config.describe import settings_page

if __name__ == "__main__":
    print(settings_page(), end="")

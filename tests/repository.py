"""Where the repository is, for tests that read its documents or run its programs."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

"""The one place that knows which version this is."""

VERSION = "0.1.0"

"""`python -m millstream.metrics` prints the table of docs/metrics.md."""

from millstream.metrics.catalog import markdown

print(markdown())

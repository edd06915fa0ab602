"""`python -m millstream.node.metrics` prints the table of docs/metrics.md."""

from millstream.node.metrics.catalog import markdown

print(markdown())

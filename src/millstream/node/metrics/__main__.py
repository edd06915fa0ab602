"""`python -m millstream.node.metrics` prints the tables of docs/metrics.md."""

from millstream.node.metrics.endpoints import markdown

print(markdown())

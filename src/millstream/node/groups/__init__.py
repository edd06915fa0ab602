"""Groups: classic, consumer, streams and share groups, and committed offsets."""

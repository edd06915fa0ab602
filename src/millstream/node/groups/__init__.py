"""Groups: classic, consumer and share groups, and committed offsets."""

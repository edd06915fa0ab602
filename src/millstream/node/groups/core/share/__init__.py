"""Members of share groups and their assignment."""

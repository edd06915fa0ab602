"""Commands on consumer groups and share groups."""

"""The `millstream` command: the composition root, which may import every room.

Modules here are imported to build the command tree, so each imports heavy libraries (rich, confluent-kafka) only inside
the commands that use them.
"""

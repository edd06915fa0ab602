"""The schema registry: subjects, versions and compatibility, kept in the compacted topic `_schemas`."""

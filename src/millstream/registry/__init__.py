"""The schema registry: subjects, versions and compatibility, stored in the compacted topic `_schemas`."""

"""The Topics page: partitions, settings, hot keys, and creating, changing and deleting topics."""

"""What the topics page knows and does: settings, sizes, hot keys, making and deleting topics."""

"""The Messages page: reading, filtering, showing and producing records."""

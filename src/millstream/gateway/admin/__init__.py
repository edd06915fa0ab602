"""Topics and groups over HTTP."""

"""The web console: shows the state of a cluster in a browser, and changes topics, groups, queues and schemas."""

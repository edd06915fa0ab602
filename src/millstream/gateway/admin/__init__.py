"""REST routes for topics and groups."""

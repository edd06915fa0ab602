"""`serve --cores`: several nodes of one machine as one service."""

"""`serve --cores`: several nodes on one machine under one supervisor."""

"""Parts of SQL over topics that need no broker."""

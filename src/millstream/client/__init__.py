"""client room."""

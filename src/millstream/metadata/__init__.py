"""metadata room."""

"""The active controller: decisions on the newest image put through the quorum, broker sessions, and its APIs."""

"""Real faults: killed processes, damaged files, a full disk. The data that was acknowledged must be there."""

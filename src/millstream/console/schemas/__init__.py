"""The Schemas page: subjects, versions, their differences, checks and registration."""

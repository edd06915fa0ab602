"""For all tests: hypothesis without deadlines, since a timing is never an assertion; the same examples every time."""

from hypothesis import HealthCheck, settings

settings.register_profile("millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("millstream")

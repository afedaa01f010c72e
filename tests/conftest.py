"""For all tests: a case of hypothesis may take its time. What hangs is ended by the suite's own limit."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

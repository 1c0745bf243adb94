"""Property tests here have no deadline: machines are shared, and a slow example is no fault."""

from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

"""Property tests here have no deadline: machines are shared, and a slow example is no fault."""

import os

from hypothesis import settings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

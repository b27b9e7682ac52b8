"""Property tests: quick and reproducible by default; ``pytest --hypothesis-profile=thorough`` searches for long."""

from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("quick")

"""Property tests: quick and reproducible by default; ``pytest --hypothesis-profile=thorough`` searches for long.

One thread computes: two of them, on two cores beside another worker, wait for each other.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything loads torch or a BLAS

import pytest
from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("quick")


@pytest.fixture(autouse=True)
def _unlimited_width(monkeypatch):
    """What commands print is as wide as it needs, whatever terminal the tests were started from."""
    monkeypatch.delenv("COLUMNS", raising=False)

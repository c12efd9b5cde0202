"""Fixtures of the Python tests: one Job (Store and processes) per test, ended whatever happens."""

import pytest

from harness import Job


@pytest.fixture
def job():
    made = Job()
    yield made
    made.close()

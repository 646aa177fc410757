from __future__ import annotations

import pytest
from commands import Driver


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    made = Driver(tmp_path_factory.mktemp("driver"))
    yield made
    made.close()

"""A task for graphs."""

import pytest

from holdfast import Holdfast
from support.flow import Flow


@pytest.fixture
def flow(app: Holdfast) -> Flow:
    return Flow(app)

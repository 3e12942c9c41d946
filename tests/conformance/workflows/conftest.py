"""A task for graphs."""

import pytest
from flow import Flow

from holdfast import Holdfast


@pytest.fixture
def flow(app: Holdfast) -> Flow:
    return Flow(app)

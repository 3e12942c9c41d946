"""Check that no test leaves `inline` active."""

from collections.abc import Iterator

import pytest

from holdfast.app import App


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    assert App._inline is None

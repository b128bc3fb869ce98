"""Recordings for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.comparing.runs import Written


@pytest.fixture
def written(tmp_path):
    """Writes recordings, and closes the traces it opened."""
    made = Written(tmp_path)
    yield made
    for trace in made.opened:
        trace.close()

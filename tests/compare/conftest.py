from collections.abc import Iterator

import pytest

from regard.compare import costs


@pytest.fixture(scope="session", autouse=True)
def short_measurements() -> Iterator[None]:
    """Steps are measured for a moment only: no test depends on times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "SECONDS", 0.05)
        yield

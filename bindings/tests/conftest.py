"""What all tests of the package share."""

import gc
from collections.abc import Iterator

import pytest
from forebay import _forebay


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-torch", action="store_true", help="leave out the tests that need torch")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--no-torch"):
        for item in items:
            if "torch" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="left out by --no-torch"))


@pytest.fixture(autouse=True)
def _no_tensor_is_left() -> Iterator[None]:
    """Fails the test that leaves the memory of a tensor behind."""
    before = _forebay._testing_live()
    yield
    if _forebay._testing_live() != before:
        gc.collect()
    assert _forebay._testing_live() == before

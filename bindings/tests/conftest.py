"""What all tests of the package share."""

import gc
from collections.abc import Iterator
from pathlib import Path

import harness
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


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics that no test changes.

    `small`: 317 samples in three partitions of two or three segments, for orders. `wide`: 400 samples of 16 KiB, whose
    batches of 4 and more are leased from the slab. `even`: 240 samples in one partition, which batches of 12 divide.
    """
    pytest.importorskip("numpy")
    root = tmp_path_factory.mktemp("topics") / "root"
    harness.make_topic(
        root, "small", [70, 41, 66, 50, 60, 10, 20], partitions=3, block_bytes="512", segment_bytes="4KiB"
    )
    harness.make_topic(root, "wide", [250, 150], width=8192, partitions=2, block_bytes="256KiB", segment_bytes="1MiB")
    harness.make_topic(root, "even", [90, 30, 120], block_bytes="512", segment_bytes="4KiB")
    return root

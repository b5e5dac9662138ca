"""Makes training data of what is there anyway: scikit-learn's handwritten digits, the standard library's source text.

    python prepare.py FOLDER

writes digits.npz, digits-test.npz, shards/text-*.parquet and text-test.parquet there, with a number (`id`) for each
sample. The same interpreter and packages always make the same bytes.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DIGITS_TEST_EVERY = 5
"""One digit in so many is kept back for testing."""
BLOCK_BYTES = 257
"""Bytes of one sample of text: 256 to read, and for each the one that follows."""
TEXT_TEST_EVERY = 100
"""One block in so many is kept back for testing."""
SHARDS = 4
"""Files that the text is dealt out to."""
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
"""Folders of the library's that are not, or not everywhere, a part of it."""


def digits(folder: Path) -> None:
    """1,797 images of 8 x 8 pixels, grey values 0 to 16, and which digit each shows."""
    from sklearn.datasets import load_digits

    found = load_digits()
    number = np.arange(len(found.target))
    kept_back = number % DIGITS_TEST_EVERY == 0
    for name, chosen in (("digits", ~kept_back), ("digits-test", kept_back)):
        np.savez(
            folder / f"{name}.npz",
            id=number[chosen],
            image=found.images[chosen].astype(np.uint8),
            label=found.target[chosen],
        )


def library() -> bytes:
    """The source text of Python's standard library, file after file."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [file for file in folder.rglob("*.py") if not LEFT_OUT.intersection(file.relative_to(folder).parts)]
    return b"".join(file.read_bytes() for file in sorted(files))


def text(folder: Path, source: bytes) -> None:
    """Text as bytes, cut into blocks of one length, in several files."""
    count = len(source) // BLOCK_BYTES
    blocks = np.frombuffer(source, np.uint8)[: count * BLOCK_BYTES].reshape(count, BLOCK_BYTES)
    number = np.arange(count)
    kept_back = number % TEXT_TEST_EVERY == 0
    _parquet(folder / "text-test.parquet", number[kept_back], blocks[kept_back])
    shards = folder / "shards"
    shards.mkdir(exist_ok=True)
    for shard, chosen in enumerate(np.array_split(number[~kept_back], SHARDS)):
        _parquet(shards / f"text-{shard}.parquet", chosen, blocks[chosen])


def _parquet(file: Path, number: np.ndarray, blocks: np.ndarray) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(blocks.ravel()), BLOCK_BYTES)
    pq.write_table(pa.table({"id": number, "text": lists}), file)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    digits(folder)
    text(folder, library())


if __name__ == "__main__":
    main()

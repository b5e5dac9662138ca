"""Every element type, as scalars and as tensors: the bits that went in come out, and other readers see them too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forebay
import harness
import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

SAMPLES = 530
# Names as they are here, and NumPy's for the same bits.
DTYPES = {
    "bool": "?",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "float16": "f2",
    "bfloat16": "u2",
    "float32": "f4",
    "float64": "f8",
}
SHAPES: dict[str, tuple[int, ...]] = {"scalar": (), "vector": (3,), "matrix": (5, 7)}
SCHEMA = ", ".join(
    f"{dtype}_{shape}:{dtype}{'x'.join(map(str, dims)).join('[]') if dims else ''}"
    for dtype in DTYPES
    for shape, dims in SHAPES.items()
)


def values(dtype: str, shape: str) -> Any:
    """Every bit pattern may occur, NaNs of all kinds, infinities and negative zeros among them."""
    dims = (SAMPLES, *SHAPES[shape])
    chance = np.random.default_rng([*dtype.encode(), *shape.encode()])
    if dtype == "bool":
        return chance.integers(0, 2, dims).astype("?")
    bits = np.dtype(DTYPES[dtype]).itemsize
    raw = chance.integers(0, 256, (*dims, bits), dtype="u1").view(DTYPES[dtype])
    return raw.reshape(dims)


COLUMNS = {f"{dtype}_{shape}": values(dtype, shape) for dtype in DTYPES for shape in SHAPES}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of all types, from an npz file; its bfloat16 columns are bits that the schema names."""
    folder = tmp_path_factory.mktemp("dtypes")
    np.savez(folder / "all.npz", **COLUMNS)
    root = folder / "root"
    options = ("--schema", SCHEMA, "--block-bytes", "64KiB", "--segment-bytes", "128KiB")
    harness.cli("topic", "create", "typed", "--root", root, *options)
    harness.cli("ingest", folder / "all.npz", "--topic", "typed", "--root", root, "-q")
    return root


def bits(array: Any) -> bytes:
    """The memory of an array, row by row."""
    found: bytes = np.ascontiguousarray(array).tobytes()
    return found


@pytest.mark.parametrize("reader", ["io_uring", "preadv"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch", [1, 100, 530])
def test_numpy_gets_the_bits_that_went_in(batch: int, shuffle: bool, reader: str, typed: Path) -> None:
    settings: dict[str, Any] = {"shuffle": shuffle, "checksum": "always", "output": "numpy", "reader": reader}
    try:
        with forebay.DataLoader("typed", batch, root=typed, **settings) as loader:
            parts: dict[str, list[Any]] = {name: [] for name in COLUMNS}
            for made in loader:
                assert set(made) == set(COLUMNS)
                for name, array in made.items():
                    parts[name].append(array)
    except forebay.Error as error:
        if reader == "io_uring":
            pytest.skip(f"no io_uring here: {error}")
        raise
    order = rows_of(parts["int64_scalar"])
    assert (order == np.arange(SAMPLES)).all() != shuffle
    for name, arrays in parts.items():
        whole = np.concatenate(arrays)
        dtype = name.split("_")[0]
        assert whole.dtype.name == dtype or (dtype, whole.dtype.name) == ("bfloat16", "uint16")
        assert whole.shape == COLUMNS[name].shape
        assert bits(whole) == bits(COLUMNS[name][order]), name


def rows_of(parts: list[Any]) -> Any:
    """Which samples these are, each once, by a column in which all values differ."""
    where = {int(value): at for at, value in enumerate(COLUMNS["int64_scalar"])}
    rows = np.array([where[int(value)] for value in np.concatenate(parts)])
    assert len(where) == SAMPLES
    assert (np.sort(rows) == np.arange(SAMPLES)).all()
    return rows


@pytest.mark.torch
@pytest.mark.parametrize("batch", [7, 530])
def test_torch_gets_the_bits_that_went_in(batch: int, typed: Path) -> None:
    torch = pytest.importorskip("torch")
    with forebay.DataLoader("typed", batch, root=typed) as loader:
        made = list(loader)
    for name, array in COLUMNS.items():
        whole = torch.cat([one[name] for one in made])
        assert whole.dtype is getattr(torch, name.split("_")[0])
        assert tuple(whole.shape) == array.shape
        assert bits(whole.view(torch.uint8).numpy()) == bits(array)


def test_plain_tensors_say_what_they_are(typed: Path) -> None:
    with forebay.DataLoader("typed", 10, root=typed, output="dlpack") as loader:
        batch = next(iter(loader))
    for name, array in COLUMNS.items():
        tensor = batch[name]
        assert (tensor.dtype, tensor.shape) == (name.split("_")[0], (10, *array.shape[1:]))
        if tensor.dtype != "bfloat16":
            assert bits(np.from_dlpack(tensor)) == bits(array[:10])


def test_single_samples_have_the_bits_that_went_in(typed: Path) -> None:
    samples = forebay.open("typed", root=typed, output="numpy")
    for at in (0, 17, SAMPLES - 1):
        for name, value in samples[at].items():
            assert value.shape == COLUMNS[name].shape[1:]
            assert bits(value) == bits(COLUMNS[name][at])


# Sealed segments are Arrow files


def test_pyarrow_opens_sealed_segments_as_they_are(typed: Path) -> None:
    segments = harness.sealed_segments(typed, "typed")
    assert segments
    table = pa.concat_tables([pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in segments])
    assert table.num_rows == SAMPLES
    table.validate(full=True)
    assert table.schema.names == list(COLUMNS)
    for name, array in COLUMNS.items():
        dtype, shape = name.split("_")
        column = table[name].combine_chunks()
        if SHAPES[shape]:
            assert isinstance(column.type, pa.FixedShapeTensorType), name
            assert tuple(column.type.shape) == SHAPES[shape]
            found = np.concatenate([chunk.to_numpy_ndarray() for chunk in chunks(column)])
        elif dtype == "bool":
            assert column.type.extension_name == "arrow.bool8"
            found = np.array(column.to_pylist())
        else:
            assert column.type == pa.from_numpy_dtype(np.dtype(DTYPES[dtype]))
            found = column.to_numpy(zero_copy_only=False)
        assert bits(found) == bits(array), name
        assert (table.schema.field(name).metadata or {}).get(b"forebay.dtype") in (None, dtype.encode())


def chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


@pytest.mark.filterwarnings("ignore")
def test_polars_opens_sealed_segments_as_they_are(typed: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.concat([polars.read_ipc(path) for path in harness.sealed_segments(typed, "typed")])
    assert frame.shape == (SAMPLES, len(COLUMNS))
    for name, array in COLUMNS.items():
        series = frame[name]
        if isinstance(series.dtype, getattr(polars, "BaseExtension", ())):
            series = series.ext.storage()
        found = series.to_numpy()
        assert bits(found.astype(array.dtype) if found.dtype != array.dtype else found) == bits(array), name


@pytest.mark.parametrize("dtype", ["complex64", "str", "float8", "int128", "datetime64"])
def test_other_types_are_refused(dtype: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["topic", "create", "odd", "--root", str(tmp_path), "--schema", f"x:{dtype}"]
    assert forebay._forebay.run_cli(arguments) == 2
    assert dtype in capfd.readouterr().err
    with pytest.raises(AssertionError):
        harness.cli(*arguments)


@pytest.mark.parametrize("array", [np.zeros(3, "c8"), np.array(["a", "b"]), np.zeros(3, "M8[s]"), np.zeros(3, "O")])
def test_files_of_other_types_are_refused(array: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "odd.npy", array)
    arguments = ["ingest", str(tmp_path / "odd.npy"), "--topic", "odd", "--root", str(tmp_path / "root")]
    assert forebay._forebay.run_cli(arguments) == 2
    assert "error: " in capfd.readouterr().err


# Other files of the same values


@pytest.mark.parametrize("kind", ["parquet", "arrow", "npy"])
def test_the_same_values_from_other_files_are_the_same_topic(kind: str, tmp_path: Path) -> None:
    """Scalars, and lists of one length, of every type that the format has."""
    wanted: dict[str, Any] = {}
    for dtype in sorted(set(DTYPES) - {"float16", "bfloat16"}):
        wanted[f"{dtype}_scalar"] = COLUMNS[f"{dtype}_scalar"]
        if kind == "npy" or dtype != "bool":
            wanted[f"{dtype}_vector"] = COLUMNS[f"{dtype}_vector"]
    file = tmp_path / f"values.{kind}"
    if kind == "npy":
        record = np.zeros(SAMPLES, [(name, array.dtype, array.shape[1:]) for name, array in wanted.items()])
        for name, array in wanted.items():
            record[name] = array
        np.save(file, record)
    else:
        arrays = {
            name: pa.array(array) if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(array.ravel(), 3)
            for name, array in wanted.items()
        }
        table = pa.table(arrays)
        if kind == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, file)
        else:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
    root = tmp_path / "root"
    harness.cli("ingest", file, "--topic", "values", "--root", root, "-q")
    with forebay.DataLoader("values", SAMPLES, root=root, output="numpy") as loader:
        (batch,) = list(loader)
    assert set(batch) == set(wanted)
    for name, array in wanted.items():
        assert batch[name].shape == array.shape
        assert bits(batch[name]) == bits(array), name

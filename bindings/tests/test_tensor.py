"""Tensors through the eyes of their consumers: same memory, right types, given back exactly once."""

import ctypes
import importlib.util
import os
import struct
import subprocess
import sys
import threading
from typing import Any

import pytest
from forebay import Tensor, _forebay

# Name, struct format and some values of each element type that Python itself can write down.
DTYPES: dict[str, tuple[str, list[Any]]] = {
    "bool": ("?", [True, False, True, True, False, False]),
    "int8": ("b", [-128, -1, 0, 1, 2, 127]),
    "int16": ("h", [-(2**15), -1, 0, 1, 2, 2**15 - 1]),
    "int32": ("i", [-(2**31), -1, 0, 1, 2, 2**31 - 1]),
    "int64": ("q", [-(2**63), -1, 0, 1, 2, 2**63 - 1]),
    "uint8": ("B", [0, 1, 2, 3, 254, 255]),
    "uint16": ("H", [0, 1, 2, 3, 4, 2**16 - 1]),
    "uint32": ("I", [0, 1, 2, 3, 4, 2**32 - 1]),
    "uint64": ("Q", [0, 1, 2, 3, 4, 2**64 - 1]),
    "float16": ("e", [0.0, -0.5, 1.5, 2.0, 65504.0, -1.0]),
    "float32": ("f", [0.0, -0.5, 1.5, 2.0, 1e9, -1.0]),
    "float64": ("d", [0.0, -0.5, 1.5, 2.0, 1e300, -1.0]),
}
BFLOAT16 = [0.0, -0.5, 1.5, 2.0, 256.0, -1.0]


def make(dtype: str, shape: tuple[int, ...] = (2, 3)) -> Tensor:
    code, values = DTYPES[dtype]
    return _forebay._testing_tensor(struct.pack(f"<{len(values)}{code}", *values), dtype, shape)


def make_bfloat16() -> Tensor:
    # The upper half of a float32.
    halves = [struct.pack("<f", value)[2:] for value in BFLOAT16]
    return _forebay._testing_tensor(b"".join(halves), "bfloat16", (2, 3))


@pytest.fixture
def numpy() -> Any:
    return pytest.importorskip("numpy")


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_a_tensor_says_what_it_is() -> None:
    tensor = make("int32")
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("int32", (2, 3), 24)
    assert repr(tensor) == "Tensor(dtype=int32, shape=[2, 3])"
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(AttributeError):
        tensor.dtype = "int64"  # type: ignore[misc]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_views_every_type(dtype: str, numpy: Any) -> None:
    tensor = make(dtype)
    for array in (numpy.from_dlpack(tensor), numpy.asarray(tensor), _forebay._testing_give(tensor, "numpy")):
        assert array.dtype.name == dtype
        assert array.shape == (2, 3)
        assert array.flatten().tolist() == DTYPES[dtype][1]
        assert array.ctypes.data == tensor.__array_interface__["data"][0]
        assert array.flags.writeable
        assert array.flags.c_contiguous


def test_numpy_sees_bfloat16(numpy: Any) -> None:
    tensor = make_bfloat16()
    with pytest.raises(AttributeError, match="bfloat16"):
        _ = tensor.__array_interface__
    pytest.importorskip("ml_dtypes")
    array = _forebay._testing_give(tensor, "numpy")
    assert array.dtype.name == "bfloat16"
    assert array.astype("float32").flatten().tolist() == BFLOAT16


def test_numpy_without_ml_dtypes_sees_the_bits_of_bfloat16() -> None:
    pytest.importorskip("numpy")
    code = (
        "import sys; sys.modules['ml_dtypes'] = None; from forebay import _forebay\n"
        "array = _forebay._testing_give(_forebay._testing_tensor(b'\\xc0\\x3f', 'bfloat16', [1]), 'numpy')\n"
        "print(array.dtype.name, hex(array[0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout == "uint16 0x3fc0\n"


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_torch_views_every_type(dtype: str, torch: Any) -> None:
    tensor, values = (make_bfloat16(), BFLOAT16) if dtype == "bfloat16" else (make(dtype), DTYPES[dtype][1])
    views = [
        torch.from_dlpack(tensor),
        torch.utils.dlpack.from_dlpack(tensor),
        torch.utils.dlpack.from_dlpack(tensor.__dlpack__()),
        torch.utils.dlpack.from_dlpack(tensor.__dlpack__(max_version=(1, 0))),
        _forebay._testing_give(tensor, "torch"),
        _forebay._testing_give(tensor),
        _forebay._testing_give(tensor, "torch by capsule"),
    ]
    for view in views:
        assert view.dtype is getattr(torch, dtype)
        assert view.flatten().tolist() == values
        assert view.is_contiguous()
        assert view.device.type == "cpu"
    assert len({view.data_ptr() for view in views}) == 1


@pytest.mark.torch
def test_views_of_torch_and_numpy_share_what_is_written(torch: Any, numpy: Any) -> None:
    tensor = make("int64")
    torch.from_dlpack(tensor)[1, 2] = 77
    assert numpy.from_dlpack(tensor)[1, 2] == 77


def test_jax_views_a_tensor() -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    code = (
        "import jax, struct, sys; from forebay import _forebay\n"
        "tensor = _forebay._testing_tensor(struct.pack('<3f', 0.0, -0.5, 1e9), 'float32', [3])\n"
        "assert jax.dlpack.from_dlpack(tensor).tolist() == [0.0, -0.5, 1e9]\n"
        "assert 'torch' not in sys.modules\n"
    )
    # In a process of its own: once imported, jax warns at every later fork.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (3, 0, 2), (1,), (1, 1, 1, 1)])
def test_scalars_and_empty_tensors(shape: tuple[int, ...], numpy: Any) -> None:
    elements = 1
    for n in shape:
        elements *= n
    tensor = _forebay._testing_tensor(b"\x05\0" * elements, "int16", shape)
    for array in (numpy.from_dlpack(tensor), numpy.asarray(tensor)):
        assert array.shape == shape
        assert array.flatten().tolist() == [5] * elements


def test_memory_goes_with_the_last_view(numpy: Any) -> None:
    before = _forebay._testing_live()
    tensor = make("float64")
    array = numpy.from_dlpack(tensor)
    other = numpy.asarray(tensor)
    part = array[1:]
    del tensor, array
    assert _forebay._testing_live() == before + 1
    assert part.tolist() == [[2.0, 1e300, -1.0]]
    del part
    assert _forebay._testing_live() == before + 1
    del other
    assert _forebay._testing_live() == before


@pytest.mark.torch
@pytest.mark.parametrize("way", ["functions", "capsules"])
def test_torch_makes_tensors_by_its_functions_for_c_if_it_has_them(way: str) -> None:
    code = (
        "import sys, torch; from forebay import _forebay\n"
        "name = '__dlpack_c_exchange_api__'\n"
        "has = hasattr(torch.Tensor, name)\n"
        "if sys.argv[1] == 'capsules' and has: delattr(torch.Tensor, name)\n"
        "taken, take = [], torch.utils.dlpack.from_dlpack\n"
        "torch.utils.dlpack.from_dlpack = lambda capsule: (taken.append(0), take(capsule))[1]\n"
        "tensor = _forebay._testing_tensor(b'\\7', 'int8', [1])\n"
        "view = _forebay._testing_give(tensor, 'torch')\n"
        "assert type(view) is torch.Tensor and view.tolist() == [7]\n"
        "assert len(taken) == (0 if has and sys.argv[1] == 'functions' else 1), (has, taken)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, way], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.torch
@pytest.mark.parametrize("framework", ["torch", "torch by capsule"])
def test_memory_goes_with_the_last_torch_view(framework: str, torch: Any) -> None:
    before = _forebay._testing_live()
    view = _forebay._testing_give(make("float32"), framework)
    part = view[0]
    del view
    assert _forebay._testing_live() == before + 1
    assert part.tolist() == [0.0, -0.5, 1.5]
    del part
    assert _forebay._testing_live() == before


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3)])
def test_a_capsule_that_nobody_takes_frees_itself(version: tuple[int, int] | None) -> None:
    before = _forebay._testing_live()
    capsule = make("int8").__dlpack__(max_version=version)
    name = "dltensor_versioned" if version and version[0] >= 1 else "dltensor"
    assert f'"{name}"' in repr(capsule)
    assert _forebay._testing_live() == before + 1
    del capsule
    assert _forebay._testing_live() == before


@pytest.mark.torch
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_is_taken_once(version: tuple[int, int] | None, torch: Any) -> None:
    before = _forebay._testing_live()
    capsule = make("int8").__dlpack__(max_version=version)
    view = torch.utils.dlpack.from_dlpack(capsule)
    with pytest.raises(RuntimeError):
        torch.utils.dlpack.from_dlpack(capsule)
    del capsule
    assert _forebay._testing_live() == before + 1
    del view
    assert _forebay._testing_live() == before


def test_the_last_view_dies_on_another_thread(numpy: Any) -> None:
    before = _forebay._testing_live()
    views = [numpy.from_dlpack(make("int64")) for _ in range(64)]
    threads = [threading.Thread(target=views.pop) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _forebay._testing_live() == before


def test_the_deleter_runs_without_the_interpreters_lock() -> None:
    before = _forebay._testing_live()
    capsule = make("int64").__dlpack__(max_version=(1, 0))
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = b"used_dltensor_versioned"
    managed = pointer(capsule, b"dltensor_versioned")
    assert rename(capsule, used) == 0
    # version (8 bytes), manager, deleter; ctypes lets go of the lock while it calls.
    deleter = ctypes.c_void_p.from_address(managed + 16).value
    assert deleter is not None
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(managed)
    assert _forebay._testing_live() == before
    del capsule
    assert _forebay._testing_live() == before


def test_views_may_live_until_the_interpreter_ends() -> None:
    pytest.importorskip("numpy")
    code = (
        "import builtins, numpy; from forebay import _forebay\n"
        "tensor = _forebay._testing_tensor(bytes(64), 'int64', [8])\n"
        "builtins.kept = numpy.from_dlpack(tensor), tensor.__dlpack__(max_version=(1, 0))\n"
    )
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_drops_views(numpy: Any) -> None:
    array = numpy.from_dlpack(make("int64"))
    child = os.fork()
    if child == 0:
        del array
        os._exit(0 if _forebay._testing_live() == 0 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert array.tolist()[1][2] == 2**63 - 1


def test_a_copy_is_apart(numpy: Any) -> None:
    before = _forebay._testing_live()
    tensor = make("int32")
    copy = numpy.from_dlpack(tensor, copy=True)
    copy[0, 0] = 5
    assert numpy.from_dlpack(tensor)[0, 0] == -(2**31)
    del tensor
    assert _forebay._testing_live() == before
    assert copy.tolist()[0][0] == 5


def test_what_cannot_be_exported_is_refused() -> None:
    tensor = make("int32")
    with pytest.raises(BufferError, match="where it is"):
        tensor.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="no streams"):
        tensor.__dlpack__(stream=1)  # type: ignore[arg-type]
    tensor.__dlpack__(stream=None, dl_device=(1, 0), copy=False)


def test_plain_tensors_are_given_as_they_are() -> None:
    given = _forebay._testing_give(make("int32"), "plain")
    assert isinstance(given, Tensor)
    assert given.shape == (2, 3)

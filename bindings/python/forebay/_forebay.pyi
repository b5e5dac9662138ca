"""The compiled half of the package."""

from collections.abc import Sequence
from typing import Any, Final, final

from typing_extensions import CapsuleType

__all__ = [
    "Tensor",
    "__version__",
    "_testing_give",
    "_testing_kinds",
    "_testing_live",
    "_testing_raise",
    "_testing_tensor",
    "run_cli",
]

__version__: Final[str]

@final
class Tensor:
    """A tensor in host memory, handed on by DLPack without a copy."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def run_cli(argv: Sequence[str]) -> int: ...
def _testing_tensor(data: bytes, dtype: str, shape: Sequence[int]) -> Tensor: ...
def _testing_live() -> int: ...
def _testing_give(tensor: Tensor, framework: str | None = None) -> Any: ...
def _testing_kinds() -> list[str]: ...
def _testing_raise(kind: str, message: str, hint: str | None = None) -> None: ...

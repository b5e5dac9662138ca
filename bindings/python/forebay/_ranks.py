"""Which part of each global batch this process takes.

In this order: the arguments `rank` and `world_size`, which belong together; a `torch.distributed` `DeviceMesh`; the
environment variables `RANK` and `WORLD_SIZE` that launchers set; `torch.distributed` if it is initialised, for
launchers that set them in part or not at all, as Lightning's; else one process that takes everything. Environment and
group are looked at when an iterator is made, not before: frameworks make loaders before ranks exist.

Of a mesh, dimensions that split the data count, and peers along the others get the same batches. Their names:
those in `DATA_DIMENSIONS` split the data, several of them together (`dp_replicate` outside `dp_shard`); those in
`MODEL_DIMENSIONS` do not. A mesh of one dimension splits the data whatever its name, unless that is a model dimension.

torch is looked up among the modules already imported, never imported.
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NamedTuple, Protocol

from forebay.errors import InvalidError

DATA_DIMENSIONS = frozenset(
    {
        "batch",
        "data",
        "data_parallel",
        "ddp",
        "dp",
        "dp_replicate",
        "dp_shard",
        "fsdp",
        "replicate",
        "shard",
    }
)
"""Names of mesh dimensions along which ranks get different samples."""

MODEL_DIMENSIONS = frozenset(
    {
        "context_parallel",
        "cp",
        "ep",
        "etp",
        "expert_parallel",
        "model",
        "model_parallel",
        "mp",
        "pipeline_parallel",
        "pp",
        "sequence_parallel",
        "sp",
        "tensor_parallel",
        "tp",
    }
)
"""Names of mesh dimensions along which ranks get the same samples."""

_logger = logging.getLogger("forebay")
_logged: set["Ranks"] = set()


class Mesh(Protocol):
    """What is used of a `torch.distributed.device_mesh.DeviceMesh`."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Names of the dimensions."""

    @property
    def shape(self) -> Sequence[int]:
        """Ranks along each dimension."""

    def get_coordinate(self) -> Sequence[int] | None:
        """Where this process stands, if it does."""


class Ranks(NamedTuple):
    """This process among those that share a global batch."""

    rank: int
    world_size: int
    source: str
    """Where that is from, in words."""

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}, from {self.source}"


def resolve(
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mesh | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ranks:
    """The rank of this process, or an `InvalidError` that says why there is none. Called when an iterator is made."""
    refuse_workers()
    if rank is not None or world_size is not None:
        if mesh is not None:
            raise InvalidError(f"a mesh says the rank already: rank={rank} world_size={world_size}")
        return given(rank, world_size)
    if mesh is not None:
        return _of_mesh(mesh)
    environment = os.environ if environment is None else environment
    group = _of_group()
    whole = "RANK" in environment and "WORLD_SIZE" in environment
    ranks = _of_environment(environment) if whole or group is None else group
    if group is not None and group[:2] != ranks[:2]:
        raise InvalidError.of(
            "the environment and torch.distributed do not agree on the ranks: "
            f"RANK={ranks.rank} WORLD_SIZE={ranks.world_size} rank={group.rank} world_size={group.world_size}",
            "rank= and world_size=, or mesh=",
        )
    if ranks.world_size > 1 and _inside_torch_loader():
        raise InvalidError.of(
            "inside a torch DataLoader the rank must be given, since a wrapper may split the batches once more: "
            f"RANK={ranks.rank} WORLD_SIZE={ranks.world_size}",
            "rank= and world_size=, or mesh=",
        )
    if ranks.world_size > 1 and ranks not in _logged:
        _logged.add(ranks)
        _logger.info("%s", ranks)
    return ranks


def given(rank: int | None, world_size: int | None) -> Ranks:
    """The rank from the two arguments, which come together."""
    if rank is None or world_size is None:
        raise InvalidError(f"rank and world_size come together: rank={rank} world_size={world_size}")
    return _checked(rank, world_size, "the arguments")


def refuse_workers() -> None:
    """Raises in a worker process of a torch `DataLoader`: each would read, and yield, everything."""
    torch_data = sys.modules.get("torch.utils.data")
    worker = torch_data.get_worker_info() if torch_data is not None else None
    if worker is not None:
        raise InvalidError.of(
            "this is a worker process of a torch DataLoader, and each of them would yield every batch: "
            f"num_workers={worker.num_workers}",
            "iterate over forebay.DataLoader itself, or wrap it with num_workers=0 and batch_size=None",
        )


def _of_mesh(mesh: Mesh) -> Ranks:
    names, shape, place = mesh.mesh_dim_names, mesh.shape, mesh.get_coordinate()
    if place is None:
        raise InvalidError(f"this process is not in the mesh: dimensions={names} shape={tuple(shape)}")
    if names is None:
        names = ("",) * len(shape)
    data = [at for at, name in enumerate(names) if name in DATA_DIMENSIONS]
    unknown = [at for at, name in enumerate(names) if name not in DATA_DIMENSIONS | MODEL_DIMENSIONS]
    if unknown and len(shape) > 1:
        raise InvalidError.of(
            f"it is not clear which dimensions of the mesh split the data: dimensions={names}",
            "mesh=mesh[name] with the one that does, or rank= and world_size=",
        )
    rank, world_size = 0, 1
    for at in data or unknown:
        rank, world_size = rank * shape[at] + place[at], world_size * shape[at]
    return _checked(rank, world_size, "the mesh")


def _of_group() -> Ranks | None:
    """The rank in torch's default process group, if there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Ranks(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_environment(environment: Mapping[str, str]) -> Ranks:
    rank, world_size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return Ranks(0, 1, "nothing said")
    if rank is None or world_size is None:
        raise InvalidError(
            f"RANK and WORLD_SIZE come together, the environment has one of them: RANK={rank} WORLD_SIZE={world_size}"
        )
    try:
        numbers = int(rank), int(world_size)
    except ValueError:
        raise InvalidError(
            f"RANK and WORLD_SIZE in the environment are numbers: RANK={rank!r} WORLD_SIZE={world_size!r}"
        ) from None
    return _checked(*numbers, "the environment")


def local_world_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks share this machine, where a launcher says so."""
    text = environment.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() and 0 < int(text) < 2**31 else None


def _checked(rank: int, world_size: int, source: str) -> Ranks:
    if not 0 <= rank < world_size:
        raise InvalidError(f"a rank is at least 0 and below world_size: rank={rank} world_size={world_size}")
    return Ranks(rank, world_size, source)


def _inside_torch_loader() -> bool:
    """Whether one of the callers is a torch `DataLoader`."""
    if "torch.utils.data" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.utils.data."):
            return True
        frame = frame.f_back
    return False

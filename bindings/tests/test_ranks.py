"""Where the rank comes from, and when there is none."""

import logging
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from forebay import InvalidError, _ranks
from forebay._ranks import Ranks, resolve


class FakeMesh(NamedTuple):
    """As much of a DeviceMesh as is used."""

    mesh_dim_names: tuple[str, ...] | None
    shape: Sequence[int]
    coordinate: Sequence[int] | None

    def get_coordinate(self) -> Sequence[int] | None:
        return self.coordinate


@pytest.fixture(autouse=True)
def _not_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ranks, "_logged", set())


def test_arguments_come_first() -> None:
    assert resolve(2, 4, environment={"RANK": "0", "WORLD_SIZE": "8"})[:2] == (2, 4)
    assert str(resolve(0, 1)) == "rank 0 of 1, from the arguments"


@pytest.mark.parametrize(("rank", "world_size"), [(1, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_arguments_that_make_no_rank(rank: int | None, world_size: int | None) -> None:
    with pytest.raises(InvalidError, match="world_size"):
        resolve(rank, world_size, environment={})


@pytest.mark.parametrize(
    ("names", "shape", "coordinate", "expected"),
    [
        (("dp",), (4,), (3,), (3, 4)),
        (None, (4,), (3,), (3, 4)),
        (("mine",), (4,), (3,), (3, 4)),
        (("dp", "tp"), (4, 2), (3, 1), (3, 4)),
        (("pp", "dp_replicate", "dp_shard", "cp", "tp"), (2, 2, 3, 2, 2), (1, 1, 2, 0, 1), (5, 6)),
        (("dp_replicate", "dp_shard"), (2, 3), (1, 0), (3, 6)),
        (("tp",), (8,), (5,), (0, 1)),
        (("pp", "tp"), (2, 4), (1, 3), (0, 1)),
    ],
)
def test_a_mesh_counts_the_dimensions_that_split_the_data(
    names: tuple[str, ...] | None, shape: Sequence[int], coordinate: Sequence[int], expected: tuple[int, int]
) -> None:
    mesh = FakeMesh(names, shape, coordinate)
    assert resolve(mesh=mesh, environment={"RANK": "7", "WORLD_SIZE": "9"})[:2] == expected


def test_meshes_that_make_no_rank() -> None:
    with pytest.raises(InvalidError, match="not clear which"):
        resolve(mesh=FakeMesh(("mine", "tp"), (2, 2), (0, 0)))
    with pytest.raises(InvalidError, match="not clear which"):
        resolve(mesh=FakeMesh(None, (2, 2), (0, 0)))
    with pytest.raises(InvalidError, match="not in the mesh"):
        resolve(mesh=FakeMesh(("dp",), (2,), None))
    with pytest.raises(InvalidError, match="says the rank already"):
        resolve(1, 2, mesh=FakeMesh(("dp",), (2,), (1,)))


def test_the_environment_is_last_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "4"}
    with caplog.at_level(logging.INFO, "forebay"):
        assert resolve(environment=environment) == Ranks(1, 4, "the environment")
        resolve(environment=environment)
    assert caplog.messages == ["rank 1 of 4, from the environment"]


def test_the_environment_is_the_process_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert resolve()[:2] == (2, 3)


def test_nothing_said_is_one_process(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "forebay"):
        assert resolve(environment={})[:2] == (0, 1)
    assert not caplog.messages


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "1"},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": ""},
    ],
)
def test_environments_that_make_no_rank(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="rank|RANK"):
        resolve(environment=environment)


def fake_torch(worker: object) -> Any:
    module: Any = ModuleType("torch.utils.data")
    module.get_worker_info = lambda: worker
    return module


def test_workers_of_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", fake_torch(SimpleNamespace(num_workers=3)))
    for rank, world_size in ((None, None), (0, 1)):
        with pytest.raises(InvalidError, match="num_workers=3"):
            resolve(rank, world_size, environment={})


def wrapped(module: str, environment: dict[str, str], rank: int | None = None, world_size: int | None = None) -> Ranks:
    """Resolves from a frame of that module."""
    scope: dict[str, Any] = {"__name__": module, "resolve": resolve}
    exec("def call(*arguments): return resolve(*arguments)", scope)  # noqa: S102 (a frame with that name)
    found: Ranks = scope["call"](rank, world_size, None, environment)
    return found


def test_inside_a_torch_loader_several_ranks_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.data", fake_torch(None))
    many = {"RANK": "1", "WORLD_SIZE": "2"}
    with pytest.raises(InvalidError, match="must be given"):
        wrapped("torch.utils.data.dataloader", many)
    assert wrapped("torch.utils.data.dataloader", many, 1, 2)[:2] == (1, 2)
    assert wrapped("torch.utils.data.dataloader", {"RANK": "0", "WORLD_SIZE": "1"})[:2] == (0, 1)
    assert wrapped("my.own.module", many)[:2] == (1, 2)


def asks() -> Any:
    torch_data = pytest.importorskip("torch.utils.data")

    class Asks(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[str]:
            # As text: a worker process that raises takes torch five seconds to end.
            try:
                yield str(resolve(environment={"RANK": "1", "WORLD_SIZE": "2"}))
            except InvalidError as error:
                yield str(error)

    return torch_data, Asks()


@pytest.mark.torch
def test_a_real_torch_loader_is_seen() -> None:
    torch_data, dataset = asks()
    assert list(dataset) == ["rank 1 of 2, from the environment"]
    (said,) = torch_data.DataLoader(dataset, batch_size=None)
    assert "must be given" in said


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_real_torch_worker_is_refused() -> None:
    torch_data, dataset = asks()
    (said,) = torch_data.DataLoader(dataset, batch_size=None, num_workers=1)
    assert "num_workers=1" in said


@pytest.mark.torch
def test_a_real_mesh_has_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"))
        assert resolve(mesh=mesh) == (0, 1, "the mesh")
        assert resolve(mesh=mesh["dp"]) == (0, 1, "the mesh")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("text", "expected"), [("8", 8), ("1", 1), ("", None), ("0", None), ("-1", None), ("many", None), ("9" * 12, None)]
)
def test_how_many_ranks_share_the_machine(text: str, expected: int | None) -> None:
    assert _ranks.local_world_size({"LOCAL_WORLD_SIZE": text}) == expected
    assert _ranks.local_world_size({}) is None

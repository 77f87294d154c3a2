"""Workers on a cluster: a stand-in for Ray whose workers are lost as a test says, and, slow, Ray itself."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.errors import BoxwrightError, DataError
from boxwright.base.ray_pool import TRIES, over_ray, shares


class LostError(Exception):
    """A worker that is lost."""


class Cluster:
    """What is used of Ray, in this process: calls run when they are waited for, the newest first.

    Attributes:
        lost: For each call in turn, whether it ends its worker.
        options: What each worker asks for.
        sent: What each call was given.
    """

    exceptions = type("exceptions", (), {"RayActorError": LostError, "ObjectLostError": LostError})

    def __init__(
        self, lost: Callable[[Any], bool] = lambda task: False, resources: dict[str, float] | None = None
    ) -> None:
        self.lost, self.resources = lost, resources or {"CPU": 2.0}
        self.options: list[dict[str, Any]] = []
        self.sent: list[Any] = []
        self.started = self.killed = 0

    def init(self, **_: Any) -> None:
        pass

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def put(self, value: Any) -> Any:
        return value

    def kill(self, worker: Any) -> None:
        self.killed += 1

    def wait(self, calls: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert timeout < 100
        return calls[-num_returns:], calls[:-num_returns]

    def get(self, call: Any) -> Any:
        return call()

    def remote(self, kind: type) -> Any:
        def method(worker: Any, name: str) -> Any:
            def call(argument: Any, *more: Any) -> Any:
                self.sent.append(argument)

                def run() -> Any:
                    if self.lost(argument):
                        raise LostError("it was killed")
                    return getattr(worker, name)(argument, *more)

                return run

            return type("Method", (), {"remote": staticmethod(call)})()

        class Actor:
            def __init__(self) -> None:
                worker = kind()
                self.open, self.run = method(worker, "open"), method(worker, "run")

        cluster = self

        class Class:
            def options(self, **options: Any) -> Any:
                cluster.options.append(options)
                return self

            def remote(self) -> Any:
                cluster.started += 1
                return Actor()

        return Class()


def run(cluster: Cluster, tasks: list[Any], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Any]:
    monkeypatch.setitem(sys.modules, "ray", cluster)
    return sorted(over_ray(lambda: lambda task: task * 10, tasks, settings.pop("workers", 0), **settings))


def test_each_task_is_done_once_and_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    assert run(cluster, [1, 2, 3, 4, 5], monkeypatch) == [10, 20, 30, 40, 50]
    assert cluster.started == 2, "as many as the cluster has processors"
    assert sorted(item for item in cluster.sent if isinstance(item, int)) == [1, 2, 3, 4, 5]
    assert run(Cluster(), [], monkeypatch) == []


def test_a_task_that_ends_its_workers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(lost=lambda task: task == 3)
    given_up: list[tuple[Any, str]] = []

    def give_up(task: Any, problem: str) -> int:
        given_up.append((task, problem))
        return -1

    assert run(cluster, [1, 2, 3, 4], monkeypatch, give_up=give_up) == [-1, 10, 20, 40]
    assert given_up == [(3, "3 workers ended on it, one after the other, possibly out of memory")]
    assert cluster.sent.count(3) == TRIES
    with pytest.raises(DataError, match="^Ray: a task was given up: 3 workers ended on it"):
        run(Cluster(lost=lambda task: task == 3), [3], monkeypatch)


def test_workers_that_are_lost_while_they_start_count_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What opens a worker is given a function, a task is a number."""
    started: list[bool] = []

    def lost(argument: Any) -> bool:
        if callable(argument):
            started.append(len(started) % TRIES != TRIES - 1)  # two of three
            return started[-1]
        return cluster.sent.count(argument) == 1  # each task once, so that further workers start

    cluster = Cluster(lost)
    assert run(cluster, [1, 2, 3], monkeypatch, workers=1) == [10, 20, 30]
    assert sum(started) > TRIES
    with pytest.raises(DataError, match="^Ray: 3 workers ended while they were started"):
        run(Cluster(callable), [1], monkeypatch)


def test_workers_that_are_lost_now_and_then_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, once = random.Random(0), set()

    def lost(task: Any) -> bool:
        if not isinstance(task, int) or task in once or rng.random() < 0.5:
            return False
        once.add(task)
        return True

    assert run(Cluster(lost), list(range(50)), monkeypatch) == [task * 10 for task in range(50)]
    assert len(once) > 10


def test_workers_that_do_not_start_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="^Ray: 3 workers ended while they were started: it was killed$"):
        run(Cluster(lost=callable), list(range(200)), monkeypatch, workers=100)


def test_an_error_of_ours_comes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing model, of 186 workers: one line."""
    monkeypatch.setitem(sys.modules, "ray", cluster := Cluster(resources={"CPU": 186.0}))

    def make() -> Any:
        raise BoxwrightError("model: no such file")

    with pytest.raises(BoxwrightError, match="^model: no such file$"):
        list(over_ray(make, list(range(1000)), 0))
    assert cluster.killed == 185


@pytest.mark.parametrize(
    ("resources", "workers", "device", "expected"),
    [
        ({"CPU": 64.0}, 0, "auto", (64, 0.0)),
        ({"CPU": 64.0}, 8, "auto", (8, 0.0)),
        ({"CPU": 4.0}, 8, "cpu", (4, 0.0)),
        ({"CPU": 64.0, "GPU": 8.0}, 0, "auto", (8, 1.0)),
        ({"CPU": 64.0, "GPU": 8.0}, 4, "cuda", (4, 1.0)),
        ({"CPU": 64.0, "GPU": 2.0}, 6, "cuda", (6, 0.333)),
        ({"CPU": 64.0, "GPU": 8.0}, 0, "cpu", (64, 0.0)),
    ],
)
def test_what_workers_ask_for(
    resources: dict[str, float], workers: int, device: str, expected: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shares(resources, workers, device) == expected
    cluster = Cluster(resources=resources)
    run(cluster, list(range(100)), monkeypatch, workers=workers, device=device)
    assert cluster.options == [{"num_cpus": 1, "num_gpus": expected[1], "max_restarts": 0}]
    assert cluster.started == expected[0]


def test_a_cluster_without_a_gpu_that_was_asked_for() -> None:
    with pytest.raises(DataError, match="--engine ray --device cuda: the cluster has no GPU"):
        shares({"CPU": 4.0}, 0, "cuda")


def deadly(folder: Path) -> Callable[[int], int]:
    return partial(do, folder)


def do(folder: Path, task: int) -> int:
    """Return a task; 7 kills its worker each time, every third one at first."""
    tries = folder / f"{task}-{time.monotonic_ns()}"
    tries.touch()
    if task == 7 or (task % 3 == 0 and len(list(folder.glob(f"{task}-*"))) == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return task


@contextmanager
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Start two nodes of a cluster, which `over_ray` uses and whose workers import the tests; skip where Ray is absent.

    Yields:
        The cluster, and its second node.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as RayCluster

    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", root + os.pathsep + os.environ.get("PYTHONPATH", ""))
    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster, second
        assert len(ray.nodes()) == 2
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of what it deprecates
def test_two_nodes_whose_workers_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_nodes(monkeypatch):
        done = sorted(over_ray(partial(deadly, tmp_path), list(range(12)), 0, give_up=lambda task, _: -task))
        assert done == sorted([*range(7), -7, *range(8, 12)])
        assert len(list(tmp_path.glob("7-*"))) == TRIES


def slow(seconds: float) -> Callable[[int], int]:
    return partial(do_slowly, seconds)


def do_slowly(seconds: float, task: int) -> int:
    time.sleep(seconds)
    return task


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of what it deprecates
def test_a_node_that_is_killed_loses_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_nodes(monkeypatch) as (cluster, second):
        results = over_ray(partial(slow, 0.2), list(range(40)), 0)
        # At any moment: both workers are at work, or the second is being started.
        done = [next(results) for _ in range(random.randrange(1, 20))]
        cluster.remove_node(second, allow_graceful=False)
        assert sorted([*done, *results]) == list(range(40))

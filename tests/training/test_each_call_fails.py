"""Each call that writes fails once, or ends the process, while a run goes on: its last whole state is what it was."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
import torch

import boxwright as bw
from boxwright.base.errors import BoxwrightError
from boxwright.base.files import partial_files
from boxwright.weights.store import CheckpointStore, load_sealed_archive, read_checkpoint
from tests.failing_calls import PROBLEM, failing, killed

OWN_INITIALIZERS = True


def go_on(config: Path, folder: Path, steps: int, every: int = 2) -> None:
    settings = bw.RunSettings(evaluate=True, workers=0, checkpoint_every_n=every, device="cpu")
    bw.train(bw.load_config(config, [f"train_config.num_steps={steps}"]), folder, settings)


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(folder / f"ckpt-{step}.pt")["network"])


def require_whole(folder: Path, wanted: dict[int, dict[str, torch.Tensor]]) -> None:
    """Refuse a run whose checkpoints are not those of a run that nothing disturbed, or that has lost the first."""
    found = [int(path.stem.removeprefix("ckpt-")) for path in CheckpointStore(folder).paths()]
    assert 2 in found
    for step in found:
        for name, tensor in weights(folder, step).items():
            assert torch.equal(tensor, wanted[step][name]), (step, name)


@pytest.fixture
def undisturbed(small_config: Path, tmp_path: Path) -> tuple[Path, dict[int, dict[str, torch.Tensor]]]:
    """A run of two steps, and the weights of the steps of one that went on to the fourth."""
    go_on(small_config, tmp_path / "two", 2)
    shutil.copytree(tmp_path / "two", tmp_path / "four")
    go_on(small_config, tmp_path / "four", 4, every=1)
    # A run that an error ends saves its last step, which may be the third.
    return tmp_path / "two", {step: weights(tmp_path / "four", step) for step in (2, 3, 4)}


def try_call(number: int, config: Path, run: tuple[Path, dict[int, dict[str, torch.Tensor]]]) -> list[str]:
    """Go on with a copy of a run while a call fails, then without; return the calls that were made."""
    began, wanted = run
    folder = began.parent / str(number)
    shutil.copytree(began, folder)
    problem = ""
    with failing(number) as calls:
        try:
            go_on(config, folder, 4)
        except BoxwrightError as error:
            problem = str(error)
    made = list(calls)
    assert problem == "" or PROBLEM in problem, problem
    # Without an error the run went on without a listener, or to the end.
    assert problem or (folder / "ckpt-4.pt").is_file(), made[number - 1 :]
    assert partial_files(folder) == [], made[number - 1]
    require_whole(folder, wanted)
    go_on(config, folder, 4)
    require_whole(folder, wanted)
    assert (folder / "ckpt-4.pt").is_file()
    shutil.rmtree(folder)
    return made


def test_each_call_that_saves_a_checkpoint_fails_once(tmp_path: Path) -> None:
    """A part of what follows, which `make test` tries: both kinds of checkpoint, each with one before it."""
    content = {"network": {"a": torch.arange(5.0)}}
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, content)
    store.save_best(1, content)
    before = (tmp_path / "ckpt-1.pt").read_bytes()
    for number in itertools.count(1):
        with failing(number) as calls:
            try:
                store.save(2, content)
                store.save_best(2, content)
            except bw.CheckpointError as error:
                assert f"{PROBLEM}; earlier ones are intact" in str(error)  # noqa: PT017  # the last one ends well
        assert partial_files(tmp_path) == []
        assert (tmp_path / "ckpt-1.pt").read_bytes() == before
        if len(calls) < number:
            break
        # The last call flushes a rename that has happened.
        assert load_sealed_archive(tmp_path / "best.pt")["step"] == (2 if number == 8 else 1)
    assert number == 9
    assert load_sealed_archive(tmp_path / "best.pt")["step"] == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_call_of_a_run_that_goes_on_fails_once(
    small_config: Path, undisturbed: tuple[Path, dict[int, dict[str, torch.Tensor]]]
) -> None:
    for number in itertools.count(1):
        if len(try_call(number, small_config, undisturbed)) < number:
            break
    assert number > 20


def end_at(number: int, config: Path, folder: Path) -> None:
    with failing(number, killed):
        go_on(config, folder, 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_is_killed_at_each_call_that_writes(
    small_config: Path, undisturbed: tuple[Path, dict[int, dict[str, torch.Tensor]]]
) -> None:
    """The next run takes its place, and ends with the same weights."""
    began, wanted = undisturbed
    fork = multiprocessing.get_context("fork")
    for number in itertools.count(1):
        folder = began.parent / str(number)
        shutil.copytree(began, folder)
        child = fork.Process(target=end_at, args=(number, small_config, folder))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        go_on(small_config, folder, 4)
        require_whole(folder, wanted)
        assert partial_files(folder) == []
        shutil.rmtree(folder)
    assert number > 20

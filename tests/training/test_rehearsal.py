"""The doctor's trial of a run's steps, which are those that training takes; and where the time of steps goes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import boxwright as bw
from boxwright.data.shapes import ShapesDataset
from boxwright.training import loop as profile
from boxwright.training import rehearsal
from boxwright.training.losses import LossModule
from boxwright.training.rehearsal import (
    DryRunReport,
    OutOfMemoryError,
    _measure,
    _take_steps,
    check_speed_and_memory,
    fitting_batch,
)
from boxwright.training.step import Learner
from boxwright.types import Sample
from tests.conftest import Silent
from tests.exporters.small_detectors import with_few_layers

CPU = torch.device("cpu")


@pytest.fixture
def room_for(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leave room for so many images."""
    forward = LossModule.forward

    def limit(most: int) -> None:
        def limited(self: LossModule, images: torch.Tensor, *others: Any) -> Any:
            if len(images) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return forward(self, images, *others)

        monkeypatch.setattr(LossModule, "forward", limited)

    return limit


def test_a_batch_that_fits_in_parts_alone_does_not_fit(small_config: Path, room_for: Any) -> None:
    """A run would go on in parts, and be slower than the doctor said."""
    room_for(2)
    config = bw.load_config(small_config)
    *_, found = _measure(config, CPU)
    assert (found.batches, found.split, found.parts) == ((1, 2), 4, 2)
    with mock.patch.object(rehearsal, "rehearse", return_value=found):
        memory = next(one for one in check_speed_and_memory(config, 1) if one.check == "memory")
    assert memory.verdict == "fatal"
    assert memory.found == "a batch of 4 does not fit on the CPU at once"
    assert memory.remedy == "train_config.gradient_accumulation_steps: 2 learns the same in parts of 2"


def test_advice_is_below_what_failed(small_config: Path) -> None:
    """Whatever the line through two small batches says of it."""
    small = DryRunReport("GPU (cuda:0)", (1, 2), (2**30, 3 * 2**29), (0.1, 0.2), 2.0**34, 0.01)
    config = bw.load_config(small_config, ["train_config.batch_size=8"])
    for failed, wanted in ((replace(small, split=8, parts=4), "4 learns the same in parts of 2"),
                           (replace(small, killed=True), "2 learns the same in parts of 4")):  # fmt: skip
        with mock.patch.object(rehearsal, "rehearse", return_value=failed):
            memory = next(one for one in check_speed_and_memory(config, 1) if one.check == "memory")
        assert (memory.verdict, memory.remedy) == ("fatal", f"train_config.gradient_accumulation_steps: {wanted}")


def test_a_batch_that_was_tried_fits(small_config: Path) -> None:
    """What PyTorch reserves on a GPU may come near all that there is; the step was taken nevertheless."""
    tried = DryRunReport("GPU (cuda:0)", (1, 2, 4), (2**30, 2**30, 2**33), (0.1, 0.2, 0.4), 2.0**32, 0.01)
    assert next(findings(tried, small_config)).startswith("warning: a batch of 4 takes 8.0 of 4.0 GiB")


def test_two_images_that_do_not_fit_are_out_of_memory(small_config: Path, room_for: Any) -> None:
    room_for(1)
    with pytest.raises(bw.TrainingError, match="not enough memory for a batch of 2 at once"):
        list(_measure(bw.load_config(small_config), CPU))


@pytest.mark.slow
def test_steps_are_those_of_a_run(small_config: Path) -> None:
    """Channels last, as a run places its network; on a GPU without waiting, so that there is a copy of the weights."""
    placed = []
    real = Learner.step

    def step(self: Learner, batch: Any, previous: Any = None, **how: Any) -> Any:
        kernels = [p for p in self.state.detector.network.parameters() if p.ndim == 4 and p.shape[1] > 1 < p.shape[2]]
        placed.append(all(one.is_contiguous(memory_format=torch.channels_last) for one in kernels) and bool(kernels))
        assert how == {"wait": True}, "a CPU waits"
        return real(self, batch, previous, **how)

    with mock.patch.object(Learner, "step", step):
        *_, found = _measure(bw.load_config(small_config), CPU)
    assert placed == [True] * 9
    assert (found.batches, found.split, found.device) == ((1, 2, 4), 0, "CPU")
    assert len(found.memory) == len(found.seconds) == 3
    assert min(found.seconds) > 0
    assert list(found.memory) == sorted(found.memory)


def test_on_a_gpu_steps_are_not_waited_for() -> None:
    learner, batch, reports = mock.Mock(), mock.Mock(), [mock.Mock() for _ in range(5)]
    learner.step.side_effect = reports
    with (
        mock.patch("torch.cuda.synchronize") as synchronize,
        mock.patch.object(rehearsal, "check_step") as check,
    ):
        assert _take_steps(learner, batch, torch.device("cuda", 1)) >= 0
    batch.to.assert_called_once_with(torch.device("cuda", 1))
    assert [one.kwargs for one in learner.step.call_args_list] == [{"wait": False}] * 5
    assert [one.args[1:] for one in learner.step.call_args_list] == [(), *((report,) for report in reports[:4])]
    check.assert_called_once_with(reports[4], learner.state)
    assert synchronize.call_args_list == [mock.call(torch.device("cuda", 1))] * 3, "each of the three timed steps"


@pytest.mark.parametrize(("outcome", "fits"), [({}, 16), ({"killed": True}, 8), ({"split": 16, "parts": 2}, 8)])
def test_a_batch_that_was_tried_and_failed_does_not_fit(outcome: dict[str, Any], fits: int, small_config: Path) -> None:
    """Predicted to take 2 of 16 GiB; what ends the process, or is learned from in parts alone, is halved."""
    measured = DryRunReport("CPU", (1, 2), (2**30 + 2**26, 2**30 + 2**27), (0.1, 0.2), 2.0**34, 0.01, **outcome)
    with mock.patch("boxwright.training.rehearsal.rehearse", return_value=measured) as tried:
        assert fitting_batch(bw.load_config(small_config), 16, tried=16) == (fits, measured)
    assert tried.call_args.args[0].train_config.batch_size == 16


def findings(found: DryRunReport | Exception, config: Path, device: str = "auto") -> Iterator[str]:
    with mock.patch.object(rehearsal, "rehearse", side_effect=[found]) as tried:
        yield from (f"{one.verdict}: {one.found}" for one in check_speed_and_memory(bw.load_config(config), 1, device))
        assert tried.call_args.args[1] == device


def test_nothing_is_said_of_a_gpu_where_none_was_tried(small_config: Path) -> None:
    steps = DryRunReport("CPU", (1, 2, 4), (2**30, 2**30, 2**31), (0.1, 0.2, 0.4), 2.0**34, 0.01)
    assert next(findings(steps, small_config)) == (
        "fine: a batch of 4 takes 2.0 of 16.0 GiB on the CPU (tried); nothing was tried on a GPU"
    )
    there = DryRunReport("GPU (cuda:1)", (1, 2, 4), (2**30, 2**30, 2**31), (0.1, 0.2, 0.4), 2.0**34, 0.01)
    assert next(findings(there, small_config, "cuda:1")) == (
        "fine: a batch of 4 takes 2.0 of 16.0 GiB on the GPU (cuda:1) (tried)"
    )
    assert next(findings(OutOfMemoryError("one image is too much"), small_config)) == "fatal: one image is too much"


def test_the_first_samples_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight samples of half a second, then ones of a hundredth; an epoch of twelve is gone through until 16 are read."""
    clock = [0.0]
    asked: list[tuple[int, int]] = []

    class Examples:
        def __getitem__(self, key: tuple[int, int]) -> Sample:
            asked.append(key)
            clock[0] += 0.5 if len(asked) <= 8 else 0.01
            return ShapesDataset(1, seed=0)[0]

    monkeypatch.setattr(rehearsal.time, "perf_counter", lambda: clock[0])
    samples, seconds = rehearsal._read(Examples(), 12)  # type: ignore[arg-type]
    assert len(samples) == 16
    assert asked[10:14] == [(0, 10), (0, 11), (1, 0), (1, 1)]
    assert seconds == pytest.approx(0.01)


class Listener(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def message(self, text: str) -> None:
        self.heard.append(text)


def test_profile_says_where_time_goes_and_saves_nothing(
    small_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few steps, of few layers: reading the trace takes longer than what it is of.
    monkeypatch.setattr(profile, "_WARM", 2)
    monkeypatch.setattr(profile, "_MEASURED", 3)
    small_config.write_text(with_few_layers(small_config.read_text()))
    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    listener = Listener()
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, profile=True), {"test": listener})
    heard = listener.heard
    shares = {line.split()[0]: float(line.split()[1].rstrip("%")) for line in heard if line.endswith("%")}
    assert list(shares) == ["data", "forward", "assignment", "losses", "backward", "optimizer", "rest"]
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    assert min(shares["forward"], shares["backward"]) > max(5, shares["assignment"])
    events = json.loads((tmp_path / "m" / "profile" / "trace.json").read_text())["traceEvents"]
    assert "no workers: each batch is read when it is wanted (--workers)" in heard
    names = {event.get("name") for event in events}
    assert {"forward", "assignment", "backward", "optimizer"} <= names
    assert not list((tmp_path / "m").glob("*.pt"))


@pytest.mark.slow
def test_profile_says_how_many_batches_lay_ready(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100"])
    listener = Listener()
    bw.train(config, tmp_path / "m", bw.RunSettings(workers=2, evaluate=False, profile=True), {"test": listener})
    (line,) = (text for text in listener.heard if text.startswith("batches ready"))
    found = re.fullmatch(r"batches ready when one was wanted: (\d+) to (\d+) of 6(; \d+ of 10 steps waited: .*)?", line)
    assert found, line
    assert 0 <= int(found[1]) <= int(found[2]) <= 6 + 2  # what a worker is making counts when it is made
    assert (int(found[1]) == 0) == bool(found[3])


def test_too_little_data_for_a_profile(small_config: Path, tmp_path: Path) -> None:
    config = bw.load_config(small_config, ["train_config.num_steps=100", "train_input_reader.num_epochs=1"])
    with pytest.raises(bw.TrainingError, match="the data ended before 15 steps"):
        bw.train(config, tmp_path / "m", bw.RunSettings(workers=0, evaluate=False, profile=True))

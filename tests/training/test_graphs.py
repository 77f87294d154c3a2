"""Network and losses as one graph. What a GPU does with it is in `test_gpu.py`; here it is captured and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import boxwright as bw
from boxwright.training.losses import GraphedLosses, in_bucket
from boxwright.types import Targets
from tests.exporters.small_detectors import with_few_layers
from tests.training.test_step import FROZEN, gradients, learner


def targets(objects: int) -> Targets:
    boxes = torch.arange(2 * objects * 4, dtype=torch.float32).view(2, objects, 4)
    ones = torch.ones(2, objects)
    return Targets(boxes, ones.long(), ones, ones > 0, keypoints=torch.ones(2, objects, 3, 2), group_of=ones > 0)


@pytest.mark.parametrize(
    ("objects", "bucket"), [(0, 32), (8, 32), (32, 32), (33, 128), (100, 128), (128, 128), (129, 256), (300, 512)]
)
def test_buckets_are_few(objects: int, bucket: int) -> None:
    given = targets(objects)
    padded = in_bucket(given)
    for name in ("boxes", "labels", "weights", "valid", "keypoints", "group_of"):
        before, after = getattr(given, name), getattr(padded, name)
        assert after.shape == (2, bucket, *before.shape[2:]), name
        assert after.dtype == before.dtype
        assert torch.equal(after[:, :objects], before)
        rest = after[:, objects:]
        assert bool(rest.isnan().all() if name == "keypoints" else (rest == 0).all()), name


def test_what_fits_is_not_copied() -> None:
    given = targets(32)
    assert in_bucket(given) is given


@pytest.mark.slow  # test_every_number_of_objects_… captures the same module
def test_steps_are_those_of_the_plain_module(small_config: Path) -> None:
    """The whole is captured without a break; losses and gradients are the plain ones', step by step.

    With statistics frozen: normalization over the few values of a small batch makes much of rounding.
    """
    torch._dynamo.reset()
    plain, batch = learner(small_config, FROZEN)
    graphed, _ = learner(small_config, FROZEN)
    graphed.module = GraphedLosses(graphed.losses, backend="eager")
    for _ in range(3):
        assert graphed.step(batch).losses == pytest.approx(plain.step(batch).losses, rel=1e-4)
    first, second = gradients(plain), gradients(graphed)
    assert first.keys() == second.keys()
    assert len(first) > 50
    for name, gradient in first.items():
        assert torch.allclose(gradient, second[name], rtol=1e-2, atol=1e-3 * float(gradient.abs().max()) + 1e-6), name


@pytest.mark.slow
def test_numbers_of_objects_in_one_bucket_share_a_graph(small_config: Path) -> None:
    torch._dynamo.reset()
    one, batch = learner(small_config)
    graphed = GraphedLosses(one.losses, backend="eager")
    few = batch.targets.boxes.shape[1]
    graphed(batch.images, batch.true_sizes, batch.targets.padded_to(few + 1))
    with torch.compiler.set_stance("fail_on_recompile"):
        for more in (2, 3, 4):
            graphed(batch.images, batch.true_sizes, batch.targets.padded_to(few + more))


def test_losses_that_are_no_graph_are_said() -> None:
    class Looks(Sum):
        def forward(self, images: torch.Tensor, true_sizes: torch.Tensor, targets: Targets) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(images, true_sizes, targets)

    torch._dynamo.reset()
    graphed = GraphedLosses(Looks(), backend="eager")  # type: ignore[arg-type]  # stands for a detector's losses
    with pytest.raises(bw.TrainingError, match="--cuda_graphs: this detector and its losses cannot be one graph"):
        graphed(torch.ones(2, 3, 4, 4), torch.ones(2, 2), targets(8))


@pytest.mark.slow  # the test above
def test_what_is_no_graph_is_said(small_config: Path) -> None:
    torch._dynamo.reset()
    small_config.write_text(with_few_layers(small_config.read_text()))
    one, batch = learner(small_config)
    criterion = one.losses.detector.criterion

    def looks_at_values(*given: Any) -> Any:
        torch._dynamo.graph_break()
        return criterion(*given)

    one.losses.detector.criterion = looks_at_values  # type: ignore[assignment]
    with pytest.raises(bw.TrainingError, match="--cuda_graphs: this detector and its losses cannot be one graph"):
        GraphedLosses(one.losses, backend="eager")(batch.images, batch.true_sizes, batch.targets)


class Sum(torch.nn.Module):
    def forward(self, images: torch.Tensor, true_sizes: torch.Tensor, targets: Targets) -> torch.Tensor:
        return images.sum() + true_sizes.sum() + targets.boxes.sum()


@pytest.mark.slow
def test_every_number_of_objects_up_to_thousands_has_its_graph() -> None:
    """torch.compile by itself gives up after eight shapes; 12 powers of two from 8 on are 16384 objects an image."""
    torch._dynamo.reset()
    graphed = GraphedLosses(Sum(), backend="eager")  # type: ignore[arg-type]  # stands for a detector's losses
    images, sizes = torch.ones(2, 3, 4, 4), torch.ones(2, 2)
    for power in range(12):
        given = targets(8 << power)
        assert float(graphed(images, sizes, given)) == pytest.approx(float(Sum()(images, sizes, given)), rel=1e-5)


def test_too_many_shapes_are_said() -> None:
    torch._dynamo.reset()
    graphed = GraphedLosses(Sum(), backend="eager")  # type: ignore[arg-type]
    with pytest.raises(bw.TrainingError, match="--cuda_graphs: batches have more than 16 shapes"):
        for side in range(2, 30):
            graphed(torch.ones(2, 3, side, 4), torch.ones(2, 2), targets(8))


@pytest.mark.parametrize("when", ["compiling", "running"])
def test_a_capture_that_does_not_happen_is_an_error_with_its_reason(when: str) -> None:
    """PyTorch's compiler says what it skips where it is asked to; on a CPU it never tries, so its words are called up."""
    from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

    def skip(*_: Any) -> None:
        with torch._inductor.config.patch({"triton.cudagraph_or_error": True}):
            log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to cpu device (arange)")

    def backend(graph: Any, _: Any) -> Any:
        if when == "compiling":
            skip()
        return skip

    torch._dynamo.reset()
    wanted = r"--cuda_graphs: nothing was captured: .*skipping cudagraphs due to cpu device \(arange\)"
    with pytest.raises(bw.TrainingError, match=wanted):
        GraphedLosses(Sum(), backend=backend)(torch.ones(2, 3, 4, 4), torch.ones(2, 2), targets(8))  # type: ignore[arg-type]


def test_a_backward_pass_that_is_not_captured_is_an_error_too(small_config: Path) -> None:
    """It is compiled when it first runs, outside of the call that is watched."""
    one, batch = learner(small_config)
    with (
        mock.patch(
            "torch.autograd.backward", side_effect=RuntimeError("skipping cudagraphs due to mutated inputs (2)")
        ),
        pytest.raises(
            bw.TrainingError, match="--cuda_graphs: nothing was captured: skipping cudagraphs due to mutated"
        ),
    ):
        one.step(batch)


def test_the_compiler_is_asked_to_say_what_it_skips() -> None:
    with mock.patch("torch.compile") as compiles, torch._inductor.config.patch({"triton.cudagraph_or_error": False}):
        GraphedLosses(Sum())  # type: ignore[arg-type]
        assert torch._inductor.config.triton.cudagraph_or_error, "what is skipped at a replay asks the process"
    options = compiles.call_args.kwargs["options"]
    assert options == {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}
    assert options.keys() <= set(torch._inductor.list_options())


def test_memory_that_is_too_small_is_said_not_split(small_config: Path) -> None:
    one, batch = learner(small_config)

    class TooLarge(torch.nn.Module):
        def forward(self, *_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    one.module = TooLarge()
    with pytest.raises(bw.TrainingError, match="CUDA graphs learn from a batch at once"):
        one.step(batch)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("", "no GPU"),
        pytest.param("train_config.gradient_accumulation_steps=2", "no GPU", marks=pytest.mark.slow),
    ],
)
def test_without_a_gpu_it_is_refused_before_the_first_step(
    small_config: Path, tmp_path: Path, change: str, why: str
) -> None:
    config = bw.load_config(small_config, [change] if change else [])
    with pytest.raises(bw.TrainingError, match=f"--cuda_graphs: .*{why}"):
        bw.train(config, tmp_path / "run", bw.RunSettings(cuda_graphs=True, device="cpu"))

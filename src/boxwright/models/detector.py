"""A detector: preprocessor, network, criterion and postprocessor, four siblings.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from boxwright.base.errors import ConfigError
from boxwright.criteria.criterion import Criterion
from boxwright.device import in_halves, without_wait
from boxwright.models.cpu_acceleration import accelerate_for_cpu
from boxwright.models.folding import fold_batch_norms
from boxwright.models.network import Network
from boxwright.models.regularization import regularization_loss
from boxwright.models.winograd import replace_by_winograd
from boxwright.postprocessing.postprocessor import Postprocessor, detections_of, detections_with
from boxwright.preprocessing.images import Images, Scale, image_tensors
from boxwright.preprocessing.preprocessor import Preprocessor
from boxwright.types import Categories, Detections, Targets

Judge = Callable[[Any, Tensor, int], dict[str, Tensor]]
# Of a network that takes inputs of any size, what it is tried on.
_TRIAL_SIZE = (256, 256)


class Detector(nn.Module):
    """A whole detector; as a module it is its network."""

    def __init__(
        self,
        preprocessor: Preprocessor,
        network: Network,
        criterion: Criterion[Any],
        postprocessor: Postprocessor[Any],
        *,
        num_classes: int,
        categories: Categories | None = None,
    ) -> None:
        """Assemble the detector.

        Args:
            preprocessor: Images to inputs.
            network: Inputs to predictions.
            criterion: Predictions and targets to losses.
            postprocessor: Predictions to detections.
            num_classes: Foreground classes of the network.
            categories: Their names, where known.
        """
        super().__init__()
        self.preprocessor = preprocessor
        self.network = network
        accelerate_for_cpu(network)
        self.criterion = criterion
        self.postprocessor = postprocessor
        self.num_classes = num_classes
        self.categories = categories
        self.optimized, self.dtype = False, torch.float32
        self._penalty: Tensor | None = None
        # How many images fit into the memory together; None as long as all did.
        self._at_once: int | None = None

    def forward(self, inputs: Tensor, true_sizes: Tensor | None = None, targets: Targets | None = None) -> Any:
        """Return the network's predictions for inputs float [B, C, H, W], before any decoding.

        `true_sizes` int64 [B, 2] is what `preprocess` returned; without, inputs have no padding. From `targets`
        two-stage networks sample in training.
        """
        if true_sizes is None:
            true_sizes = without_wait(torch.tensor([inputs.shape[-2:]] * len(inputs)), inputs.device)
        if self.dtype == torch.float32:
            return self.network(inputs, true_sizes, targets)
        with torch.autocast(inputs.device.type, self.dtype):
            return self.network(inputs, true_sizes, targets)

    def preprocess(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Resize and scale images of one size.

        Args:
            images: [B, H, W, C] in 0..255, of any dtype.

        Returns:
            Inputs float32 [B, C, H', W'], and true sizes int64 [B, 2].
        """
        found: tuple[Tensor, Tensor] = self.preprocessor(images)
        return found

    predict = forward

    def postprocess(self, predictions: Any, true_sizes: Tensor) -> list[Detections]:
        """Return B detections on the CPU, in pixels of the network's input.

        `true_sizes` int64 [B, 2] are as `preprocess` returned them.
        """
        return detections_of(self.postprocessor, predictions, true_sizes, self.categories)

    def regularization(self) -> Tensor:
        """Sum the penalties on the network's kernels; of an optimized detector, what they were before."""
        return regularization_loss(self.network) if self._penalty is None else self._penalty

    @torch.no_grad()
    def optimize(self, *, compile: bool = False, dtype: torch.dtype = torch.float32) -> Self:
        """Make inference faster, for good: the detector can neither be trained nor saved any more.

        Batch normalization is folded into convolutions, which is checked layer by layer, channels lie last, and on a
        CPU wide convolutions of 3×3 take a quarter of the multiplications; to the last digits of float32 the
        detections are the same.

        Args:
            compile: Whether the network is compiled at its first use, which takes a minute or more.
            dtype: The type that the network computes in; bfloat16 is faster on few processors, and changes scores.

        Returns:
            The detector itself.
        """
        self.eval().requires_grad_(False)
        self._penalty = self.regularization()
        height, width = self.preprocessor.resizer.output_size or _TRIAL_SIZE
        device = next(self.parameters()).device
        inputs = torch.linspace(-1, 1, self.preprocessor.resizer.channels * height * width, device=device)
        inputs = inputs.view(1, -1, height, width)
        fold_batch_norms(self.network, lambda: self.predict(inputs))
        self.to(memory_format=torch.channels_last)
        if device.type == "cpu" and dtype == torch.float32 and not compile:
            replace_by_winograd(self.network, lambda: self.predict(inputs))
        self.optimized, self.dtype = True, dtype
        if compile:
            self.network.compile(dynamic=False)
        return self

    def train(self, mode: bool = True) -> Self:
        """Set the mode; what was optimized cannot be trained, which is a ConfigError."""
        if mode and self.optimized:
            raise ConfigError("an optimized detector cannot be trained: its normalization is part of its convolutions")
        return super().train(mode)

    @torch.no_grad()
    def detect(self, images: Images, scale: Scale = "guess") -> list[Detections]:
        """Detect objects in images of any sizes.

        Images that have one size once resized share a batch; a mode of training is left for the
        time of the call.

        Args:
            images: HWC arrays, CHW tensors or PIL images, RGB (or one channel, which is repeated); none give none.
            scale: What floats are: "pixels" for 0..255, "unit" for 0..1, as torchvision has them. To "guess" takes
                them for pixels, and refuses a call whose largest float is no more than 1.

        Returns:
            One result an image, in pixels of that image; on the CPU, whatever the detector's device.

        Raises:
            DataError: For what is no list of images, for an image that has not three dimensions with 1, 3 or 4
                channels, or no pixels, and for floats on another scale.
        """
        training = self.training
        self.eval()
        try:
            return [one for found, _ in self.detect_runs(images, scale=scale) for one in found]
        finally:
            self.train(training)

    @torch.no_grad()
    def detect_runs(
        self, images: Images, judge: Judge | None = None, scale: Scale = "guess"
    ) -> Iterator[tuple[list[Detections], dict[str, float]]]:
        """Detect, run by run; the mode is the caller's to choose.

        Where the memory is too small for all images, they are processed in halves, and a log line says so; later calls
        begin with as many as fitted. A GPU is waited for once a run.

        Args:
            images: As for `detect`.
            judge: Is given the raw predictions of a run, its true sizes (int64 [B, 2], on the CPU) and the number of
                its first image, as an evaluation's losses need them; its numbers come with the detections.
            scale: As for `detect`.

        Yields:
            For each run of images that have one size once resized: their detections, and what `judge` returned;
            nothing without.
        """
        tensors = image_tensors(images, scale)

        def look(start: int, stop: int) -> list[tuple[list[Detections], dict[str, float]]]:
            return list(self._look(tensors[start:stop], judge, start))

        for most, found in in_halves(look, len(tensors), self._at_once):
            if most < len(tensors):
                self._at_once = most
            yield from found

    def _look(
        self, images: list[Tensor], judge: Judge | None, number: int
    ) -> Iterator[tuple[list[Detections], dict[str, float]]]:
        """Yield as `detect_runs`, of images [H, W, 3] of which the first has a number."""
        groups = _runs([(*image.shape, image.dtype, image.device) for image in images])
        inputs = [self.preprocessor.inputs_of(_joined([one[None] for one in images[a:b]])) for a, b in groups]
        for first, last in _runs([pixels.shape[1:] for pixels, _ in inputs]):
            start, stop = groups[first][0], groups[last - 1][1]
            pixels, sizes = (_joined(list(part)) for part in zip(*inputs[first:last], strict=True))
            there = without_wait(sizes, pixels.device)
            predictions = self.predict(pixels, there)
            judged = {} if judge is None else judge(predictions, sizes, number + start)
            found, values = detections_with(
                self.postprocessor, predictions, there, self.categories, list(judged.values())
            )
            yield (
                [_to_image(one, image) for one, image in zip(found, images[start:stop], strict=True)],
                {name: float(value) for name, value in zip(judged, values, strict=True)},
            )


def _joined(parts: list[Tensor]) -> Tensor:
    """Return parts of a batch together; of one, itself."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _runs(shapes: Sequence[object]) -> list[tuple[int, int]]:
    """Split a sequence into runs of equal neighbours."""
    starts = [i for i in range(len(shapes)) if i == 0 or shapes[i] != shapes[i - 1]]
    return list(zip(starts, [*starts[1:], len(shapes)], strict=True)) if shapes else []


def _to_image(found: Detections, image: Tensor) -> Detections:
    """Scale boxes from the network's input to the image as it was given."""
    height, width = image.shape[:2]
    true_height, true_width = found.image_size
    scale = torch.tensor([width / true_width, height / true_height] * 2)
    keypoints = None if found.keypoints is None else found.keypoints * scale[:2]
    return replace(found, boxes=found.boxes * scale, keypoints=keypoints, image_size=(height, width))

"""A detector: preprocessor, network, criterion and postprocessor, four siblings.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from boxwright.base.device import in_halves, without_wait
from boxwright.base.errors import ConfigError
from boxwright.nn.criteria.criterion import Criterion
from boxwright.nn.folding import fold_batch_norms, input_sizes
from boxwright.nn.initial_statistics import take_out_initial
from boxwright.nn.network import Network, evaluation_mode
from boxwright.nn.postprocessing.postprocessor import Postprocessor, compute_detections, compute_detections_on_cpu
from boxwright.nn.preprocessing import Images, Preprocessor, image_tensors
from boxwright.nn.regularization import regularization_loss
from boxwright.nn.winograd import replace_by_winograd
from boxwright.types import Categories, Detections, Targets
from boxwright.types.context_features import ContextFeatures
from boxwright.types.pixels import Scale

# The trial size for networks that take inputs of any size.
_TRIAL_SIZE = (256, 256)


@dataclass(frozen=True)
class EvaluationLosses:
    """The losses to compute for a run of images, and the groundtruth that they take.

    Attributes:
        targets: Returns the groundtruth, given the true sizes (int64 [B, 2], on the CPU) and the index of the first.
        compute: Returns losses by name, given the raw predictions, the groundtruth and that index.
    """

    targets: Callable[[Tensor, int], Targets]
    compute: Callable[[Any, Targets, int], dict[str, Tensor]]


class Detector(nn.Module):
    """A complete detector; as a module it is its network.

    Attributes:
        white_level: What is white in images of floats and of more than 8 bits, as in the data that it was trained with;
            0 if those were of 8 bits.
    """

    white_level: float = 0.0

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
        self.criterion = criterion
        self.postprocessor = postprocessor
        self.num_classes = num_classes
        self.categories = categories
        self.optimized, self.dtype = False, torch.float32
        self._penalty: Tensor | None = None
        # The number of images that fit into memory together; None while all have fit.
        self._at_once: int | None = None

    def forward(
        self,
        inputs: Tensor,
        true_sizes: Tensor | None = None,
        targets: Targets | None = None,
        context: ContextFeatures | None = None,
    ) -> Any:
        """Return the network's predictions for inputs float [B, C, H, W], before any decoding.

        `true_sizes` int64 [B, 2] is what `preprocess` returned; without it, inputs have no padding. Two-stage networks
        sample proposals from `targets` in training. `context` is for Context R-CNN alone; without it, an image has
        none.
        """
        if true_sizes is None:
            true_sizes = without_wait(torch.tensor([inputs.shape[-2:]] * len(inputs)), inputs.device)
        given = (inputs, true_sizes, targets) if context is None else (inputs, true_sizes, targets, context)
        if self.dtype == torch.float32:
            return self.network(*given)
        with torch.autocast(inputs.device.type, self.dtype):
            return self.network(*given)

    def preprocess(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Resize and scale images of one size.

        Args:
            images: [B, H, W, C] in 0..255, of any dtype.

        Returns:
            Inputs float32 [B, C, H', W'], and true sizes int64 [B, 2].
        """
        pixels_and_sizes: tuple[Tensor, Tensor] = self.preprocessor(images)
        return pixels_and_sizes

    def predict(
        self,
        inputs: Tensor,
        true_sizes: Tensor | None = None,
        targets: Targets | None = None,
        context: ContextFeatures | None = None,
    ) -> Any:
        """Return what calling the detector returns, by another name; arguments are those of `forward`."""
        return self(inputs, true_sizes, targets, context)

    def postprocess(self, predictions: Any, true_sizes: Tensor) -> list[Detections[Tensor]]:
        """Return B detections on the CPU, in pixels of the network's input, with `raw`, all before suppression.

        `true_sizes` int64 [B, 2] are as `preprocess` returned them. The raw values stay on their device.
        """
        return compute_detections(self.postprocessor, predictions, true_sizes, self.categories)

    def regularization(self) -> Tensor:
        """Return the sum of the penalties on the network's kernels; if optimized, the sum before optimization."""
        return regularization_loss(self.network) if self._penalty is None else self._penalty

    @property
    def image_channels(self) -> int:
        """How many channels the images have that it takes: 3, or more that records store beside colors."""
        return max(self.preprocessor.resizer.channels, 3)

    @torch.no_grad()
    def optimize(self, *, compile: bool = False, dtype: torch.dtype = torch.float32) -> Self:
        """Speed up inference irreversibly: the detector can no longer be trained or saved.

        Batch normalization is folded into the weights of convolutions, verified layer by layer, and memory is
        channels-last. On a CPU, wide 3×3 convolutions become new modules of Winograd's algorithm, whose kernels take
        four times the memory. Detections are equal up to float32 rounding.

        Args:
            compile: Whether the network is compiled on first use, which takes a minute or more.
            dtype: The network's compute type; bfloat16 is faster on few processors, and changes scores.

        Returns:
            The detector itself.
        """
        take_out_initial(self.network)
        self.eval().requires_grad_(False)
        # Folded kernels have other values, and an evaluation reports the loss of the weights that were trained.
        self._penalty = self.regularization()
        height, width = self.preprocessor.resizer.output_size or _TRIAL_SIZE
        device = next(self.parameters()).device
        # Values that differ: folding is verified on them, and a constant image would hide a wrong channel.
        inputs = torch.linspace(-1, 1, self.preprocessor.resizer.channels * height * width, device=device)
        inputs = inputs.view(1, -1, height, width)
        # Read while folding runs the network anyway: a run takes seconds.
        sizes = input_sizes(self.network, lambda: fold_batch_norms(self.network, lambda: self.predict(inputs)))
        self.to(memory_format=torch.channels_last)
        if device.type == "cpu" and dtype == torch.float32 and not compile:
            replace_by_winograd(self.network, sizes)
        self.optimized, self.dtype = True, dtype
        if compile:
            self.network.compile(dynamic=False)
        return self

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002  # PyTorch's signature
        """Set the mode; raises a ConfigError for an optimized detector."""
        if mode and self.optimized:
            raise ConfigError(
                "an optimized detector cannot be trained: its normalization is folded into its convolutions"
            )
        return super().train(mode)

    @torch.no_grad()
    def detect(
        self, images: Images, scale: Scale = "guess", context: ContextFeatures | None = None
    ) -> list[Detections[Tensor]]:
        """Detect objects in images of any sizes.

        Images of the same size after resizing share a batch; the network is in evaluation mode during the call.

        Args:
            images: HWC arrays, CHW tensors or PIL images, RGB (or one channel, which is repeated); may be empty. The
                EXIF orientation of a PIL image is applied.
            scale: What is white in images that are not uint8: "pixels" for 255, "unit" for 1, as in torchvision, or
                the number. "guess" takes `white_level`, or else assumes pixels, and rejects a call whose largest float
                is no more than 1.
            context: Features of other images, for Context R-CNN alone; None for none.

        Returns:
            One result per image, in pixels of that image (upright), on the CPU.

        Raises:
            DataError: For an argument that is not a list of images, an image that is empty or has not three dimensions
                with 1, 3 or 4 channels, and values on another scale.
        """
        # An optimized detector cannot be trained; reading the modes of its modules takes a millisecond.
        with nullcontext() if self.optimized else evaluation_mode(self):
            return [
                detections
                for batch_detections, _ in self.detect_runs(images, scale=scale, context=context)
                for detections in batch_detections
            ]

    @torch.no_grad()
    def detect_runs(
        self,
        images: Images,
        losses: EvaluationLosses | None = None,
        scale: Scale = "guess",
        context: ContextFeatures | None = None,
    ) -> Iterator[tuple[list[Detections[Tensor]], dict[str, float]]]:
        """Detect, run by run, in the network's current mode.

        If memory is too small for all images, they are processed in halves, with a log line; later calls start with the
        number that fit. A GPU is synchronized once per run.

        Args:
            images: As for `detect`.
            losses: Computed and yielded with the detections; the network is given their groundtruth too, as some losses
                compare what is predicted for it.
            scale: As for `detect`.
            context: As for `detect`.

        Yields:
            For each run of images of the same size after resizing: their detections, and the losses, empty if none
            were asked for.
        """
        tensors = image_tensors(images, scale, self.image_channels, self.white_level)

        def look(start: int, stop: int) -> list[tuple[list[Detections[Tensor]], dict[str, float]]]:
            part = None if context is None else context.rows(start, stop)
            return list(self._look(tensors[start:stop], losses, start, part))

        for most, results in in_halves(look, len(tensors), self._at_once):
            if most < len(tensors):
                self._at_once = most
            yield from results

    def _look(
        self, images: list[Tensor], losses: EvaluationLosses | None, number: int, context: ContextFeatures | None
    ) -> Iterator[tuple[list[Detections[Tensor]], dict[str, float]]]:
        """Yield as `detect_runs` for images [H, W, 3]; `number` is the index of the first."""
        # Twice: images of one size are resized together, and inputs of one size after that share a pass.
        groups = _runs([(*image.shape, image.dtype, image.device) for image in images])
        inputs = [self.preprocessor.to_inputs(_joined([image[None] for image in images[a:b]])) for a, b in groups]
        for first, last in _runs([pixels.shape[1:] for pixels, _ in inputs]):
            start, stop = groups[first][0], groups[last - 1][1]
            pixels, sizes = (_joined(list(part)) for part in zip(*inputs[first:last], strict=True))
            sizes_on_device = without_wait(sizes, pixels.device)
            targets = None if losses is None else losses.targets(sizes, number + start)
            part = None if context is None else context.rows(start, stop).to(pixels.device)
            predictions = self.predict(pixels, sizes_on_device, targets, part)
            terms = {} if losses is None or targets is None else losses.compute(predictions, targets, number + start)
            batch_detections, values = compute_detections_on_cpu(
                self.postprocessor, predictions, sizes_on_device, self.categories, list(terms.values())
            )
            yield (
                [
                    _to_image(detections, image)
                    for detections, image in zip(batch_detections, images[start:stop], strict=True)
                ],
                {name: float(value) for name, value in zip(terms, values, strict=True)},
            )


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the concatenated parts of a batch."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _runs(shapes: Sequence[object]) -> list[tuple[int, int]]:
    """Return the (start, stop) of each run of equal neighbors."""
    starts = [i for i in range(len(shapes)) if i == 0 or shapes[i] != shapes[i - 1]]
    return list(zip(starts, [*starts[1:], len(shapes)], strict=True)) if shapes else []


def _to_image(detections: Detections[Tensor], image: Tensor) -> Detections[Tensor]:
    """Return detections with boxes scaled from the network's input to the original image."""
    height, width = image.shape[:2]
    true_height, true_width = detections.image_size
    scale = torch.tensor([width / true_width, height / true_height] * 2)
    keypoints = None if detections.keypoints is None else detections.keypoints * scale[:2]
    covered = None if detections.mask_boxes is None else detections.mask_boxes * scale
    return replace(
        detections,
        boxes=detections.boxes * scale,
        keypoints=keypoints,
        mask_boxes=covered,
        image_size=(height, width),
    )

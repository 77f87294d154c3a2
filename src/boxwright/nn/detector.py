"""A detector: preprocessor, network, criterion and postprocessor, four siblings.

Dimensions: B batch, H W image, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from boxwright.base.device import in_halves, usual_modes, without_wait
from boxwright.base.errors import ConfigError
from boxwright.nn.criteria.criterion import Criterion
from boxwright.nn.cuda_graphs import Capture, DetectionGraphs, capture_on_cuda
from boxwright.nn.folding import fold_batch_norms, input_sizes
from boxwright.nn.initial_statistics import take_out_initial
from boxwright.nn.network import Network, evaluation_mode
from boxwright.nn.postprocessing.postprocessor import (
    Postprocessor,
    Selected,
    compute_detections,
    fetch_detections,
    select_on_device,
)
from boxwright.nn.preprocessing import Images, Preprocessor, image_tensors
from boxwright.nn.regularization import regularization_loss
from boxwright.nn.winograd import replace_by_winograd
from boxwright.types import Categories, Detections, Targets
from boxwright.types.context_features import ContextFeatures
from boxwright.types.pixels import Scale, group_images

# The trial size for networks that take inputs of any size.
_TRIAL_SIZE = (256, 256)


@dataclass(frozen=True)
class EvaluationLosses:
    """The losses to compute for images that share a batch, and the groundtruth that they take.

    Attributes:
        targets: Returns the groundtruth, given the images' indices and true sizes (int64 [B, 2], on the CPU).
        compute: Returns losses by name, given the raw predictions, the groundtruth and those indices.
    """

    targets: Callable[[Sequence[int], Tensor], Targets]
    compute: Callable[[Any, Targets, Sequence[int]], dict[str, Tensor]]


# The detections in an image, and the losses of the batch that it was in; empty if none were asked for.
DetectionsAndLosses = tuple[Detections[Tensor], dict[str, float]]


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
        self._graphs: DetectionGraphs[Selected] | None = None
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
            dtype: The network's compute type. bfloat16 and float16 are faster on GPUs, bfloat16 on few CPUs too; both
                change scores. Normalization, softmax, boxes and suppression stay float32.

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
        if dtype != torch.float32:
            # Autocast would cast their weights anew at each call. Layers that are not called by themselves stay
            # float32: other modules read their weights (deformable convolutions).
            for layer in sizes:
                layer.to(dtype)
        self.optimized, self.dtype = True, dtype
        if compile:
            self.network.compile(dynamic=False)
        return self

    def use_cuda_graphs(self, capture: Capture[Selected] | None = None) -> Self:
        """Detect with a CUDA graph for each of the first four shapes of batches, from pixels to selected boxes.

        Weights, device and postprocessor must stay as they are from now on, and one thread at a time may detect.
        Batches with losses or with context of other images have no graph.

        Args:
            capture: Captures the operations of a batch; by default, on the detector's GPU.

        Returns:
            The detector itself.

        Raises:
            ConfigError: If it is not optimized, or its inputs have several sizes. The first detection raises one if
                the network or the suppression waits for the GPU.
        """
        if not self.optimized:
            raise ConfigError("CUDA graphs are of optimized detectors: call optimize() first")
        if self.preprocessor.resizer.output_size is None:
            raise ConfigError("--cuda_graphs: the resizer gives inputs of several sizes")
        on_gpu: Capture[Selected] = partial(capture_on_cuda, device=next(self.parameters()).device)
        self._graphs = DetectionGraphs(self._select, capture or on_gpu)
        return self

    def _select(self, pixels: Tensor, true_sizes: Tensor) -> Selected:
        """Return the boxes selected in resized images, as `Preprocessor.normalize` takes them."""
        inputs = self.preprocessor.normalize(pixels, true_sizes)
        return select_on_device(self.postprocessor, self.predict(inputs, true_sizes), true_sizes)

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002  # PyTorch's signature
        """Set the mode; raises a ConfigError for an optimized detector."""
        if mode and self.optimized:
            raise ConfigError(
                "an optimized detector cannot be trained: its normalization is folded into its convolutions"
            )
        return super().train(mode)

    @usual_modes()
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
            return [detections for detections, _ in self.detect_with_losses(images, scale=scale, context=context)]

    @usual_modes()
    @torch.no_grad()
    def detect_with_losses(
        self,
        images: Images,
        losses: EvaluationLosses | None = None,
        scale: Scale = "guess",
        context: ContextFeatures | None = None,
    ) -> list[DetectionsAndLosses]:
        """Return the detections in each image, with the losses of its batch, in the network's current mode.

        If memory is too small for all images, they are processed in halves, with a log line; later calls start with the
        number that fit. A GPU is synchronized once for each size of the network's input.

        Args:
            images: As for `detect`.
            losses: Computed beside the detections; the network is given their groundtruth too, as some losses compare
                what is predicted for it.
            scale: As for `detect`.
            context: As for `detect`.

        Returns:
            For each image, in order, its detections and the losses by name; without `losses` there are none.
        """
        tensors = image_tensors(images, scale, self.image_channels, self.white_level)

        def look(start: int, stop: int) -> list[DetectionsAndLosses]:
            return self._detect_together(tensors, range(start, stop), losses, context)

        results: list[DetectionsAndLosses] = []
        for most, some in in_halves(look, len(tensors), self._at_once):
            if most < len(tensors):
                self._at_once = most
            results += some
        return results

    def _detect_together(
        self,
        images: list[Tensor],
        indices: Sequence[int],
        losses: EvaluationLosses | None,
        context: ContextFeatures | None,
    ) -> list[DetectionsAndLosses]:
        """Return what `detect_with_losses` does for those of the images [H, W, 3] that are chosen, in their order."""
        results: dict[int, DetectionsAndLosses] = {}
        for batch, pixels, sizes in self._batches(images, indices):
            sizes_on_device = without_wait(sizes, pixels.device)
            terms: dict[str, Tensor] = {}
            if losses is None and context is None:
                selected = (self._graphs or self._select)(pixels, sizes_on_device)
            else:
                targets = None if losses is None else losses.targets(batch, sizes)
                part = None if context is None else context.at(batch).to(pixels.device)
                inputs = self.preprocessor.normalize(pixels, sizes_on_device)
                predictions = self.predict(inputs, sizes_on_device, targets, part)
                if losses is not None and targets is not None:
                    terms = losses.compute(predictions, targets, batch)
                selected = select_on_device(self.postprocessor, predictions, sizes_on_device)
            batch_detections, values = fetch_detections(
                self.postprocessor, selected, sizes_on_device, self.categories, list(terms.values())
            )
            named = {name: float(value) for name, value in zip(terms, values, strict=True)}
            for index, detections in zip(batch, batch_detections, strict=True):
                results[index] = _to_image(detections, images[index]), named
        return [results[index] for index in indices]

    def _batches(self, images: list[Tensor], indices: Sequence[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield the batches of images: their indices, resized pixels, and true sizes on the CPU.

        Images of one size are resized together, wherever they are, and those of one size after that share a batch.
        """
        same_size = group_images(indices, lambda i: (images[i].shape, images[i].dtype, images[i].device))
        resized = [self.preprocessor.resize(_joined([images[i][None] for i in group])) for group in same_size]
        for numbers in group_images(range(len(resized)), lambda number: resized[number][0].shape[1:]):
            pixels, sizes = zip(*(resized[number] for number in numbers), strict=True)
            yield [index for number in numbers for index in same_size[number]], _joined(pixels), _joined(sizes)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return the concatenated parts of a batch."""
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _to_image(detections: Detections[Tensor], image: Tensor) -> Detections[Tensor]:
    """Return detections with boxes scaled from the network's input to the original image."""
    height, width = image.shape[:2]
    true_height, true_width = detections.image_size
    scale = torch.tensor([width / true_width, height / true_height])
    return detections.with_points(lambda points: points * scale, (height, width))

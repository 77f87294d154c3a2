"""The contenders of small_data.py: detectors of ours and of torchvision's, from scratch, at 320×320, in batches of 8.

Both learn from the same decoded samples in memory, in the process that trains, without workers.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import boxwright as bw
from boxwright.config.load import dump_message
from boxwright.exporters.export import export
from boxwright.pipeline.messages import DetectionModel
from boxwright.types import Array, Categories, Detections, Sample

if TYPE_CHECKING:
    # Imported where it is used: it takes seconds, and other scripts import this one for their data alone.
    from torchvision.transforms import v2

SIDE, BATCH = 320, 8
Pixels = NDArray[np.uint8]
# Mirroring, crops, brightness and contrast as `boxwright init` chooses them.
AUGMENTATION = """
  data_augmentation_options { random_horizontal_flip { } }
  data_augmentation_options { random_crop_image { min_object_covered: 0.0 min_aspect_ratio: 0.75 max_aspect_ratio: 1.8
    min_area: 0.5 max_area: 1.0 overlap_thresh: 0.4 random_coef: 0.4 } }
  data_augmentation_options { random_adjust_brightness { max_delta: 0.12 } }
  data_augmentation_options { random_adjust_contrast { min_delta: 0.8 max_delta: 1.25 } }
"""


class Samples:
    """Decoded samples in memory."""

    def __init__(self, name: str, categories: Categories, samples: Sequence[Sample]) -> None:
        """Keep them."""
        self.name, self.categories, self.samples = name, categories, samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


class Training(Protocol):
    """A detector in training."""

    def step(self) -> None:
        """Learn from a batch, which is read and augmented here."""

    def detectors(self) -> dict[str, nn.Module]:
        """Return the networks to judge by name: "evaluated", and others of the same run."""

    def find(self, network: nn.Module, images: Sequence[Pixels]) -> list[Detections[Array]]:
        """Return what a network finds in images."""

    def export(self, network: nn.Module, path: Path, images: Sequence[Pixels]) -> Callable[[Pixels], Pixels]:
        """Write an ONNX file, and return how its input follows from an image."""


Contender = Callable[[Samples, int, int], Training]


class Ours:
    """A detector of ours, which `bw.Learner` trains as `bw.train` does."""

    def __init__(self, config: Any, data: Samples, seed: int) -> None:
        """Build it from a loaded configuration."""
        self.learner = bw.Learner(config, dataset=data, device="cpu", seed=seed)
        self.batches = self.learner.batches()

    def step(self) -> None:
        """Learn from a batch."""
        self.learner.step(next(self.batches))

    def detectors(self) -> dict[str, nn.Module]:
        """Return the average, the weights of the last step, and the average with its own statistics."""
        with tempfile.TemporaryDirectory() as folder:
            self.learner.save(folder)
            average, _, _ = bw.restore_detector(folder)
        return {"evaluated": average, "last": self.learner.detector, "statistics again": self.estimated(average)}

    @torch.no_grad()
    def estimated(self, detector: bw.Detector) -> bw.Detector:
        """Return a copy whose batch normalization has the plain mean of the statistics of further training batches."""
        found = copy.deepcopy(detector).train()
        for module in found.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None
        for batch in islice(self.batches, 25):
            found.predict(found.preprocessor.normalize(batch.images, batch.true_sizes), batch.true_sizes, batch.targets)
        return found.eval()

    def find(self, network: nn.Module, images: Sequence[Pixels]) -> list[Detections[Array]]:
        """Return what a detector finds."""
        detector = cast(bw.Detector, network)
        return [detector.detect([image])[0].arrays() for image in images]

    def export(self, network: nn.Module, path: Path, images: Sequence[Pixels]) -> Callable[[Pixels], Pixels]:
        """Write an ONNX file, which takes uint8 [1, H, W, 3]."""
        export(cast(bw.Detector, network), path, images=images, allow_difference=True)
        return lambda image: image[None]


class _AsTensors(torch.utils.data.Dataset[Any]):
    """Samples as torchvision's transforms take them, and transformed."""

    def __init__(self, data: Samples, transform: Callable[..., Any]) -> None:
        self.data, self.transform = data, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        from torchvision import tv_tensors

        sample = self.data[index]
        height, width = sample.image.shape[:2]
        boxes = tv_tensors.BoundingBoxes(torch.from_numpy(sample.boxes), format="XYXY", canvas_size=(height, width))
        # 0 is torchvision's background.
        target = {"boxes": boxes, "labels": torch.from_numpy(sample.labels) + 1}
        image, target = self.transform(tv_tensors.Image(torch.from_numpy(sample.image).permute(2, 0, 1)), target)
        return image, target


class Torchvision:
    """A detector of torchvision's in its reference scripts' loop: SGD, an epoch or less to warm up, a cosine."""

    def __init__(
        self, name: str, rate: float, augmentation: Sequence[v2.Transform], data: Samples, steps: int, seed: int
    ) -> None:
        """Build it.

        Args:
            name: Torchvision's.
            rate: The highest learning rate.
            augmentation: What precedes mirroring.
            data: What it learns from.
            steps: How many the schedule has.
            seed: Of weights, order and augmentation.
        """
        from torchvision.models import get_model
        from torchvision.transforms import v2

        torch.manual_seed(seed)
        self.categories = data.categories
        self.network = get_model(name, weights=None, weights_backbone=None, num_classes=len(data.categories) + 1)
        transform = v2.Compose(
            [
                *augmentation,
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.SanitizeBoundingBoxes(),
                v2.ToPureTensor(),
            ]
        )
        self.loader = torch.utils.data.DataLoader(
            _AsTensors(data, transform),
            BATCH,
            shuffle=True,
            drop_last=True,
            collate_fn=lambda rows: tuple(zip(*rows, strict=True)),
        )
        self.optimizer = torch.optim.SGD(self.network.parameters(), rate, momentum=0.9, weight_decay=4e-5)
        warm_up = max(min(len(self.loader) - 1, steps // 10), 1)
        self.schedule = SequentialLR(
            self.optimizer,
            [
                LinearLR(self.optimizer, 0.001, total_iters=warm_up),
                CosineAnnealingLR(self.optimizer, max(steps - warm_up, 1)),
            ],
            [warm_up],
        )
        self.batches = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def step(self) -> None:
        """Learn from a batch."""
        images, targets = next(self.batches)
        losses = self.network.train()(list(images), list(targets))
        total = torch.stack(list(losses.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        self.optimizer.step()
        self.schedule.step()

    def detectors(self) -> dict[str, nn.Module]:
        """Return the weights of the last step."""
        return {"evaluated": self.network}

    @torch.inference_mode()
    def find(self, network: nn.Module, images: Sequence[Pixels]) -> list[Detections[Array]]:
        """Return what a detector finds."""
        network.eval()
        return [self._found(network([_unit(image)])[0], image) for image in images]

    def _found(self, found: dict[str, Tensor], image: Pixels) -> Detections[Array]:
        height, width = image.shape[:2]
        return Detections(
            boxes=found["boxes"].numpy(),
            scores=found["scores"].numpy(),
            labels=found["labels"].numpy() - 1,
            image_size=(height, width),
            categories=self.categories,
        )

    def export(self, network: nn.Module, path: Path, images: Sequence[Pixels]) -> Callable[[Pixels], Pixels]:
        """Write an ONNX file by torch.onnx, which takes float [3, H, W] in 0..1, of the first image's size."""
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            # By torch.export, its suppression cannot be exported ("data-dependent").
            torch.onnx.export(network.eval(), ([_unit(images[0])],), str(path), dynamo=False, opset_version=18)
        return lambda image: _unit(image).numpy()


def _unit(image: Pixels) -> Tensor:
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def _config(model: str, steps: int, optimizer: str, clip: float, average: float, augmentation: str = "") -> Any:
    """Return a configuration of ours, with augmentation before the usual one."""
    text = f"""model {{ {model} }}
      train_config {{ batch_size: {BATCH} num_steps: {steps} gradient_clipping_by_norm: {clip}
        optimizer {{ {optimizer} use_moving_average: true moving_average_decay: {average} }}
        {augmentation} {AUGMENTATION} }}
      eval_config {{ use_moving_averages: true }}"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.config"
        path.write_text(text)
        return bw.load_config(path)


def of_preset(name: str, rate: float, changes: Sequence[str] = ()) -> Contender:
    """Return a preset's network at 320×320, with Adam, a twentieth of the steps to warm up, then a cosine."""
    kind = "refinedet" if name.startswith("refinedet") else "ssd"

    def build(data: Samples, steps: int, seed: int) -> Training:
        sides = [f"model.{kind}.image_resizer.fixed_shape_resizer.{side}={SIDE}" for side in ("height", "width")]
        classes = f"model.{kind}.num_classes={len(data.categories)}"
        model = dump_message(cast(DetectionModel, bw.load_config(f"preset:{name}", [*sides, classes, *changes]).model))
        optimizer = f"""adam_optimizer {{ learning_rate {{ cosine_decay_learning_rate {{
            learning_rate_base: {rate} total_steps: {steps} warmup_learning_rate: {rate / 10}
            warmup_steps: {max(steps // 20, 1)} }} }} }}"""
        return Ours(_config(model, steps, optimizer, 10.0, 0.99), data, seed)

    return build


@dataclass(frozen=True)
class DFine:
    """A recipe of D-FINE at 320×320: AdamW, a twelfth of the steps to warm up, half at the full rate, then a cosine.

    Attributes:
        backbone: The factor of the backbone's rate.
        warm_up: Steps, instead of a twelfth.
        total: Steps of the schedule, instead of all.
        loss: Of classes.
        activation: Of the decoder.
        denoising: Queries.
        frozen: Whether the backbone's normalization keeps its first statistics.
        mixed: The share of images that a mosaic of four replaces, in the first half of the steps.
        probe: Whether to keep an average with the constant decay of 0.9999, too.
    """

    rate: float
    clip: float = 0.5
    backbone: float = 1.0
    warm_up: int = 0
    total: int = 0
    size: str = "N"
    loss: str = "VARIFOCAL"
    activation: str = "RELU"
    denoising: int = 100
    average: float = 0.998
    frozen: bool = False
    mixed: float = 0.0
    probe: bool = False

    def __call__(self, data: Samples, steps: int, seed: int) -> Training:
        """Build it."""
        total = self.total or steps
        model = f"""d_fine {{ num_classes: {len(data.categories)} size: {self.size}
            image_resizer {{ fixed_shape_resizer {{
              height: {SIDE} width: {SIDE} resize_method: BILINEAR_ANTIALIASED }} }}
            feature_extractor {{ freeze_batchnorm: {str(self.frozen).lower()} }}
            denoising {{ num_queries: {self.denoising} }} loss {{ classification: {self.loss} }}
            decoder {{ activation: {self.activation} }} }}"""
        optimizer = f"""adamw_optimizer {{ weight_decay: 1e-4 learning_rate {{ cosine_decay_learning_rate {{
              learning_rate_base: {self.rate} total_steps: {total} warmup_learning_rate: {self.rate / 100}
              warmup_steps: {self.warm_up or max(steps // 12, 1)} hold_base_rate_steps: {total // 2}
              end_factor: 0.05 }} }} }}
            parameter_group {{ variables: "^backbone\\\\." learning_rate_factor: {self.backbone} }}"""
        mosaic = f"""data_augmentation_options {{ until_step: {steps // 2} random_mosaic {{
            probability: {self.mixed} height: {SIDE} width: {SIDE} }} }}"""
        config = _config(model, steps, optimizer, self.clip, self.average, mosaic if self.mixed else "")
        return Probed(config, data, seed) if self.probe else Ours(config, data, seed)


@dataclass(frozen=True)
class RfDetr:
    """RF-DETR at 320×320: AdamW, a twelfth of the steps to warm up, half at the full rate, then a cosine.

    All layers have one rate, as none has learned anything before: weights start at random.

    Attributes:
        backbone: Fields of `feature_extractor`.
        groups: Of queries.
    """

    rate: float
    backbone: str = ""
    groups: int = 13

    def __call__(self, data: Samples, steps: int, seed: int) -> Training:
        """Build it."""
        model = f"""rf_detr {{ num_classes: {len(data.categories)}
            image_resizer {{ fixed_shape_resizer {{
              height: {SIDE} width: {SIDE} resize_method: BILINEAR_ANTIALIASED }} }}
            feature_extractor {{ grid: {SIDE // 16} {self.backbone} }} decoder {{ num_groups: {self.groups} }} }}"""
        optimizer = f"""adamw_optimizer {{ weight_decay: 1e-4 learning_rate {{ cosine_decay_learning_rate {{
              learning_rate_base: {self.rate} total_steps: {steps} warmup_learning_rate: {self.rate / 100}
              warmup_steps: {max(steps // 12, 1)} hold_base_rate_steps: {steps // 2} end_factor: 0.05 }} }} }}"""
        return Ours(_config(model, steps, optimizer, 0.5, 0.998), data, seed)


class Probed(Ours):
    """As `Ours`, with an average of weights and statistics whose decay is 0.9999 from the first step on."""

    def __init__(self, config: Any, data: Samples, seed: int) -> None:
        """Build it."""
        super().__init__(config, data, seed)
        self.shadow = {name: value.clone() for name, value in self._floats().items()}

    def _floats(self) -> dict[str, Tensor]:
        state = self.learner.detector.network.state_dict()
        return {name: value for name, value in state.items() if value.is_floating_point()}

    def step(self) -> None:
        """Learn from a batch."""
        super().step()
        now = self._floats()
        torch._foreach_lerp_(list(self.shadow.values()), [now[name] for name in self.shadow], 1e-4)

    def detectors(self) -> dict[str, nn.Module]:
        """Return the constant average, too."""
        found = super().detectors()
        constant = copy.deepcopy(found["evaluated"])
        constant.get_submodule("network").load_state_dict(self.shadow, strict=False)
        return found | {"constant decay of 0.9999": constant}


# Torchvision's references train SSDLite with a rate of 0.15 and 8 × 24 images, and its augmentation `ssdlite`.
SSDLITE = "ssdlite320_mobilenet_v3_large"
_SSDLITE_RATE = 0.15 * BATCH / 192


def ssdlite(factor: float) -> Contender:
    """Return torchvision's SSDLite with a multiple of the references' rate, scaled to the batch."""

    def build(data: Samples, steps: int, seed: int) -> Training:
        from torchvision.transforms import v2

        return Torchvision(SSDLITE, factor * _SSDLITE_RATE, [v2.RandomIoUCrop()], data, steps, seed)

    return build


CONTENDERS: dict[str, Contender] = {
    "FPNLite": of_preset("ssd_mobilenet_v2_fpn_small", 3e-3),
    "FPNLite, decay 0.9": of_preset(
        "ssd_mobilenet_v2_fpn_small",
        3e-3,
        [
            f"model.ssd.{part}.conv_hyperparams.batch_norm.decay=0.9"
            for part in ("feature_extractor", "box_predictor.weight_shared_convolutional_box_predictor")
        ],
    ),
    "FPNLite, full width": of_preset("ssd_mobilenet_v2_fpnlite_320", 3e-3),
    "RefineDet": of_preset("refinedet_mobilenet_v2_bccd", 2e-3),
    "torchvision SSDLite": ssdlite(1),
    "torchvision SSDLite, 4 × rate": ssdlite(4),
    "D-FINE-N": DFine(1e-3, probe=True),
    "D-FINE-N, matchability-aware": DFine(1e-3, loss="MATCHABILITY_AWARE"),
    "D-FINE-N, rate 2e-3": DFine(2e-3),
    "D-FINE-N, rate 2e-4": DFine(2e-4),
    "D-FINE-N, statistics frozen": DFine(1e-3, frozen=True),
    "D-FINE-N, mosaics": DFine(1e-3, mixed=0.5),
    "D-FINE-N, no denoising": DFine(1e-3, denoising=0),
    "D-FINE-S": DFine(5e-4, size="S"),
    "DEIM-N": DFine(1e-3, loss="MATCHABILITY_AWARE", activation="SILU"),
    "RF-DETR-N": RfDetr(3e-4),
    "RF-DETR, narrow": RfDetr(5e-4, "width: 192 depth: 6 num_heads: 3 taken: [2, 4, 6]", groups=5),
}

"""The task of keypoints: heatmap, offset, vector from the center, and depth (Objects as Points, section 4.2).

Dimensions: B batch, G objects (padded), P keypoints of the task, n cells around a point, H W grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxwright.base.device import constants
from boxwright.base.errors import DataError
from boxwright.families.center_net.cells import (
    CellBoxes,
    Grid,
    as_rows_of_cells,
    brightest,
    cells_around,
    gaussian_deviations,
    gaussians,
    grid_shape,
    points_in_cells,
    read_each,
)
from boxwright.families.center_net.criteria.task import Stages, known, mean_over_stages
from boxwright.families.center_net.predictions import KeypointMaps, StageMaps
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.criteria.losses import ClassificationLoss, LocalizationLoss
from boxwright.types import Targets

# The overlap that sets a Gaussian's radius, whatever the centers'; and the weight below which a keypoint is unknown.
_MIN_IOU = 0.7
_UNKNOWN = 1e-3


@dataclass(frozen=True)
class KeypointTargets:
    """The keypoints that a task learns.

    Attributes:
        label: The class that has them.
        indices: Their places among the keypoints of the label map.
    """

    label: int
    indices: tuple[int, ...]

    def __call__(self, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return points float [B, P, G, 2], y, x in cells, and their weights float [B, P, G].

        Those of other classes, and unknown ones, have a weight of 0.
        """
        count = max(self.indices) + 1
        keypoints = self.of_task(known(targets.keypoints, targets, (count, 2), "keypoints"))
        seen = ~keypoints[..., 1].isnan()
        weights = seen * (targets.weights * (targets.labels == self.label))[:, None]
        return points_in_cells(keypoints.nan_to_num(nan=0.0)), weights

    def of_task(self, values: Tensor) -> Tensor:
        """Return the values [B, P, G, …] of the task's keypoints among those of all, [B, G, P', …].

        Raises:
            DataError: If there are fewer than the label map's places.
        """
        if values.shape[2] <= max(self.indices):
            raise DataError(
                f"objects have {values.shape[2]} keypoints, but the keypoint label map's ids go up to "
                f"{max(self.indices)}; set num_keypoints in the input reader to how many the records have"
            )
        return values.index_select(2, constants(self.indices, values.device, torch.int64)).transpose(1, 2)


@dataclass(frozen=True)
class KeypointHeatmap:
    """The target heatmap of each keypoint.

    Attributes:
        values: float [B, P, H, W] in 0..1.
        learned: bool [B, P, H, W]; False in the boxes of objects without a known keypoint of that kind.
        count: The number of keypoints, a float scalar.
    """

    values: Tensor
    learned: Tensor
    count: Tensor

    @classmethod
    def assign(
        cls, points: Tensor, weights: Tensor, boxes: CellBoxes, deviations: tuple[float, ...], grid: Grid, valid: Tensor
    ) -> KeypointHeatmap:
        """Draw a Gaussian at each keypoint, as wide as its object's box and its own deviation make it.

        Args:
            points: float [B, P, G, 2]; y, x in cells.
            weights: float [B, P, G].
            boxes: The objects'.
            deviations: Of each keypoint, relative to that of its object's center.
            valid: bool [B, G]; False for padding.
        """
        own = constants(deviations, points.device)
        spread = own[:, None] * gaussian_deviations(boxes.sizes, _MIN_IOU)[:, None]
        drawn = gaussians(points, spread, grid) * weights[..., None, None]
        unknown = (weights < _UNKNOWN) & valid[:, None]
        inside = boxes.hold(grid).flatten(2).float()
        ignored = (unknown.float() @ inside).unflatten(-1, grid) > 0
        return cls(brightest(drawn, 2), ~ignored, weights.sum(-1).trunc().sum())


@dataclass(frozen=True)
class KeypointVectors:
    """Vectors that are learned in cells.

    Attributes:
        cells: float [B, P, N, 2]; rows and columns.
        vectors: float [B, P, N, C].
        weights: float [B, P, N].
    """

    cells: Tensor
    vectors: Tensor
    weights: Tensor

    @classmethod
    def toward(cls, points: Tensor, weights: Tensor, places: Tensor, radius: int, grid: Grid) -> KeypointVectors:
        """Return the vectors to points from the cells around places, both float [B, P, G, 2], y, x in cells."""
        cells, inside = cells_around(places, radius, grid)
        vectors, weights = points[..., None, :] - cells, weights[..., None] * inside
        return cls(cells.flatten(2, 3), vectors.flatten(2, 3), weights.flatten(2))

    @classmethod
    def depths(
        cls, points: Tensor, weights: Tensor, depths: Tensor, depth_weights: Tensor, radius: int, grid: Grid
    ) -> KeypointVectors:
        """Return the depths float [B, P, G] of keypoints, with weights, in the cells around them."""
        cells, inside = cells_around(points, radius, grid)
        unknown = depths.isnan() | depth_weights.isnan()
        weights = (weights * depth_weights).where(~unknown, 0.0)[..., None] * inside
        values = depths.where(~unknown, 0.0)[..., None].expand_as(weights)
        return cls(cells.flatten(2, 3), values.flatten(2)[..., None], weights.flatten(2))

    def loss(self, maps: Tensor | None, loss: LocalizationLoss) -> Tensor:
        """Return the sum of the losses of a map, float [B, C, H, W] or [B, P · C, H, W]."""
        if maps is None:
            raise ValueError("the network has no head of the task")
        predicted = read_each(maps, self.cells, self.vectors.shape[-1])
        return loss(predicted.float(), self.vectors, self.weights).sum()

    @property
    def count(self) -> Tensor:
        """The number of vectors, a float scalar."""
        return self.weights.sum()


@dataclass(frozen=True)
class KeypointWeights:
    """The weights of a task's losses."""

    heatmap: float = 1.0
    offset: float = 1.0
    regression: float = 1.0
    depth: float = 1.0


@dataclass(frozen=True)
class KeypointTask:
    """The losses of a keypoint task, divided by the number of keypoints.

    Attributes:
        name: The task's, in its losses' names.
        number: Its place among the network's keypoint tasks.
        deviations: Standard deviations of each keypoint's Gaussian, relative to that of an object's center.
        radius: Offsets are learned in the cells within, around that of a keypoint.
    """

    name: str
    number: int
    keypoints: KeypointTargets
    deviations: tuple[float, ...]
    classification: ClassificationLoss
    localization: LocalizationLoss
    weights: KeypointWeights
    radius: int = 0

    def __call__(self, stages: Stages, targets: Targets, valid: Tensor) -> dict[str, LossTerm]:
        """Return `Loss/NAME/keypoint/` heatmap, offset and regression, and depth if it is learned."""
        grid = grid_shape(valid)
        points, weights = self.keypoints(targets)
        boxes = CellBoxes.of_pixels(targets.boxes)
        heatmap = KeypointHeatmap.assign(points, weights, boxes, self.deviations, grid, targets.valid)
        centers = boxes.centers[:, None].expand_as(points)
        offsets = KeypointVectors.toward(points, weights, points, self.radius, grid)
        regression = KeypointVectors.toward(points, weights, centers, self.radius, grid)
        terms = {
            "heatmap": LossTerm(self.weights.heatmap * self._heatmap_loss(stages, heatmap, valid), heatmap.count),
            "offset": self._term(stages, offsets, lambda maps: maps.offsets, self.weights.offset),
            "regression": self._term(stages, regression, lambda maps: maps.regression, self.weights.regression),
        }
        if stages[-1].keypoints[self.number].depths is not None:
            depths = self._depths(points, weights, targets, grid)
            terms["depth"] = self._term(stages, depths, lambda maps: maps.depths, self.weights.depth)
        return {f"Loss/{self.name}/keypoint/{kind}": term for kind, term in terms.items()}

    def _heatmap_loss(self, stages: Stages, heatmap: KeypointHeatmap, valid: Tensor) -> Tensor:
        learned = as_rows_of_cells(heatmap.learned & valid[:, None]).to(heatmap.values.dtype)
        wanted = as_rows_of_cells(heatmap.values)

        def loss(maps: StageMaps) -> Tensor:
            logits = as_rows_of_cells(maps.keypoints[self.number].heatmap).float()
            return self.classification(logits, wanted, learned).sum()

        return mean_over_stages(stages, loss)

    def _term(
        self,
        stages: Stages,
        vectors: KeypointVectors,
        maps_of: Callable[[KeypointMaps], Tensor | None],
        weight: float,
    ) -> LossTerm:
        def loss(maps: StageMaps) -> Tensor:
            return vectors.loss(maps_of(maps.keypoints[self.number]), self.localization)

        return LossTerm(weight * mean_over_stages(stages, loss), vectors.count)

    def _depths(self, points: Tensor, weights: Tensor, targets: Targets, grid: Grid) -> KeypointVectors:
        count = max(self.keypoints.indices) + 1
        depths = known(targets.keypoint_depths, targets, (count,), "keypoint depths")
        own = torch.ones_like(depths) if targets.keypoint_depth_weights is None else targets.keypoint_depth_weights
        depths, own = self.keypoints.of_task(depths), self.keypoints.of_task(own)
        return KeypointVectors.depths(points, weights, depths, own, self.radius, grid)

"""DeepMAC's masks of detections, and of the groundtruth's boxes, from which they are learned.

Dimensions: B batch, G objects (padded), D detections (padded), C channels, H W grid of cells, h w mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from boxwright.families.center_net.cells import grid_of
from boxwright.families.center_net.consistency_features import ConsistencyFeatures
from boxwright.families.center_net.deep_masks import DeepMasks
from boxwright.families.center_net.predictions import STRIDE, CenterPredictions, DeepMaskPredictions, EmbeddingMaps
from boxwright.families.center_net.random_view import RandomView
from boxwright.nn.ops.boxes import normalized
from boxwright.types import PaddedDetections, Targets

# From a batch to its detections, and to their boxes on the grid, float [B, D, 4], xyxy in pixels.
Detect = Callable[[CenterPredictions], tuple[PaddedDetections, Tensor]]


class DeepMaskPredictor(nn.Module):
    """Predicts masks, and what their losses compare.

    Attributes:
        learns_masks: Whether training needs instance masks.
        current_step: The number of the training step, a float scalar.
    """

    def __init__(
        self,
        masks: DeepMasks,
        detect: Detect,
        *,
        last_stages: int,
        learns_masks: bool = True,
        features: ConsistencyFeatures | None = None,
        view: RandomView | None = None,
    ) -> None:
        """Assemble the part.

        Args:
            masks: Predicts the masks of boxes.
            last_stages: How many of the last stages have masks that are learned.
            features: Gives what feature consistency compares; None without.
            view: Draws the views of self-supervision; None without.
        """
        super().__init__()
        self.masks, self.detect, self.last_stages, self.learns_masks = masks, detect, last_stages, learns_masks
        self.features, self.view = features, view
        # A buffer, as a graph that a GPU replays would keep a number.
        self.register_buffer("current_step", torch.zeros(()), persistent=False)
        self.current_step: Tensor

    def of_detections(self, predictions: CenterPredictions) -> DeepMaskPredictions:
        """Return the masks of a batch's detections; nothing in training."""
        embeddings = predictions.stages[-1].embeddings
        if self.training or embeddings is None:
            return DeepMaskPredictions(step=self.current_step)
        detections, boxes = self.detect(predictions)
        boxes = relative(boxes, embeddings.pixels)
        logits = self.masks.extent.of_boxes(self.masks(embeddings, boxes), boxes)
        return DeepMaskPredictions(detections=detections, of_detections=logits)

    def of_objects(
        self,
        masks: DeepMaskPredictions,
        predictions: CenterPredictions,
        features: Sequence[Tensor],
        inputs: Tensor,
        targets: Targets,
        embeddings_of: Callable[[Tensor], list[EmbeddingMaps]],
    ) -> DeepMaskPredictions:
        """Return the predictions with the masks of targets.

        Args:
            features: The maps [B, C, H, W] of each stage.
            inputs: float [B, 3, 4 · H, 4 · W]; padded as the network pads.
            embeddings_of: Returns the embeddings of other inputs, of all stages.
        """
        every = [stage.embeddings for stage in predictions.stages if stage.embeddings is not None]
        embeddings = every[-self.last_stages :]
        count, boxes = targets.boxes.shape[1], relative(targets.boxes, embeddings[-1].pixels)
        if not count:
            # Other processes wait for gradients of every layer, and normalization takes no empty batch.
            boxes = boxes.new_zeros(len(boxes), 1, 4)
        of_objects = [self.masks(stage_embeddings, boxes)[:, :count] for stage_embeddings in embeddings]
        # Those of other stages, and instances that the network is not told of, would have none.
        of_objects[-1] = of_objects[-1] + 0.0 * sum(
            stage_embeddings.instances.sum() + stage_embeddings.pixels.sum() for stage_embeddings in every
        )
        return replace(
            masks,
            of_objects=tuple(of_objects),
            of_views=tuple(view_masks[:, :count] for view_masks in self._predict_views(inputs, boxes, embeddings_of)),
            features=None if self.features is None else self.features(inputs, features),
        )

    @torch.no_grad()
    def _predict_views(
        self, inputs: Tensor, boxes: Tensor, embeddings_of: Callable[[Tensor], list[EmbeddingMaps]]
    ) -> tuple[Tensor, ...]:
        if self.view is None:
            return ()
        # Training seeds PyTorch's generator at each step; an evaluation is to give the same losses again.
        generator = None if self.training else torch.Generator(inputs.device).manual_seed(0)
        view = self.view.draw(len(inputs), inputs.device, generator)
        embeddings = embeddings_of(view.of_images(inputs))[-self.last_stages :]
        moved = view.of_boxes(boxes)
        return tuple(view.undone(self.masks(stage_embeddings, moved)) for stage_embeddings in embeddings)


def relative(boxes: Tensor, maps: Tensor) -> Tensor:
    """Return boxes [B, N, 4], xyxy in pixels, in 0..1 of the grid of maps [B, C, H, W]."""
    height, width = grid_of(maps)
    return normalized(boxes, (height * STRIDE, width * STRIDE))

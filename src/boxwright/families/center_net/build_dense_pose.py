"""`DensePoseEstimation`: the heads, the losses and the decoding of the body's surface."""

from __future__ import annotations

from boxwright.builders.center_net.tasks import HeadBuilder
from boxwright.builders.choice import require
from boxwright.builders.losses import build_classification_loss, build_localization_loss
from boxwright.config import messages as m
from boxwright.criteria.center_net.dense_pose import SurfaceTask, at_cells, enlarged
from boxwright.models.center_net import SurfaceHeads
from boxwright.postprocessing.center_net.dense_pose import SurfaceDecoder


def build_surface_heads(config: m.CenterNetDensePoseEstimation, head: HeadBuilder) -> SurfaceHeads:
    """Build the heads of parts and coordinates."""
    return SurfaceHeads(head(config.num_parts, bias=config.heatmap_bias_init), head(2 * config.num_parts))


def build_surface_task(config: m.CenterNetDensePoseEstimation) -> SurfaceTask:
    """Build the task of parts and coordinates."""
    loss = require(config.loss, config, "loss")
    return SurfaceTask(
        build_classification_loss(require(loss.classification_loss, loss, "classification_loss")),
        build_localization_loss(require(loss.localization_loss, loss, "localization_loss")),
        config.task_loss_weight * config.part_loss_weight,
        config.task_loss_weight * config.coordinate_loss_weight,
        enlarged if config.upsample_to_input_res else at_cells,
    )


def build_surface_decoder(config: m.CenterNetDensePoseEstimation, masks: m.CenterNetMaskEstimation) -> SurfaceDecoder:
    """Build the decoding, for masks of the same size."""
    return SurfaceDecoder(config.class_id, (masks.mask_height, masks.mask_width))

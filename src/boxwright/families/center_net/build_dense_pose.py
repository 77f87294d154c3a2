"""`DensePoseEstimation`: the heads, the losses and the decoding of the body's surface."""

from __future__ import annotations

from boxwright.families.center_net.build_tasks import HeadBuilder
from boxwright.families.center_net.criteria.dense_pose import SurfaceTask, at_cells, enlarged
from boxwright.families.center_net.message import CenterNetDensePoseEstimation, CenterNetMaskEstimation
from boxwright.families.center_net.network import SurfaceHeads
from boxwright.families.center_net.postprocessing.dense_pose import SurfaceDecoder
from boxwright.families.shared.choice import require
from boxwright.families.shared.losses import build_classification_loss, build_localization_loss


def build_surface_heads(config: CenterNetDensePoseEstimation, head: HeadBuilder) -> SurfaceHeads:
    """Build the heads of parts and coordinates."""
    return SurfaceHeads(head(config.num_parts, bias=config.heatmap_bias_init), head(2 * config.num_parts))


def build_surface_task(config: CenterNetDensePoseEstimation) -> SurfaceTask:
    """Build the task of parts and coordinates."""
    loss = require(config.loss, config, "loss")
    return SurfaceTask(
        build_classification_loss(require(loss.classification_loss, loss, "classification_loss")),
        build_localization_loss(require(loss.localization_loss, loss, "localization_loss")),
        config.task_loss_weight * config.part_loss_weight,
        config.task_loss_weight * config.coordinate_loss_weight,
        enlarged if config.upsample_to_input_res else at_cells,
    )


def build_surface_decoder(config: CenterNetDensePoseEstimation, masks: CenterNetMaskEstimation) -> SurfaceDecoder:
    """Build the decoding, for masks of the same size."""
    return SurfaceDecoder(config.class_id, (masks.mask_height, masks.mask_width))

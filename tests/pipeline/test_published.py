"""Weights that presets can start from: of presets that there are, by names that their publishers know."""

from __future__ import annotations

import timm
from torchvision.models import ResNet50_Weights, VGG16_Weights
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights, MaskRCNN_ResNet50_FPN_Weights

from boxwright.config.preset import preset_names
from boxwright.pipeline.published import PUBLISHED, published_for
from tests.config.test_preset import ZOO


def test_they_are_of_presets() -> None:
    assert set(PUBLISHED) <= set(preset_names())
    assert published_for("refinedet_mobilenet_v2_shapes") == ()


def test_every_detector_of_the_zoo_has_an_archive() -> None:
    """But one, whose file is in TensorFlow's folder of configurations and not in its table of archives."""
    archives = {name: published_for(name)[0].file for name in ZOO - {"faster_rcnn_resnet50_v1_fpn_640"}}
    assert len(set(archives.values())) == 28
    assert archives["ssd_mobilenet_v2_fpnlite_320"] == "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.tar.gz"
    assert archives["efficientdet_d3"] == "efficientdet_d3_coco17_tpu-32.tar.gz"
    assert archives["faster_rcnn_resnet152_v1_800x1333"] == "faster_rcnn_resnet152_v1_800x1333_coco17_gpu-8.tar.gz"
    assert published_for("faster_rcnn_resnet50_v1_fpn_640") == ()


def test_torchvisions_are_named_as_torchvision_does() -> None:
    enums = (ResNet50_Weights.IMAGENET1K_V1, VGG16_Weights.IMAGENET1K_V1)
    enums += (FasterRCNN_ResNet50_FPN_Weights.COCO_V1, MaskRCNN_ResNet50_FPN_Weights.COCO_V1)
    theirs = {weights.url.rsplit("/", 1)[1] for weights in enums}
    ours = {one.file for many in PUBLISHED.values() for one in many if one.publisher == "torchvision"}
    assert ours == theirs


def test_timms_are_named_and_licensed_as_timm_does() -> None:
    ours = {one.file: one.license for many in PUBLISHED.values() for one in many if one.publisher == "timm"}
    assert len(ours) == 3
    for name, licence in ours.items():
        known = timm.get_pretrained_cfg(name)
        assert known is not None, name
        assert known.license == licence.lower()

"""Weights that others have published and that presets can start from. Nothing here is fetched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weights:
    """Weights that somebody has published."""

    publisher: str
    file: str
    holds: str
    license: str
    page: str


_TF_PAGES = "github.com/tensorflow/models, research/object_detection/g3doc"
_ZOO_PAGE = f"{_TF_PAGES}/tf2_detection_zoo.md"
_UNSTATED = "see the page"


def _zoo(file: str) -> tuple[Weights, ...]:
    return (Weights("TF2 zoo", f"{file}.tar.gz", "the detector, COCO's 90 ids", "Apache-2.0", _ZOO_PAGE),)


def _torchvision(file: str, holds: str) -> Weights:
    return Weights("torchvision", file, holds, "BSD-3-Clause", f"download.pytorch.org/models/{file}")


def _timm(name: str, license: str) -> Weights:
    page = f"huggingface.co/timm/{name} (timm fetches it as training starts)"
    return Weights("timm", name, "the backbone, ImageNet", license, page)


_RESNET50 = _torchvision("resnet50-0676ba61.pth", "the backbone, ImageNet")
_SLIM_VGG16 = Weights(
    *("TF-Slim", "vgg_16_2016_08_28.tar.gz", "the backbone, ImageNet; vgg_16.ckpt, to be unpacked", _UNSTATED),
    page="github.com/tensorflow/models, research/slim",
)
_VGG16 = (
    Weights("SSD", "vgg16_reducedfc.pth", "the backbone, ImageNet", _UNSTATED, "github.com/amdegroot/ssd.pytorch"),
    _torchvision("vgg16-397923af.pth", "the backbone, ImageNet"),
    _SLIM_VGG16,
)
_CAFFE_RESNET101 = (
    Weights(
        *("Caffe", "ResNet-101-model.caffemodel", "the backbone, ImageNet; to be converted to .pth", _UNSTATED),
        page="github.com/KaimingHe/deep-residual-networks",
    ),
)


def _tf_zoo_weights() -> dict[str, tuple[Weights, ...]]:
    known = {f"efficientdet_d{level}": f"efficientdet_d{level}_coco17_tpu-32" for level in range(8)}
    names = [
        "ssd_mobilenet_v1_fpn_640",
        *(f"ssd_mobilenet_v2_{kind}" for kind in ("320", "fpnlite_320", "fpnlite_640")),
    ]
    names += [f"ssd_resnet{depth}_v1_fpn_{side}" for depth in (50, 101, 152) for side in (640, 1024)]
    names += [f"faster_rcnn_resnet{depth}_v1_{side}" for depth in (50, 101, 152) for side in (640, 1024)]
    for name in names:
        known[name] = f"{name}x{name.rsplit('_', 1)[1]}_coco17_tpu-8"
    for depth in (50, 101, 152):
        known[f"faster_rcnn_resnet{depth}_v1_800x1333"] = f"faster_rcnn_resnet{depth}_v1_800x1333_coco17_gpu-8"
    for side in ("512x512", "1024x1024"):
        name = f"center_net_hourglass104_{side.split('x')[0]}"
        known[name] = f"centernet_hg104_{side}_coco17_tpu-{8 if side == '512x512' else 32}"
        known[f"{name}_keypoints"] = f"centernet_hg104_{side}_kpts_coco17_tpu-32"
    for kind in ("v1_fpn", "v2"):
        known[f"center_net_resnet50_{kind}_512_keypoints"] = f"centernet_resnet50_{kind}_512x512_kpts_coco17_tpu-8"
    known["mask_rcnn_inception_resnet_v2_1024"] = "mask_rcnn_inception_resnet_v2_1024x1024_coco17_gpu-8"
    return {name: _zoo(file) for name, file in known.items()}


def _camera_trap_weights() -> tuple[Weights, ...]:
    serengeti, page = "resnet101_snapshot_serengeti_2020_06_10.tar.gz", f"{_TF_PAGES}/tf1_detection_zoo.md"
    return (
        Weights("TF1 zoo", f"context_rcnn_{serengeti}", "the detector, Serengeti's 48 ids", "Apache-2.0", page),
        Weights("TF1 zoo", f"faster_rcnn_{serengeti}", "the detector of single frames", "Apache-2.0", page),
    )


def _d_fine_weights() -> dict[str, tuple[Weights, ...]]:
    content = ("the detector, COCO's 80 classes", "Apache-2.0")
    sizes = {"n": "nano", "s": "small", "m": "medium", "l": "large", "x": "xlarge"}
    deim = Weights(
        *("DEIM", "deim_dfine_hgnetv2_s_coco_120e.pth", content[0], _UNSTATED), page="github.com/ShihuaHuang95/DEIM"
    )
    return {"deim_d_fine_s_coco": (deim,)} | {
        f"d_fine_{size}_coco": (
            Weights("D-FINE", f"dfine_{size}_coco.pth", *content, "github.com/Peterande/D-FINE"),
            Weights("transformers", "model.safetensors", *content, f"huggingface.co/ustc-community/dfine-{name}-coco"),
        )
        for size, name in sizes.items()
    }


# Preset → weights, those of the whole detector first. The zoo has none of faster_rcnn_resnet50_v1_fpn_640.
PUBLISHED: dict[str, tuple[Weights, ...]] = (
    _tf_zoo_weights()
    | _d_fine_weights()
    | {
        **{f"refinedet{side}_vgg16_{data}": _VGG16 for side in (320, 512) for data in ("voc", "coco")},
        **{f"refinedet{side}_resnet101_{data}": _CAFFE_RESNET101 for side in (320, 512) for data in ("voc", "coco")},
        "refinedetpp512_vgg16_voc": _VGG16,
        "refinedet_vgg16_wider_face": _VGG16,
        "refinedet_vgg16_normalized_voc": (_SLIM_VGG16, *_VGG16[:-1]),
        "refinedet_resnext101_coco": (_timm("resnext101_32x8d.tv_in1k", "BSD-3-Clause"),),
        "ssd300_vgg16_voc": _VGG16,
        "ssd512_vgg16_voc": _VGG16,
        "kerod_resnet50_fpn_coco": (_RESNET50,),
        "kerod_resnet50_fpn_voc": (_RESNET50,),
        "mask_rcnn_resnet50_fpn_coco": (_RESNET50,),
        "torchvision_fasterrcnn_resnet50_fpn_coco": (
            _torchvision("fasterrcnn_resnet50_fpn_coco-258fb6c6.pth", "the detector, COCO's 90 ids"),
            _RESNET50,
        ),
        "torchvision_maskrcnn_resnet50_fpn_coco": (
            _torchvision("maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", "the detector, COCO's 90 ids"),
            _RESNET50,
        ),
        "context_rcnn_resnet101_serengeti": _camera_trap_weights(),
        "center_net_deepmac_1024_coco": (
            Weights(
                *("DeepMAC", "deepmac_1024x1024_coco17.tar.gz", "the detector, masks of given boxes", "Apache-2.0"),
                page=f"{_TF_PAGES}/deepmac.md",
            ),
        ),
        "align_det_resnet101_coco": (_timm("resnet101.a1h_in1k", "Apache-2.0"),),
        "align_det_resnext101_coco": (_timm("resnext101_32x8d.tv_in1k", "BSD-3-Clause"),),
        "srn_resnet50_wider_face": (
            Weights("SRN", "SRN.pth", "the detector, WIDER FACE", _UNSTATED, "github.com/ChiCheng123/SRN"),
            _timm("resnet50.a1_in1k", "Apache-2.0"),
        ),
    }
)


def published_for(preset: str) -> tuple[Weights, ...]:
    """Return the weights that are known for a preset, those of the whole detector first; none where it starts fresh."""
    return PUBLISHED.get(preset, ())

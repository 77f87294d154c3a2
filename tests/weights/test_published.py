"""The table of published weights: rows that fit their presets, digests and addresses that can be true."""

from __future__ import annotations

import re
import string
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import timm
import torch
from torchvision.models import ResNet50_Weights, VGG16_Weights
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights, MaskRCNN_ResNet50_FPN_Weights

import boxwright as bw
from boxwright.base.errors import CheckpointError
from boxwright.config.preset import preset_names
from boxwright.nn.preprocessing import PixelScaling
from boxwright.pipeline import messages as m
from boxwright.pipeline.detector import build_detector
from boxwright.pipeline.load import load_config
from boxwright.weights.find_weights import find_weights
from boxwright.weights.published import explain_unknown, find_published, published_for, published_weights
from tests.config.test_preset import ZOO

ALL = published_weights()
# The classes that a detector predicts, by what its entry calls them.
COUNTS = {"coco80": 80, "coco90": 90, "coco91": 90, "objects365": 366, "serengeti48": 48, "wider_face": 1}
TORCHVISION = (
    ResNet50_Weights.IMAGENET1K_V1,
    VGG16_Weights.IMAGENET1K_V1,
    FasterRCNN_ResNet50_FPN_Weights.COCO_V1,
    MaskRCNN_ResNet50_FPN_Weights.COCO_V1,
)


def test_how_many_there_are() -> None:
    counts = Counter(weights.publisher.split(" (")[0] for weights in ALL)
    assert len(ALL) == 151
    assert (counts["TF2 zoo"], counts["TF1 zoo"], counts["torchvision"], counts["effdet"]) == (43, 2, 20, 23)
    assert counts["RF-DETR"] == counts["D-FINE"] == counts["timm"] == 14


def test_names_and_files_are_of_one_each() -> None:
    assert len({weights.name for weights in ALL}) == len({weights.file for weights in ALL}) == len(ALL)
    assert not any(set(weights.file) & set("/\\ ") for weights in ALL)


def test_addresses_are_safe() -> None:
    direct = [weights for weights in ALL if weights.address]
    # The Caffe model is on a page without a direct address, and RF-DETR's largest are refused.
    assert len(direct) == 148
    assert {urlsplit(weights.address).scheme for weights in direct} == {"https", "hf"}
    assert all(urlsplit(weights.page).scheme == "https" for weights in ALL)


def test_digests_are_whole_or_those_of_names() -> None:
    for weights in ALL:
        assert len(weights.sha256) in (0, 8, 64), weights.name
        assert set(weights.sha256) <= set(string.hexdigits.lower()), weights.name
        assert bool(weights.sha256) == bool(weights.digest_by), weights.name
        # Torchvision's and effdet's names end in a digest's first eight digits.
        stated = Path(weights.file).stem.rsplit("-", 1)[-1]
        if weights.publisher.startswith(("torchvision", "effdet")):
            assert weights.sha256.startswith(stated), weights.name
    assert sum(bool(weights.whole_digest) for weights in ALL) == 59


def test_licenses_are_stated_or_not() -> None:
    supported = [weights for weights in ALL if not weights.refused]
    assert len(supported) == 149
    assert {weights.license for weights in supported} == {"Apache-2.0", "BSD-3-Clause", "not stated"}
    assert all(weights.terms for weights in ALL if "Objects365" in weights.data)


@pytest.mark.parametrize("name", ["rf_detr_xlarge_coco", "rf_detr_2xlarge_coco"])
def test_what_a_license_forbids_is_refused_by_name(name: str) -> None:
    wanted = r"platform license \(PML 1.0\), which is not an open one.*rf_detr_large_coco"
    with pytest.raises(CheckpointError, match=wanted):
        bw.load(name)
    weights = find_published(name)
    assert weights is not None
    with pytest.raises(CheckpointError, match=wanted):
        weights.configuration()


def sides_of(resizer: m.ImageResizer) -> tuple[int, int]:
    """Return the height and width of inputs, or the least and the greatest side."""
    message = resizer.chosen("image_resizer_oneof")
    if isinstance(message, m.FixedShapeResizer):
        return message.height, message.width
    assert isinstance(message, m.KeepAspectRatioResizer)
    return message.min_dimension, message.max_dimension


@pytest.mark.parametrize("name", [weights.name for weights in ALL if weights.opens and weights.presets])
def test_a_detector_fits_its_preset(name: str) -> None:
    weights = find_published(name)
    assert weights is not None
    config = weights.configuration()
    assert config.model is not None
    message = config.model.chosen("model")
    assert message.num_classes == COUNTS[weights.classes]
    # The zoo's page says 1280 of D6, and the configuration of that name 1408.
    if weights.input_size and name != "efficientdet_d6_coco17":
        assert sides_of(message.image_resizer) == tuple(map(int, re.split("[×–]", weights.input_size)))
    assert weights.categories is not None
    assert weights.categories.num_slots == COUNTS[weights.classes]


# By effdet 0.4.1's own configurations and networks: parameters, side of inputs, side of the smallest anchor in strides, and
# the mean of pixels. Its efficientdet_* have no biases before normalization, which are 0 here.
EFFDET = {
    "tf_efficientdet_d0": (3_880_067, 512, 4, 0.485),
    "tf_efficientdet_d1": (6_625_898, 640, 4, 0.485),
    "tf_efficientdet_d2": (8_097_039, 768, 4, 0.485),
    "tf_efficientdet_d3": (12_032_296, 896, 4, 0.485),
    "tf_efficientdet_d4": (20_723_675, 1024, 4, 0.485),
    "tf_efficientdet_d5": (33_653_315, 1280, 4, 0.485),
    "tf_efficientdet_d6": (51_871_782, 1280, 4, 0.485),
    "tf_efficientdet_d7": (51_871_782, 1536, 5, 0.485),
    "tf_efficientdet_d7x": (77_147_166, 1536, 4, 0.485),
    "tf_efficientdet_d0_ap": (3_880_067, 512, 4, 0.5),
    "tf_efficientdet_d1_ap": (6_625_898, 640, 4, 0.5),
    "tf_efficientdet_d2_ap": (8_097_039, 768, 4, 0.5),
    "tf_efficientdet_d3_ap": (12_032_296, 896, 4, 0.5),
    "tf_efficientdet_d4_ap": (20_723_675, 1024, 4, 0.5),
    "tf_efficientdet_d5_ap": (33_653_315, 1280, 4, 0.5),
    "tf_efficientdet_lite0": (3_243_470, 320, 3, 0.5),
    "tf_efficientdet_lite1": (4_248_318, 384, 3, 0.5),
    "tf_efficientdet_lite2": (5_252_334, 448, 3, 0.5),
    "tf_efficientdet_lite3": (8_350_862, 512, 4, 0.5),
    "tf_efficientdet_lite3x": (9_280_862, 640, 3, 0.5),
    "tf_efficientdet_lite4": (15_130_894, 640, 4, 0.5),
    "efficientdet_d0": (3_880_067, 512, 4, 0.485),
    "efficientdet_d1": (6_625_898, 640, 4, 0.485),
}


@pytest.mark.slow_cases(*[name for name in EFFDET if name not in ("tf_efficientdet_d0_ap", "efficientdet_d1")])
@pytest.mark.parametrize("name", EFFDET)
def test_effdets_networks_are_built(name: str) -> None:
    weights = find_published(f"effdet_{name}")
    assert weights is not None
    config = weights.configuration()
    assert config.model is not None
    assert config.model.ssd is not None
    with torch.device("meta"):
        detector = build_detector(config.model)
    (scaling,) = (part for part in vars(detector.preprocessor).values() if isinstance(part, PixelScaling))
    found = (
        sum(parameter.numel() for parameter in detector.network.parameters()),
        sides_of(config.model.ssd.image_resizer)[0],
        config.model.ssd.anchor_generator.multiscale_anchor_generator.anchor_scale,
        # A pixel of the mean becomes 0.
        pytest.approx(-scaling.offset[0] / scaling.scale[0] / 255),
    )
    assert found == EFFDET[name]


def test_all_of_effdets_are_opened() -> None:
    assert {f"effdet_{name}" for name in EFFDET} == {one.name for one in ALL if one.publisher.startswith("effdet")}


VGG16 = ["vgg16_reducedfc.pth", "vgg16-397923af.pth", "vgg_16_2016_08_28.tar.gz"]
SLIM_VGG16 = [VGG16[2], *VGG16[:2]]
RESNET101 = ["ResNet-101-model.caffemodel"]
HGNET, TRANSFORMERS = "hgnetv2_b0.ssld_stage2_ft_in1k.safetensors", "dfine-small-coco.safetensors"
SERENGETI = "rcnn_resnet101_snapshot_serengeti_2020_06_10.tar.gz"


@pytest.mark.parametrize(
    ("preset", "wanted"),
    [
        *((f"refinedet{side}_vgg16_{data}", VGG16) for side in (320, 512) for data in ("voc", "coco")),
        *((f"refinedet{side}_resnet101_{data}", RESNET101) for side in (320, 512) for data in ("voc", "coco")),
        ("refinedetpp512_vgg16_voc", VGG16),
        ("refinedet_vgg16_wider_face", VGG16),
        ("refinedet_vgg16_normalized_voc", SLIM_VGG16),
        ("refinedet_resnext101_coco", ["resnext101_32x8d.tv_in1k.safetensors"]),
        ("ssd300_vgg16_voc", VGG16),
        ("ssd512_vgg16_voc", VGG16),
        ("kerod_resnet50_fpn_voc", ["resnet50-0676ba61.pth"]),
        ("mask_rcnn_resnet50_fpn_coco", ["resnet50-0676ba61.pth"]),
        (
            "torchvision_maskrcnn_resnet50_fpn_coco",
            ["maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", "resnet50-0676ba61.pth"],
        ),
        ("context_rcnn_resnet101_serengeti", [f"context_{SERENGETI}", f"faster_{SERENGETI}"]),
        ("center_net_deepmac_1024_coco", ["deepmac_1024x1024_coco17.tar.gz"]),
        ("center_net_resnet101_v2_512", ["centernet_resnet101_v1_fpn_512x512_coco17_tpu-8.tar.gz"]),
        ("align_det_resnet101_coco", ["resnet101.a1h_in1k.safetensors"]),
        ("srn_resnet50_wider_face", ["SRN.pth", "resnet50.a1_in1k.safetensors"]),
        ("deim_d_fine_s_coco", ["deim_dfine_hgnetv2_s_coco_120e.pth", HGNET]),
        ("rt_detr_v4_s_coco", ["RTv4-S-hgnet.pth", HGNET]),
        ("d_fine_s_coco", [f"dfine_s_{data}.pth" for data in ("coco", "obj2coco", "obj365")] + [TRANSFORMERS, HGNET]),
        ("faster_rcnn_resnet50_v1_fpn_640", []),  # of which the zoo has no archive
        ("refinedet_mobilenet_v2_shapes", []),
    ],
)
def test_presets_have_weights_in_the_order_of_their_recipes(preset: str, wanted: list[str]) -> None:
    assert [weights.file for weights in published_for(preset)] == wanted


def test_every_detector_of_the_zoo_has_an_archive() -> None:
    assert {preset for weights in ALL for preset in weights.presets} <= set(preset_names())
    archives = {name: published_for(name)[0].file for name in ZOO - {"faster_rcnn_resnet50_v1_fpn_640"}}
    assert len(set(archives.values())) == 28
    assert archives["ssd_mobilenet_v2_fpnlite_320"] == "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.tar.gz"
    assert archives["faster_rcnn_resnet152_v1_800x1333"] == "faster_rcnn_resnet152_v1_800x1333_coco17_gpu-8.tar.gz"


def test_an_archive_without_a_preset_is_not_fine_tuned() -> None:
    inside = [weights for weights in ALL if weights.own_configuration]
    assert len(inside) == 6
    for weights in inside:
        assert weights.file.endswith(".tar.gz")
        assert weights.opens
        with pytest.raises(bw.CheckpointError, match=f"{weights.name}: no preset has its network"):
            weights.configuration()
    extreme_net = find_published("extremenet")
    assert extreme_net is not None
    with pytest.raises(bw.CheckpointError, match="extremenet: not opened yet"):
        extreme_net.configuration()


def test_what_is_on_the_hub_is_pinned_where_public_records_agree() -> None:
    hub = [weights.address for weights in ALL if weights.address.startswith("hf://")]
    assert len(hub) == 5 + 14
    assert all(re.fullmatch(r"hf://[\w-]+/[\w.-]+(@[0-9a-f]{40})?/model\.safetensors", address) for address in hub)
    assert sum("@" in address for address in hub) == 3


def test_torchvisions_are_where_torchvision_has_them() -> None:
    addresses = {weights.address for weights in ALL if weights.presets and weights.publisher.startswith("torchvision")}
    assert addresses == {weights.url for weights in TORCHVISION}


def test_timms_are_licensed_as_timm_says() -> None:
    names = [weights for weights in ALL if weights.publisher == "timm"]
    assert len(names) == 14
    for weights in names:
        known = timm.get_pretrained_cfg(weights.name.removeprefix("timm/"))
        assert known is not None, weights.name
        assert known.license == weights.license.lower(), weights.name


def test_activations_differ_from_files_names() -> None:
    """SiLU in DEIM's and RT-DETRv4's decoders, ReLU in D-FINE's and in DEIM's X that began with Objects365."""

    def activation(name: str) -> str:
        weights = find_published(name)
        assert weights is not None
        model = load_config(f"preset:{weights.presets[0]}", weights.overrides).model
        assert model is not None
        assert model.d_fine is not None
        assert model.d_fine.decoder is None or model.d_fine.decoder.activation is not None
        return "RELU" if model.d_fine.decoder is None else model.d_fine.decoder.activation.name

    for size in "nsmlx":
        assert activation(f"d_fine_{size}_coco") == "RELU"
        assert activation(f"deim_d_fine_{size}_coco") == "SILU"
    for size in "smlx":
        assert activation(f"rt_detr_v4_{size}_coco") == "SILU"
    assert activation("deim_d_fine_x_obj2coco") == "RELU"


def test_names_are_found_and_suggested() -> None:
    assert find_published("dfine_s_coco") is None
    assert explain_unknown("dfine_s_coco", "no such run") == "dfine_s_coco: no such run; did you mean d_fine_s_coco?"
    assert explain_unknown("model/run", "no such run") == "model/run: no such run"
    backbone = find_published("resnet50_torchvision")
    assert backbone is not None
    with pytest.raises(bw.CheckpointError, match="resnet50_torchvision: a backbone's weights"):
        backbone.configuration()


def test_a_preset_is_told_from_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For `bw.load`, the commands' --model, a configuration's fine_tune_checkpoint and `weights info` alike."""
    monkeypatch.chdir(tmp_path)
    published = (
        "ssd_mobilenet_v2_320 is a preset, a network without weights; its published weights are "
        'ssd_mobilenet_v2_320_coco17: bw.load("ssd_mobilenet_v2_320_coco17"), or --model ssd_mobilenet_v2_320_coco17'
    )
    with pytest.raises(bw.CheckpointError) as loaded:
        bw.load("ssd_mobilenet_v2_320")
    assert str(loaded.value) == published
    with pytest.raises(bw.CheckpointError) as named:
        find_weights("ssd_mobilenet_v2_320")
    assert str(named.value) == published
    nothing = "none are published for it; train one: boxwright train DATA --model refinedet320_vgg16_voc"
    with pytest.raises(bw.CheckpointError, match=f"is a preset, a network without weights; {nothing}"):
        bw.load("refinedet320_vgg16_voc")


def test_a_team_has_a_table_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "own.toml"
    table.write_text(
        '[team]\npublisher = "the team"\npage = "https://example.com"\nlicense = "MIT"\ncode_license = "MIT"\n'
        'data = ["parcels"]\nclasses = "parcels"\nshown = "not shown"\naddress = "https://example.com/{file}"\n'
        '[team.weights.parcels]\nfile = "parcels.pth"\npresets = ["d_fine_n_coco"]\n'
    )
    monkeypatch.setenv("BOXWRIGHT_WEIGHTS_TABLE", str(table))
    published_weights.cache_clear()
    try:
        parcels = find_published("parcels")
        assert parcels is not None
        assert parcels.address == "https://example.com/parcels.pth"
        table.write_text("[team")
        published_weights.cache_clear()
        with pytest.raises(bw.ConfigError, match="BOXWRIGHT_WEIGHTS_TABLE: .*own.toml: not a table of weights"):
            published_weights()
    finally:
        published_weights.cache_clear()

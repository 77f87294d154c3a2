"""The table of published weights: rows that fit their presets, digests and addresses that can be true."""

from __future__ import annotations

import string
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import timm
from torchvision.models import ResNet50_Weights, VGG16_Weights
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights, MaskRCNN_ResNet50_FPN_Weights

import boxwright as bw
from boxwright.config.preset import preset_names
from boxwright.pipeline.load import load_config
from boxwright.weights.published import find_published, nearest_published, published_for, published_weights
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
    assert len(ALL) == 149
    assert (counts["TF2 zoo"], counts["TF1 zoo"], counts["torchvision"], counts["effdet"]) == (43, 2, 20, 23)
    assert counts["RF-DETR"] == counts["D-FINE"] == counts["timm"] == 14


def test_names_and_files_are_of_one_each() -> None:
    assert len({weights.name for weights in ALL}) == len({weights.file for weights in ALL}) == len(ALL)
    assert not any(set(weights.file) & set("/\\ ") for weights in ALL)


def test_addresses_are_safe() -> None:
    direct = [weights for weights in ALL if weights.address]
    assert len(direct) == 148  # the Caffe model is on a page without a direct address
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
    assert sum(bool(weights.whole_digest) for weights in ALL) == 58


def test_licenses_are_stated_or_not() -> None:
    assert {weights.license for weights in ALL} == {"Apache-2.0", "BSD-3-Clause", "not stated"}
    assert all(weights.terms for weights in ALL if "Objects365" in weights.data)


@pytest.mark.parametrize("name", [weights.name for weights in ALL if weights.opens and weights.presets])
def test_a_detector_fits_its_preset(name: str) -> None:
    weights = find_published(name)
    assert weights is not None
    config = weights.configuration()
    assert config.model is not None
    assert config.model.chosen("model").num_classes == COUNTS[weights.classes]
    if weights.categories is not None:
        assert weights.categories.num_slots == COUNTS[weights.classes]


def test_presets_have_the_weights_of_their_publishers() -> None:
    assert {preset for weights in ALL for preset in weights.presets} <= set(preset_names())
    archives = {name: published_for(name)[0].file for name in ZOO - {"faster_rcnn_resnet50_v1_fpn_640"}}
    assert len(set(archives.values())) == 28
    assert archives["ssd_mobilenet_v2_fpnlite_320"] == "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8.tar.gz"
    assert archives["faster_rcnn_resnet152_v1_800x1333"] == "faster_rcnn_resnet152_v1_800x1333_coco17_gpu-8.tar.gz"
    assert (
        published_for("center_net_resnet101_v2_512")[0].file == "centernet_resnet101_v1_fpn_512x512_coco17_tpu-8.tar.gz"
    )
    # The zoo has no archive of one of its configurations.
    assert published_for("faster_rcnn_resnet50_v1_fpn_640") == published_for("refinedet_mobilenet_v2_shapes") == ()
    assert [weights.file for weights in published_for("srn_resnet50_wider_face")] == [
        "SRN.pth",
        "resnet50.a1_in1k.safetensors",
    ]


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
    assert nearest_published("dfine_s_coco")[0] == "d_fine_s_coco"
    backbone = find_published("resnet50_torchvision")
    assert backbone is not None
    with pytest.raises(bw.CheckpointError, match="resnet50_torchvision: a backbone's weights"):
        backbone.configuration()


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

"""The pictures of networks on the site's pages on models: what is drawn is what there is."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from website.architecture import SHOWN, Network, Part, network_of, section, svg
from website.sections import SECTIONS

from boxwright.cli.benchmarking.preset_costs import read_costs


def fed(network: Network) -> dict[str, set[str]]:
    return {part.name: part.sources for part in network.parts}


def test_a_single_shot_detector() -> None:
    """MobileNetV2's maps of strides 8, 16 and 32; five levels of 128 channels; six anchors a place, of 91 classes."""
    network = network_of("ssd_mobilenet_v2_fpnlite_320")
    assert network.input == (320, 320)
    backbone, neck, head = network.parts
    assert backbone.shapes == [(32, 40, 40), (96, 20, 20), (1280, 10, 10)]
    assert neck.shapes == [(128, side, side) for side in (40, 20, 10, 5, 3)]
    anchors = 6 * sum(side * side for side in (40, 20, 10, 5, 3))
    assert (anchors, 91) in head.shapes
    assert fed(network) == {"backbone": {"picture"}, "neck": {"backbone"}, "head": {"neck"}}
    costs = read_costs()["ssd_mobilenet_v2_fpnlite_320"]
    assert sum(part.parameters for part in network.parts) == costs.parameters


def test_two_steps() -> None:
    """RefineDet's paper: both steps' maps come from the backbone, the second's through the transfer connection."""
    found = fed(network_of("refinedet320_vgg16_voc"))
    assert found["refinement"] == found["transfer"] == {"backbone", "neck"}
    assert found["head"] == {"transfer"}


def test_queries_are_chosen() -> None:
    network = network_of("d_fine_n_coco")
    decoder = network.parts[-1]
    assert (decoder.name, decoder.sources, decoder.given) == ("decoder", {"encoder"}, True)
    drawn = svg("d_fine_n_coco", network)
    assert drawn.count('class="a later"') == 1, "what chose the queries passes no gradient"


def test_a_picture_is_well_formed_and_names_are_no_markup() -> None:
    parts = [
        Part("<a>", "A&B", 12, [(3, 5, 7)], {"picture"}),
        Part("b", "B", 10**7, [(n, 2) for n in range(2, 20)], {"<a>", "picture"}),
    ]
    root = ET.fromstring(svg("<x>", Network((5, 7), parts)))
    texts = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"<a>: A&B", "12 parameters", "5×7×3", "10.00 M parameters", "and 10 more"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) == 3 + 1


def test_each_page_on_models_has_one(tmp_path: Path) -> None:
    assert set(SHOWN) == set(SECTIONS["Models"].values()) - {"models.md"}
    assert section(tmp_path, "install.md") == ""
    text = section(tmp_path, "srn.md")
    assert "![The parts of srn_resnet50_wider_face](architecture/srn_resnet50_wider_face.svg)" in text
    assert (tmp_path / "architecture" / "srn_resnet50_wider_face.svg").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("preset", [one for presets in SHOWN.values() for one in presets])
def test_every_part_is_fed(preset: str) -> None:
    network = network_of(preset)
    assert all(part.sources for part in network.parts)
    assert all(part.shapes for part in network.parts)
    assert sum(part.parameters for part in network.parts) == read_costs()[preset].parameters

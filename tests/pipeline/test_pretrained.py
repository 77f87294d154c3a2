"""For which models weights of a backbone are fetched."""

from __future__ import annotations

import pytest

from boxwright.config.load import parse_message
from boxwright.pipeline import messages as m
from boxwright.pipeline.training import wants_pretrained


@pytest.mark.parametrize(("field", "wanted"), [("pretrained: true", True), ("pretrained: false", False), ("", False)])
def test_what_the_configuration_says(field: str, wanted: bool) -> None:
    text = f'ssd {{ feature_extractor {{ type: "timm/resnet18" {field} }} }}'
    assert wants_pretrained(parse_message(text, m.DetectionModel)) is wanted

"""The table of families: a family is a folder beside this file, and a line of `DetectionModel`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from boxwright.config.field import field
from boxwright.config.message import Message
from boxwright.families.align_det.message import AlignDet
from boxwright.families.center_net.message import CenterNet
from boxwright.families.d_fine.message import DFine
from boxwright.families.refinedet.message import RefineDet
from boxwright.families.rf_detr.message import RfDetr
from boxwright.families.srn.message import Srn
from boxwright.families.ssd.message import Ssd
from boxwright.families.two_stage.message import FasterRcnn

if TYPE_CHECKING:
    from boxwright.families.shared.family import Family


class ExperimentalModel(Message):
    """A detector that the program gives itself."""

    name: str = field(
        "",
        "Name of the detector's class; in TF the key of a registered builder.",
        no_effect="the detector is given in Python: boxwright.train(config, detector=...)",
    )


class DetectionModel(Message, oneof="model", path="model"):
    """Selects the model family; set exactly one field."""

    faster_rcnn: FasterRcnn | None = field(
        None, "Use a two-stage Faster R-CNN, Mask R-CNN, R-FCN or Context R-CNN model."
    )
    ssd: Ssd | None = field(None, "Use a single-stage anchor-based model (SSD, RetinaNet, EfficientDet).")
    experimental_model: ExperimentalModel | None = field(
        None, "A detector that the program gives itself, in Python: boxwright.train(config, detector=...)."
    )
    center_net: CenterNet | None = field(None, "Use an anchor-free CenterNet model.")
    refinedet: RefineDet | None = field(None, "Ours: use a single-shot refinement detector.")
    srn: Srn | None = field(None, "Ours: use a selective refinement network.")
    align_det: AlignDet | None = field(None, "Ours: use a one-stage detector with an aligned second step.")
    d_fine: DFine | None = field(None, "Ours: use D-FINE, whose queries detect an object each.")
    rf_detr: RfDetr | None = field(None, "Ours: use RF-DETR, a vision transformer whose queries detect an object each.")


def find_family(model: DetectionModel) -> Family:
    """Return the family of the detector that a message describes: the constant `FAMILY` of its folder's `build.py`.

    Imported by name and at this moment, as reading a configuration needs neither PyTorch nor the networks.

    Raises:
        ConfigError: If the message is empty, or if the detector is given in Python.
    """
    chosen = model.chosen("model")
    if chosen is None:
        raise model.refusal("", f"empty; set one of {', '.join(DetectionModel.fields)}")
    if isinstance(chosen, ExperimentalModel):
        raise chosen.refusal(
            "",
            "the detector is given in Python: boxwright.train(config, detector=...) trains it, and "
            "boxwright.load_weights(detector, checkpoint) restores its weights",
        )
    return _family(type(chosen))


def families() -> tuple[Family, ...]:
    """Return all families."""
    messages = (field.type for field in DetectionModel.fields.values())
    return tuple(_family(message) for message in messages if message is not ExperimentalModel)


def _family(message: type[Message]) -> Family:
    folder, _, _ = message.__module__.rpartition(".")
    family: Family = import_module(f"{folder}.build").FAMILY
    return family


def family_of_network(network: object) -> Family | None:
    """Return the family of a network; None for one that is given in Python."""
    return next((family for family in families() if isinstance(network, family.network)), None)

"""The root of a configuration.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from pydantic import PrivateAttr

from boxwright.config.field import Field
from boxwright.config.message import Message, String, UInt32
from boxwright.config.messages.align_det import AlignDet
from boxwright.config.messages.center_net import CenterNet
from boxwright.config.messages.eval import EvalConfig
from boxwright.config.messages.faster_rcnn import FasterRcnn
from boxwright.config.messages.graph_rewriter import GraphRewriter
from boxwright.config.messages.input_reader import InputReader
from boxwright.config.messages.refinedet import RefineDet
from boxwright.config.messages.srn import Srn
from boxwright.config.messages.ssd import Ssd
from boxwright.config.messages.train import TrainConfig
from boxwright.config.reasons import OTHER_FAMILY, QUANTIZATION


class ExperimentalModel(Message):
    """Slot for a custom architecture registered in the model builder."""

    proto_name: ClassVar[str] = "ExperimentalModel"
    refused: ClassVar[str] = OTHER_FAMILY

    name: String = Field("", description="Key of the custom builder to call; it must be registered in the code.")


class DetectionModel(Message):
    """Selects the model family; set exactly one field."""

    proto_name: ClassVar[str] = "DetectionModel"
    oneofs: ClassVar[dict[str, tuple[str, ...]]] = {}

    faster_rcnn: FasterRcnn | None = Field(
        None,
        description="Use a two-stage Faster R-CNN, Mask R-CNN, R-FCN or Context R-CNN model.",
    )
    ssd: Ssd | None = Field(None, description="Use a single-stage anchor-based model (SSD, RetinaNet, EfficientDet).")
    experimental_model: ExperimentalModel | None = Field(
        None, refused=OTHER_FAMILY, description="Use a model builder registered in code under a name."
    )
    center_net: CenterNet | None = Field(None, refused=OTHER_FAMILY, description="Use an anchor-free CenterNet model.")
    refinedet: RefineDet | None = Field(
        None, description="Use a single-shot refinement detector (an extension of Boxwright)."
    )
    srn: Srn | None = Field(None, description="Use a selective refinement network (an extension of Boxwright).")
    align_det: AlignDet | None = Field(
        None, description="Use a one-stage detector with an aligned second step (an extension of Boxwright)."
    )


# Every family excludes the others.
DetectionModel.oneofs = {"model": tuple(DetectionModel.model_fields)}


class TrainEvalPipelineConfig(Message):
    """Whole pipeline.config: the model, how it is trained and evaluated, and its data."""

    proto_name: ClassVar[str] = "TrainEvalPipelineConfig"

    _notes: list[str] = PrivateAttr(default_factory=list)
    _path: str | None = PrivateAttr(default="")

    preset: String = Field(
        "",
        description="Name of a configuration that comes with Boxwright, which this one changes (an extension of "
        "Boxwright; docs/configuration.md).",
    )
    num_classes: UInt32 = Field(
        0,
        ge=0,
        le=100000,
        description="num_classes of the model, whatever its family (an extension of Boxwright).",
    )
    model: DetectionModel | None = Field(
        None, description="The detection model: architecture, anchors, losses and post-processing."
    )
    train_config: TrainConfig | None = Field(
        None, description="Training settings: batch size, optimizer, augmentation, starting checkpoint, step count."
    )
    train_input_reader: InputReader | None = Field(
        None, description="Where the training examples and label map are read from."
    )
    eval_config: EvalConfig | None = Field(None, description="Evaluation settings: metrics, batch size, visualization.")
    eval_input_reader: list[InputReader] = Field(
        default_factory=list, description="Where evaluation examples are read from; repeat for several evaluation sets."
    )
    graph_rewriter: GraphRewriter | None = Field(
        None, no_effect=QUANTIZATION, description="Graph changes such as quantization-aware training."
    )

    @property
    def notes(self) -> list[str]:
        """What was decided as the configuration was read, in sentences for whoever wrote it."""
        return self._notes

"""The root of a configuration.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from boxwright.config.field import UInt32, field, number
from boxwright.config.message import Message
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


class ExperimentalModel(Message, refused=OTHER_FAMILY):
    """Slot for a custom architecture registered in the model builder."""

    name: str = field("", "Key of the custom builder to call; it must be registered in the code.")

class DetectionModel(Message, oneof="model", path="model"):
    """Selects the model family; set exactly one field."""

    faster_rcnn: FasterRcnn | None = field(None,
        "Use a two-stage Faster R-CNN, Mask R-CNN, R-FCN or Context R-CNN model.")
    ssd: Ssd | None = field(None, "Use a single-stage anchor-based model (SSD, RetinaNet, EfficientDet).")
    experimental_model: ExperimentalModel | None = field(None,
        "Use a model builder registered in code under a name.", refused=OTHER_FAMILY)
    center_net: CenterNet | None = field(None, "Use an anchor-free CenterNet model.", refused=OTHER_FAMILY)
    refinedet: RefineDet | None = field(None, "Use a single-shot refinement detector (an extension of Boxwright).")
    srn: Srn | None = field(None, "Use a selective refinement network (an extension of Boxwright).")
    align_det: AlignDet | None = field(None,
        "Use a one-stage detector with an aligned second step (an extension of Boxwright).")

class TrainEvalPipelineConfig(Message, path=""):
    """Whole pipeline.config: the model, how it is trained and evaluated, and its data."""

    preset: str = field("",
        "Name of a configuration that comes with Boxwright, which this one changes (an extension of Boxwright; "
        "docs/configuration.md).")
    num_classes: UInt32 = number(0, "[0, 100000]",
        "num_classes of the model, whatever its family (an extension of Boxwright).")
    model: DetectionModel | None = field(None,
        "The detection model: architecture, anchors, losses and post-processing.")
    train_config: TrainConfig | None = field(None,
        "Training settings: batch size, optimizer, augmentation, starting checkpoint, step count.")
    train_input_reader: InputReader | None = field(None, "Where the training examples and label map are read from.")
    eval_config: EvalConfig | None = field(None, "Evaluation settings: metrics, batch size, visualization.")
    eval_input_reader: list[InputReader] = field([],
        "Where evaluation examples are read from; repeat for several evaluation sets.")
    graph_rewriter: GraphRewriter | None = field(None,
        "Graph changes such as quantization-aware training.", no_effect=QUANTIZATION)

    _notes: list[str]

    @property
    def notes(self) -> list[str]:
        """What was decided as the configuration was read, in sentences for whoever wrote it."""
        return self.__dict__.setdefault("_notes", [])  # type: ignore[no-any-return]

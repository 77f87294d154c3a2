"""Every message of a pipeline configuration: those that families share, each family's, and the whole."""

from boxwright.config.messages import *
from boxwright.families.align_det.message import AlignDet, AlignedStep, BoxSamplingKind
from boxwright.families.center_net.deep_mac_message import (
    AugmentedSelfSupervisionLoss,
    CenterNetDeepMACMaskEstimation,
    FeatureConsistencyComparison,
    FeatureConsistencyType,
    LossNormalize,
)
from boxwright.families.center_net.message import (
    CenterNet,
    CenterNetDensePoseEstimation,
    CenterNetFeatureExtractor,
    CenterNetKeypointEstimation,
    CenterNetKeypointEstimationKeypointLabelToStdEntry,
    CenterNetMaskEstimation,
    CenterNetObjectCenterParams,
    CenterNetObjectDetection,
    CenterNetPredictionHeadParams,
    CenterNetTemporalOffsetEstimation,
    CenterNetTrackEstimation,
)
from boxwright.families.d_fine.message import (
    DFine,
    DFineActivation,
    DFineBox,
    DFineClassification,
    DFineDecoder,
    DFineDenoising,
    DFineEncoder,
    DFineFeatureExtractor,
    DFineLoss,
    DFineSize,
    HgNetV2Layout,
)
from boxwright.families.refinedet.message import (
    AnchorRefinement,
    ConvolutionalBody,
    ObjectAnchors,
    RefineDet,
    RefineDetFeatureExtractor,
    RefineDetPreset,
    ResidualBody,
    TransferConnection,
)
from boxwright.families.rf_detr.message import (
    RfDetr,
    RfDetrBoxes,
    RfDetrClassification,
    RfDetrDecoder,
    RfDetrFeatureExtractor,
    RfDetrLoss,
    RfDetrMasks,
    RfDetrProjector,
    RfDetrSize,
)
from boxwright.families.srn.message import Srn, SrnPreset, TwoStepClassification, TwoStepRegression
from boxwright.families.ssd.message import Ssd, SsdMaskHead
from boxwright.families.table import DetectionModel, ExperimentalModel
from boxwright.families.two_stage.message import (
    AttentionPosition,
    Context,
    FasterRcnn,
    FasterRcnnFeatureExtractor,
    LevelProposals,
    LowQualityMatches,
    PyramidVariant,
    RoiAlign,
)
from boxwright.pipeline.message import TrainEvalPipelineConfig

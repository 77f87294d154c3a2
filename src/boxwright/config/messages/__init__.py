"""Messages that several families share, one file a topic; this file brings their names together."""

from boxwright.config.messages.anchor_generator import (
    AnchorGenerator, AnchorGrid, FlexibleGridAnchorGenerator, GridAnchorGenerator, MultiscaleAnchorGenerator,
    SsdAnchorGenerator,
)
from boxwright.config.messages.augmentation_beyond_tf import (
    CaffeDistort, DataAnchorSampling, LargeScaleJitter, OverlapCrop, RandomAffineMosaic, RandomCopyPaste, RandomErasing,
    RandomExpand, RandomInterpolationResize, RandomMixup, RandomMosaic, RandomSizeCrop, RandomSquarePatch, RandomTile,
    UserArgument, UserAugmentation,
)
from boxwright.config.messages.box_predictor import (
    BoxPredictor, ConvolutionalBoxPredictor, ConvolutionalBoxPredictorBoxEncodingsClipRange, MaskRCNNBoxPredictor,
    RfcnBoxPredictor, WeightSharedConvolutionalBoxPredictor,
    WeightSharedConvolutionalBoxPredictorBoxEncodingsClipRange, WeightSharedConvolutionalBoxPredictorScoreConverter,
)
from boxwright.config.messages.cascade import AlignmentBorder, ClassifierBackbone, LevelCandidates
from boxwright.config.messages.crop_augmentation import (
    RandomCropImage, RandomCropPadImage, RandomCropToAspectRatio, SSDRandomCrop, SSDRandomCropFixedAspectRatio,
    SSDRandomCropFixedAspectRatioOperation, SSDRandomCropOperation, SSDRandomCropPad,
    SSDRandomCropPadFixedAspectRatio, SSDRandomCropPadFixedAspectRatioOperation, SSDRandomCropPadOperation,
)
from boxwright.config.messages.eval import (
    CocoKeypointMetrics, CocoKeypointMetricsKeypointLabelToSigmasEntry, EvalConfig, EvalConfigSuperCategoriesEntry,
    KeypointEdge, ParameterizedMetric,
)
from boxwright.config.messages.queries import QueryMatcher, QueryPostProcessing
from boxwright.config.messages.ssd_feature_extractor import BidirectionalFeaturePyramidNetworks, FeaturePyramidNetworks
from boxwright.config.messages.hyperparams import (
    BatchNorm, GroupNorm, Hyperparams, HyperparamsActivation, HyperparamsOp, Initializer, L1Regularizer,
    L2Regularizer, RandomNormalInitializer, Regularizer, TruncatedNormalInitializer, VarianceScalingInitializer,
    VarianceScalingInitializerMode,
)
from boxwright.config.messages.image_resizer import (
    ConditionalShapeResizer, ConditionalShapeResizerResizeCondition, FixedShapeResizer, IdentityResizer,
    ImageResizer, KeepAspectRatioResizer, PadToMultipleResizer, ResizeType,
)
from boxwright.config.messages.input_reader import (
    ClassWeight, CocoInputReader, ExternalInputReader, FddbInputReader, InputReader, InputType, InstanceMaskType,
    LVISFrequency, OpenImagesInputReader, ParquetInputReader, StringIntLabelMap, StringIntLabelMapItem,
    StringIntLabelMapItemKeypointMap, TFRecordInputReader, VocInputReader, WebDatasetInputReader,
    WiderFaceInputReader, YoloInputReader,
)
from boxwright.config.messages.losses import (
    BootstrappedSigmoidClassificationLoss, ClassificationLoss, HardExampleMiner, HardExampleMinerLossType,
    L1LocalizationLoss, LocalizationLoss, Loss, LossEqualizationLoss, LossExpectedLossWeights,
    PenaltyReducedLogisticFocalLoss, RandomExampleSampler, SigmoidFocalClassificationLoss,
    WeightedDiceClassificationLoss, WeightedGIOULocalizationLoss, WeightedIOULocalizationLoss,
    WeightedL2LocalizationLoss, WeightedSigmoidClassificationLoss, WeightedSmoothL1LocalizationLoss,
    WeightedSoftmaxClassificationAgainstLogitsLoss, WeightedSoftmaxClassificationLoss,
)
from boxwright.config.messages.optimizer import (
    AdamOptimizer, AdamWOptimizer, ConstantLearningRate, CosineDecayLearningRate, ExponentialDecayLearningRate,
    LearningRate, ManualStepLearningRate, ManualStepLearningRateLearningRateSchedule, MomentumOptimizer, Optimizer,
    ParameterGroup, RMSPropOptimizer,
)
from boxwright.config.messages.post_processing import (
    BatchNonMaxSuppression, CalibrationConfig, ClassIdFunctionApproximations,
    ClassIdFunctionApproximationsClassIdXyPairsMapEntry, ClassIdSigmoidCalibrations,
    ClassIdSigmoidCalibrationsClassIdSigmoidParametersMapEntry, FunctionApproximation, PostProcessing,
    PostProcessingScoreConverter, SigmoidCalibration, SigmoidParameters, TemperatureScalingCalibration,
    TrainingDataType, XYPairs, XYPairsXYPair,
)
from boxwright.config.messages.preprocessor import (
    AdjustGamma, AutoAugmentImage, AutoAugmentOperation, AutoAugmentSubPolicy, ConvertClassLogitsToSoftmax,
    DropLabelProbabilistically, NormalizeImage, PreprocessingStep, RandomAbsolutePadImage, RandomAdjustBrightness,
    RandomAdjustContrast, RandomAdjustHue, RandomAdjustSaturation, RandomBlackPatches, RandomDistortColor,
    RandomDownscaleToTargetPixels, RandomHorizontalFlip, RandomImageScale, RandomJitterBoxes,
    RandomJitterBoxesJitterMode, RandomJpegQuality, RandomPadImage, RandomPatchGaussian, RandomPixelValueScale,
    RandomResizeMethod, RandomRGBtoGray, RandomRotation90, RandomScaleCropAndPadToSquare, RandomSelfConcatImage,
    RandomSquareCropByScale, RandomVerticalFlip, RemapLabels, ResizeImage, ResizeImageMethod, RGBtoGray,
    ScaleBoxesToPixelCoordinates, SubtractChannelMean,
)
from boxwright.config.messages.ssd_feature_extractor import SsdFeatureExtractor
from boxwright.config.messages.target_assignment import (
    ArgMaxMatcher, BipartiteArgmaxMatcher, BipartiteMatcher, BoxCoder, FasterRcnnBoxCoder, IoaSimilarity,
    IouSimilarity, KeypointBoxCoder, Matcher, MeanStddevBoxCoder, NegSqDistSimilarity, RegionSimilarityCalculator,
    SquareBoxCoder, ThresholdedIouSimilarity,
)
from boxwright.config.messages.train import (
    BatchMixup, ChannelOrder, CheckpointVersion, FreezeStage, GradientClipping, GraphRewriter, MultiScale,
    MultiScaleMethod, Quantization, TrainConfig, WeightsOrigin,
)

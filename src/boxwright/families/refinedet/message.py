"""The RefineDet meta-architecture (Zhang et al., 2018), an extension of Boxwright.

Defaults are those of the authors' Caffe code.
"""

from boxwright.config.field import AllowedValues, Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.anchor_generator import AnchorGenerator
from boxwright.config.messages.hyperparams import Hyperparams, Regularizer, normalizes
from boxwright.config.messages.image_resizer import ImageResizer
from boxwright.config.messages.losses import (
    ClassificationLoss,
    HardExampleMiner,
    HardExampleMinerLossType,
    LocalizationLoss,
    Loss,
    WeightedSmoothL1LocalizationLoss,
    WeightedSoftmaxClassificationLoss,
)
from boxwright.config.messages.post_processing import PostProcessing
from boxwright.config.messages.target_assignment import BoxCoder, Matcher
from boxwright.config.rules import PRETRAINED, TYPE, color_only, default_only, distinct, excludes, of_type, refuse

_LOSS = Loss(
    classification_loss=ClassificationLoss(weighted_softmax=WeightedSoftmaxClassificationLoss()),
    localization_loss=LocalizationLoss(weighted_smooth_l1=WeightedSmoothL1LocalizationLoss()),
    hard_example_miner=HardExampleMiner(num_hard_examples=0, iou_threshold=1.0,
        loss_type=HardExampleMinerLossType.CLASSIFICATION, max_negatives_per_positive=3),
)


class ObjectAnchors(Enum):
    """From which boxes the object detection module matches and measures."""

    REFINED = 0
    TILED = 1

class RefineDetPreset(Enum):
    """Published settings of suppression."""

    CAFFE = 0
    PAPER = 1
    CAFFE_COCO = 2

class AnchorRefinement(Message):
    """The anchor refinement module (ARM): is there an object, and where rather (an extension of Boxwright)."""

    matcher: Matcher | None = field(None, "How tiled anchors are matched; default: bipartite_argmax_matcher with 0.5.")
    loss: Loss = field(_LOSS, "Losses of this module.")
    objectness_threshold: float = number(0.01, "[0, 1)", "Negative anchor filtering: anchors less likely to hold an "
        "object (1 - θ) are no negatives of the second step, and are not detected; 0 filters nothing.")
    object_anchors: ObjectAnchors = field(ObjectAnchors.REFINED, "REFINED: two-step regression, the second step starts "
        "where the first ended; TILED: from the anchors as they were laid.")
    filter_levels: list[int] = number([], "[0, 16]", "Levels on which anchors are filtered, and the first step learns "
        "objects; level 3 has stride 8; default: all (on the fine ones: SRN's two-step classification).")
    refine_levels: list[int] = number([], "[0, 16]", "Levels whose second step starts where the first ended, and whose "
        "boxes the first step learns; default: all (on the coarse ones: SRN's two-step regression).")

    rules = (distinct("filter_levels"), distinct("refine_levels"))

class TransferConnection(Message):
    """The transfer connection blocks (TCB): features for the second step, coarse to fine (an extension)."""

    depth: int = number(256, "(0, 8192]", "Channels of every level.")
    deconvolution_kernel_size: int = number(2, "[1, 63]",
        "Side of the kernel that doubles a coarser level: 2 as released, 4 as in the paper's figure.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm; default: the model's.")

    rules = (
        refuse("deconvolution_kernel_size",
            "expected 2 (as released) or 4 (as in the paper's figure), found {deconvolution_kernel_size}",
            when=lambda c: c.deconvolution_kernel_size not in (2, 4)),
    )

class ResidualBody(Message):
    """A bottleneck before the predictors of each level, as with ResNet-101 (an extension of Boxwright)."""

    width: int = number(256, "(0, 8192]", "Channels inside the bottleneck.")
    depth: int = number(1024, "(0, 8192]", "Channels that it hands on.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm; default: the model's.")

class ConvolutionalBody(Message):
    """3×3 convolutions before the predictors of each level, which share them (an extension of Boxwright)."""

    num_layers: int = number(4, "[1, 64]", "Number of convolutions.")
    depth: int = number(256, "(0, 8192]", "Channels of each.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm; default: the model's.")

_HAS_FIXED_LAYERS = of_type("refinedet_(vgg16|resnet101)")


class RefineDetFeatureExtractor(Message):
    """Backbone and coarser maps, of strides 8, 16, 32 and so on; how many follows from the anchors."""

    type: str = field("",
        "Backbone: refinedet_vgg16, refinedet_resnet101, refinedet_mobilenet_v2 or timm/NAME.",
        values=AllowedValues(('refinedet_vgg16', 'refinedet_resnet101', 'refinedet_mobilenet_v2'), prefix='timm/'))
    pretrained: bool = field(False,
        "Ours: fetch the weights of timm/NAME when a new run starts, once, from Hugging Face's hub.")
    min_level: int = number(3, "[2, 3]",
        "Level of the finest map: 3 has stride 8; 2 has stride 4, for faces and other small objects.")
    depth_multiplier: float = number(1.0, "(0, 100]",
        "Factor on the channels of refinedet_mobilenet_v2 and of coarser maps.")
    min_depth: int = number(16, "[0, 8192]", "Fewest channels a layer may have after that factor.")
    conv_hyperparams: Hyperparams | None = field(None,
        "Regularizer, initializer, activation and batch norm of the coarser maps' convolutions.")
    override_base_feature_extractor_hyperparams: bool = field(False,
        "Apply conv_hyperparams to the backbone too, in place of the backbone's own defaults.",
        note="of a backbone of timm's only the penalty on kernels", note_when=of_type("timm/"))
    use_explicit_padding: bool = field(False,
        "Pad inputs symmetrically by kernel size, then convolve VALID, instead of SAME padding.")
    use_depthwise: bool = field(False, "Use depthwise separable convolutions in the coarser maps.")

    rules = (
        TYPE,
        PRETRAINED,
        default_only("depth_multiplier", when=_HAS_FIXED_LAYERS),
        default_only("min_depth", when=_HAS_FIXED_LAYERS),
        default_only("use_depthwise", when=_HAS_FIXED_LAYERS),
        default_only("use_explicit_padding", when=of_type("refinedet_(vgg16|resnet101)|timm/")),
        refuse("conv_hyperparams.batch_norm", "{type} is not normalized; remove it",
            when=lambda c: c.type == "refinedet_vgg16" and normalizes(c.conv_hyperparams)),
    )

class RefineDet(Message):
    """Single-shot refinement detector: anchors are refined, then classified (an extension of Boxwright)."""

    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = field(None,
        "How input images are resized; sides must fit the coarsest level's stride.")
    feature_extractor: RefineDetFeatureExtractor | None = field(None,
        "Backbone: refinedet_vgg16, refinedet_resnet101, refinedet_mobilenet_v2 or timm/NAME.")
    conv_hyperparams: Hyperparams | None = field(None, "Regularizer, initializer and activation of transfer "
        "connection, bodies and predictors; the extractor has its own.")
    anchor_generator: AnchorGenerator | None = field(None,
        "Layout of the anchor boxes; default: one scale of 4 strides with ratios 1, 2, 1/2, up to level 6.")
    box_coder: BoxCoder | None = field(None, "How boxes are encoded, in both steps; default: faster_rcnn_box_coder.")
    anchor_refinement: AnchorRefinement | None = field(None, "First step; without it the detector looks once, as SSD.")
    transfer_connection: TransferConnection | None = field(None,
        "Features of the second step; default: those of the first, as SSD.")
    residual_body: ResidualBody | None = field(None, "A bottleneck before every predictor; default: none.")
    convolutional_body: ConvolutionalBody | None = field(None,
        "3×3 convolutions before every predictor, as RetinaNet's; default: none.")
    normalize_predictors: bool = field(False,
        "Put the batch norm of the model's conv_hyperparams after the predictors, in place of their bias.")
    align_second_step: bool = field(False,
        "Let the second step's 3×3 predictors look at the boxes that it starts from, one for each anchor shape "
        "(RefineDet++'s alignment convolution); needs anchor_refinement, excludes bodies and normalize_predictors.")
    matcher: Matcher | None = field(None,
        "How the second step's anchors are matched; default: bipartite_argmax_matcher with 0.5.")
    loss: Loss = field(_LOSS, "Losses of the second step.")
    post_processing: PostProcessing | None = field(None, "Score conversion and suppression; excludes inference_preset.")
    inference_preset: RefineDetPreset = field(RefineDetPreset.CAFFE,
        "CAFFE: best 1000 of each class before suppression at 0.45, 500 after; PAPER: best 400 of the image before, "
        "200 after; CAFFE_COCO: as CAFFE, then scores are lowered linearly by overlaps above 0.3.")
    freeze_batchnorm: bool = field(False,
        "Keep batch-norm layers in inference mode during training; useful for small batches.")
    regularizer: Regularizer | None = field(None, "Penalty on every weight that learns, of any layer: kernels, biases, "
        "gains and offsets of batch norm, scales of L2 norm; default: on kernels alone, those of conv_hyperparams.")

    rules = (
        color_only("timm/"),
        refuse("align_second_step", "there is no second step without anchor_refinement { }",
            when=lambda c: c.align_second_step and c.anchor_refinement is None),
        refuse("align_second_step", "boxes are sampled on maps; remove residual_body",
            when=lambda c: c.align_second_step and c.residual_body is not None),
        refuse("align_second_step", "boxes are sampled on maps; remove convolutional_body",
            when=lambda c: c.align_second_step and c.convolutional_body is not None),
        refuse("align_second_step", "its predictors are not normalized; remove normalize_predictors",
            when=lambda c: c.align_second_step and c.normalize_predictors),
        excludes("convolutional_body", "residual_body"),
        refuse("normalize_predictors", "set the batch_norm of model.refinedet.conv_hyperparams",
            when=lambda c: c.normalize_predictors and not normalizes(c.conv_hyperparams)),
        refuse("anchor_generator.multiscale_anchor_generator.min_level",
            "the finest map is of feature_extractor.min_level, which is level {feature_extractor.min_level}; found "
            "{anchor_generator.multiscale_anchor_generator.min_level}",
            when=lambda c: c.feature_extractor and c.anchor_generator
            and c.anchor_generator.multiscale_anchor_generator
            and c.anchor_generator.multiscale_anchor_generator.min_level != c.feature_extractor.min_level),
        excludes("inference_preset", "post_processing"),
        refuse("box_coder", "use faster_rcnn_box_coder",
            when=lambda c: c.box_coder and c.box_coder.faster_rcnn_box_coder is None),
    )

"""D-FINE (Peng et al., 2024), with its own losses or DEIM's (Huang et al., 2024), an extension of Boxwright.

Defaults are those of the published sizes N, S, M, L and X.
"""

from boxwright.config.field import AllowedValues, Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.image_resizer import ImageResizer, sides_problem
from boxwright.config.messages.queries import QueryMatcher, QueryPostProcessing
from boxwright.config.rules import Rule, color_only, refuse, rising

# The coarsest map's stride: sides of inputs are multiples of it.
_STRIDE = 32


class DFineSize(Enum):
    """A published size: what is not written has its value."""

    N = 0
    S = 1
    M = 2
    L = 3
    X = 4

class DFineActivation(Enum):
    """The nonlinearity of the decoder: RELU in weights of D-FINE, SILU in those of DEIM."""

    RELU = 0
    SILU = 1

class DFineClassification(Enum):
    """The classification loss: D-FINE's or DEIM's."""

    VARIFOCAL = 0
    MATCHABILITY_AWARE = 1

_STAGES = 4

def _each_stage(name: str) -> Rule:
    """Refuse a list that has not one number for each stage."""
    return Rule(name, lambda c: "" if len(getattr(c, name)) == _STAGES else
        f"expected a number for each of {_STAGES} stages, found {len(getattr(c, name))}")


class HgNetV2Layout(Message):
    """The shape of an HGNetV2 that is none of the published ones (an extension of Boxwright)."""

    stem: list[int] = number([], "[1, 8192]", "Channels within the stem, and of its output.")
    middle: list[int] = number([], "[1, 8192]", "Channels of the convolutions within each stage's blocks.")
    out: list[int] = number([], "[2, 65536]", "Channels of each stage's map.", multiple_of=2)
    blocks: list[int] = number([], "[1, 64]", "Blocks of each stage.")
    layers: int = number(3, "[1, 64]", "Convolutions in a row in each block.")
    affine: bool = field(True, "Whether a learned scale and shift follow each activation, as in B0 to B3.")

    rules = (
        refuse("stem", "expected two numbers, found {stem}", when=lambda c: len(c.stem) != 2),
        _each_stage("middle"), _each_stage("out"), _each_stage("blocks"),
    )

class DFineFeatureExtractor(Message):
    """The backbone of D-FINE (an extension of Boxwright)."""

    type: str = field("", "hgnetv2_b0, hgnetv2_b2, hgnetv2_b4, hgnetv2_b5, or timm/NAME; empty: the size's.",
        values=AllowedValues(('hgnetv2_b0', 'hgnetv2_b2', 'hgnetv2_b4', 'hgnetv2_b5'), prefix='timm/'))
    layout: HgNetV2Layout | None = field(None, "An HGNetV2 of another shape, instead of a type.")
    pretrained: bool = field(False,
        "Fetch the weights of timm/NAME when a new run starts, once, from Hugging Face's hub.")
    strides: list[int] = number([], "[4, 32]", "Strides of the maps, finest first; empty: the size's.")
    freeze_batchnorm: bool = field(False, "Keep its batch-norm layers in inference mode during training; useful for "
        "small batches.")

    rules = (
        refuse("strides", "expected powers of 2 that end with 32, found {strides}",
            when=lambda c: c.strides and (c.strides[-1] != _STRIDE or not set(c.strides) <= {4, 8, 16, 32})),
        rising("strides"),
        refuse("layout", "type says which backbone; remove one of them", when=lambda c: c.layout and c.type),
        refuse("pretrained", "nobody keeps weights of this backbone to fetch; of timm/hgnetv2_b0 to timm/hgnetv2_b6, "
            "the same networks, there are. Or name a checkpoint by train_config.fine_tune_checkpoint",
            when=lambda c: c.pretrained and not c.type.startswith("timm/")),
    )

def _heads_divide() -> Rule:
    """Refuse heads of attention that do not divide the depth; every size's is a multiple of 128."""
    return Rule("num_heads", lambda c: "" if (c.depth or 128) % c.num_heads == 0 else
        f"{c.num_heads} do not divide " + (f"the depth of {c.depth}" if c.depth else "the size's depth"))


class DFineEncoder(Message):
    """Attention in the coarsest map, and convolutions between maps (an extension of Boxwright)."""

    depth: int = number(0, "[0, 8192]", "Channels of its maps; 0: the size's.", multiple_of=8)
    expansion: float = number(0.0, "[0, 16]", "Width of the blocks between maps, relative to depth; 0: the size's.")
    block_repeat: int = number(0, "[0, 64]", "Convolutions in a row within such a block; 0: the size's.")
    feedforward: int = number(0, "[0, 65536]", "Width of the attention's feed-forward network; 0: the size's.")
    num_heads: int = number(8, "[1, 256]", "Heads of the attention.")

    rules = (_heads_divide(),)

class DFineDecoder(Message):
    """Attention of queries to each other and to the maps (an extension of Boxwright)."""

    depth: int = number(0, "[0, 8192]", "Width of queries; 0: the size's.", multiple_of=8)
    num_layers: int = number(0, "[0, 64]", "Layers; 0: the size's.")
    taps: list[int] = number([], "[1, 64]", "How many places of each map, finest first, a head reads; empty: the "
        "size's.")
    feedforward: int = number(0, "[0, 65536]", "Width of the feed-forward networks; 0: the size's.")
    activation: DFineActivation = field(DFineActivation.RELU, "RELU as in D-FINE's weights, SILU as in DEIM's.")
    num_queries: int = number(300, "[1, 10000]", "Cells of the maps that become queries; all where there are fewer.")
    num_heads: int = number(8, "[1, 256]", "Heads of its attention.")

    rules = (_heads_divide(),)

class DFineBox(Message):
    """The distributions of boxes' sides (an extension of Boxwright)."""

    bins: int = number(32, "[4, 512]", "Bins of a distance, without the one of 0.", multiple_of=2)
    reg_scale: float = number(0.0, "[0, 64]", "Distances are in shares 1 / reg_scale of the first box's sides; 0: the "
        "size's. Weights bring their own.")
    up: float = number(0.5, "(0, 64]", "Half the largest distance, in the first box's sides. Weights bring their own.")

class DFineDenoising(Message):
    """Disturbed objects as additional queries in training (an extension of Boxwright)."""

    num_queries: int = number(100, "[0, 10000]", "How many disturbed objects an image has at most, if it has fewer of "
        "its own; 0: no denoising.")
    label_noise: float = number(0.5, "[0, 1]", "Twice the share of labels that become a random class.")
    box_noise: float = number(1.0, "[0, 16]", "How far corners move, relative to half a side.")

class DFineLoss(Message):
    """The losses of D-FINE (an extension of Boxwright)."""

    classification: DFineClassification = field(DFineClassification.VARIFOCAL,
        "VARIFOCAL as D-FINE, MATCHABILITY_AWARE as DEIM.")
    classification_weight: float = number(1.0, "[0, inf)", "Weight of the classification loss.")
    gamma: float = number(0.0, "[0, inf)", "Power of scores, and of overlaps in DEIM's; 0: 2 in D-FINE's, 1.5.")
    alpha: float = number(0.75, "[0, 1]", "Weight of wrong classes in VARIFOCAL.")
    union_matching: bool = field(True, "Boxes are learned by the matches of all layers together, as published; "
        "false: by each layer's own.")
    l1_weight: float = number(5.0, "[0, inf)", "Weight of the distance of boxes.")
    giou_weight: float = number(2.0, "[0, inf)", "Weight of 1 - the generalized intersection over union.")
    fgl_weight: float = number(0.15, "[0, inf)", "Weight of fine-grained localization: the right bins of distances.")
    ddf_weight: float = number(1.5, "[0, inf)", "Weight of distillation from the last layer to those before.")

class DistillationInOneProcess(Enum):
    """What becomes of distillation's weight where one process trains: measured as in several, or the default.

    The authors' code measures under DistributedDataParallel alone.
    """

    MEASURED = 0
    DEFAULT_WEIGHT = 1

class DFineDistillation(Message):
    """A teacher that training imitates, as RT-DETRv4's (an extension of Boxwright); detection is without it."""

    teacher: str = field("", "The network whose last map the coarsest map imitates, timm/NAME, such as "
        "timm/vit_base_patch16_dinov3.lvd1689m; its weights have terms of their own.",
        values=AllowedValues((), prefix="timm/"))
    teacher_checkpoint: str = field("", "A file of its weights that timm reads; empty: fetched once, from Hugging "
        "Face's hub.")
    pooling: int = number(2, "[1, 16]", "Pixels per side that are averaged into one that the teacher sees.")
    weight: float = number(5.0, "[0, inf)", "Weight of 1 - the cosine of both maps, before it adapts first.")
    default_weight: float = number(20.0, "[0, inf)",
        "Weight where no gradients reach the attention, and from default_weight_from on.")
    default_weight_from: int = number(0, "[0, inf)", "Step from which the weight is default_weight; 0: none.")
    target_share: float = number(0.11, "(0, 1)", "Share of the gradients' L1 norm that the attention is to have.")
    share_tolerance: float = number(0.01, "[0, 1)", "How far the share may be from that without a new weight.")
    adapt_every: int = number(1000, "[1, inf)", "Steps between new weights, by the mean share in them; the authors' "
        "are those of an epoch.")
    in_one_process: DistillationInOneProcess = field(DistillationInOneProcess.MEASURED,
        "MEASURED: shares are measured in any case; DEFAULT_WEIGHT: only if several processes train, as in the "
        "authors' code.")

    rules = (
        refuse("teacher", "name a network of timm's as timm/NAME", when=lambda c: not c.teacher),
        refuse("share_tolerance", "{share_tolerance} leaves no share beside target_share {target_share} within 0..1",
            when=lambda c: c.share_tolerance >= min(c.target_share, 1 - c.target_share)),
    )

def _taps_problem(model: "DFine") -> str:
    levels = 2 if model.size is DFineSize.N else 3
    strides = model.feature_extractor.strides if model.feature_extractor is not None else []
    taps = model.decoder.taps if model.decoder is not None else []
    maps, numbers = len(strides) or levels, len(taps) or levels
    return "" if maps == numbers else f"{numbers} numbers for {maps} maps; set as many as feature_extractor has strides"


class DFine(Message):
    """D-FINE: queries that detect an object each, without anchors and suppression (an extension of Boxwright)."""

    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized; published weights were trained "
        "with a fixed_shape_resizer of 640 × 640 and resize_method: BILINEAR_ANTIALIASED.")
    size: DFineSize = field(DFineSize.N, "The published size that the fields below have where they are not written.")
    feature_extractor: DFineFeatureExtractor | None = field(None, "The backbone.")
    encoder: DFineEncoder | None = field(None, "From the backbone's maps to those that queries read.")
    decoder: DFineDecoder | None = field(None, "From cells of the maps to queries, and from these to detections.")
    box: DFineBox | None = field(None, "The distributions of boxes' sides.")
    denoising: DFineDenoising | None = field(None, "Disturbed objects in training; default: 100 queries.")
    matcher: QueryMatcher | None = field(None, "The cost of matching queries with objects.")
    loss: DFineLoss | None = field(None, "The losses.")
    distillation: DFineDistillation | None = field(None, "A teacher in training; default: none.")
    sync_batch_norm: bool = field(False, "Normalize over the batches of all processes together, as published.")
    post_processing: QueryPostProcessing | None = field(None, "Which of the outputs are detections.")

    @property
    def side_unit(self) -> int:
        """The number that sides of inputs are multiples of."""
        return _STRIDE

    rules = (
        color_only("timm/"),
        Rule("image_resizer", lambda c: sides_problem(c.image_resizer, c.side_unit)),
        Rule("decoder.taps", _taps_problem),
    )

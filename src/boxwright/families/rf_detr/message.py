"""RF-DETR (Robinson et al., 2025), an extension of Boxwright.

Defaults are those of the published sizes N, S, M and L, and of the earlier BASE; sizes SEG are of those with masks.
"""

from dataclasses import dataclass

from boxwright.config.field import Enum, field, number
from boxwright.config.message import Message
from boxwright.config.messages.image_resizer import ImageResizer, sides_problem
from boxwright.config.messages.queries import QueryMatcher, QueryPostProcessing
from boxwright.config.rules import Rule, refuse, rising


class RfDetrSize(Enum):
    """A published size: what is not written has its value."""

    N = 0
    S = 1
    M = 2
    L = 3
    BASE = 4
    SEG_N = 5
    SEG_S = 6
    SEG_M = 7
    SEG_L = 8
    SEG_XL = 9
    SEG_2XL = 10

class RfDetrClassification(Enum):
    """The classification loss: RF-DETR's, which knows how well a box fits, or another of its code's."""

    IOU_AWARE = 0
    VARIFOCAL = 1
    FOCAL = 2

class RfDetrClassRows(Enum):
    """Which rows of a file's class heads are kept where the classes are others: those of a class's name, or the first.

    BY_POSITION is the authors' code, in which a class starts from whatever class has its number.
    """

    BY_NAME = 0
    BY_POSITION = 1

class RfDetrBoxes(Enum):
    """How references stand for boxes: as themselves, or, as in LW-DETR, by logits."""

    RELATIVE = 0
    LOGITS = 1


class RfDetrFeatureExtractor(Message):
    """A vision transformer with windows (an extension of Boxwright)."""

    width: int = number(384, "[8, 8192]", "Width of the tokens.")
    depth: int = number(12, "[1, 256]", "Blocks.")
    num_heads: int = number(6, "[1, 256]", "Heads of the attention.")
    patch: int = number(0, "[0, 256]", "Side of a patch in pixels; 0: the size's.")
    windows: int = number(0, "[0, 64]", "Windows along each side of an image; 0: the size's.")
    grid: int = number(0, "[0, 1024]", "Side of the grid of patches that positions are stored for; 0: the size's.")
    taken: list[int] = number([], "[1, 256]", "After how many blocks a map is taken, rising; counted from 0, these "
        "are also the blocks that attend to the whole image. Empty: the size's.")
    drop_path: float = number(0.0, "[0, 1)", "Share of windows for which training skips the last block; blocks before "
        "it are skipped less.")

    rules = (
        rising("taken"),
        refuse("taken", "the transformer has {depth} blocks, found {taken}",
            when=lambda c: c.taken and c.taken[-1] > c.depth),
        refuse("num_heads", "{num_heads} do not divide the width of {width}",
            when=lambda c: bool(c.width % c.num_heads)),
    )

class RfDetrProjector(Message):
    """From the transformer's maps to those that queries read (an extension of Boxwright)."""

    levels: list[int] = number([4], "[3, 5]", "Maps: 3 of twice the resolution of the patches, 4 of theirs, 5 of half "
        "of it.")

    rules = (rising("levels"), refuse("levels", "no map", when=lambda c: not c.levels))

class RfDetrDecoder(Message):
    """Attention of queries to each other and to the maps (an extension of Boxwright)."""

    depth: int = number(256, "[8, 8192]", "Width of queries and maps.", multiple_of=8)
    num_layers: int = number(0, "[0, 64]", "Layers; 0: the size's.")
    feedforward: int = number(2048, "[1, 65536]", "Width of the feed-forward networks.")
    num_queries: int = number(300, "[1, 10000]", "Queries of a group.")
    num_groups: int = number(13, "[1, 64]", "Groups of queries in training; the first alone detects.")
    self_heads: int = number(8, "[1, 256]", "Heads of the attention among queries.")
    cross_heads: int = number(16, "[1, 256]", "Heads of the attention to maps.")
    taps: int = number(2, "[1, 64]", "How many places of each map a head reads.")
    refine_references: bool = field(False, "Each layer starts from the boxes of the one before, as in LW-DETR; false: "
        "all start from those of the cells, as published.")
    boxes: RfDetrBoxes = field(RfDetrBoxes.RELATIVE, "How references stand for boxes.")

    rules = (
        refuse("self_heads", "{self_heads} do not divide the depth of {depth}",
            when=lambda c: bool(c.depth % c.self_heads)),
        refuse("cross_heads", "{cross_heads} do not divide the depth of {depth}",
            when=lambda c: bool(c.depth % c.cross_heads)),
    )

class RfDetrLoss(Message):
    """The losses of RF-DETR (an extension of Boxwright)."""

    classification: RfDetrClassification = field(RfDetrClassification.IOU_AWARE, "The classification loss.")
    classification_weight: float = number(1.0, "[0, inf)", "Weight of the classification loss.")
    alpha: float = number(0.25, "[0, 1]", "The score's share in what IOU_AWARE teaches; in the others the weight of "
        "objects.")
    gamma: float = number(2.0, "[0, inf)", "Power of scores that weighs wrong classes.")
    l1_weight: float = number(5.0, "[0, inf)", "Weight of the distance of boxes.")
    giou_weight: float = number(2.0, "[0, inf)", "Weight of 1 - the generalized intersection over union.")

class RfDetrMasks(Message):
    """Masks of instances, which the queries learn beside boxes (an extension of Boxwright)."""

    stride: int = number(4, "[1, 64]", "Pixels of the input along a side of a mask's cell.")
    cross_entropy_cost: float = number(5.0, "[0, inf)", "Weight of the cross-entropy of cells in matching.")
    dice_cost: float = number(5.0, "[0, inf)", "Weight of the dice loss in matching.")
    cross_entropy_weight: float = number(5.0, "[0, inf)", "Weight of the cross-entropy of cells in the loss.")
    dice_weight: float = number(5.0, "[0, inf)", "Weight of the dice loss.")

@dataclass(frozen=True)
class PublishedSize:
    """What a published size has where a message does not say otherwise.

    Attributes:
        patch: Side of a patch in pixels.
        windows: Windows along each side of an image.
        grid: Side of the grid of patches that positions are stored for.
        taken: After how many blocks a map is taken.
        layers: Of the decoder.
        side: Of the square inputs that its weights were trained with, in pixels.
    """

    patch: int
    windows: int
    grid: int
    taken: tuple[int, ...]
    layers: int
    side: int


SIZES = {
    "N": PublishedSize(16, 2, 24, (3, 6, 9, 12), 2, 384),
    "S": PublishedSize(16, 2, 32, (3, 6, 9, 12), 3, 512),
    "M": PublishedSize(16, 2, 36, (3, 6, 9, 12), 4, 576),
    "L": PublishedSize(16, 2, 44, (3, 6, 9, 12), 4, 704),
    "BASE": PublishedSize(14, 4, 37, (2, 5, 8, 11), 3, 560),
    "SEG_N": PublishedSize(12, 1, 26, (3, 6, 9, 12), 4, 312),
    "SEG_S": PublishedSize(12, 2, 32, (3, 6, 9, 12), 4, 384),
    "SEG_M": PublishedSize(12, 2, 36, (3, 6, 9, 12), 5, 432),
    "SEG_L": PublishedSize(12, 2, 42, (3, 6, 9, 12), 5, 504),
    "SEG_XL": PublishedSize(12, 2, 52, (3, 6, 9, 12), 6, 624),
    "SEG_2XL": PublishedSize(12, 2, 64, (3, 6, 9, 12), 6, 768),
}

class RfDetr(Message):
    """RF-DETR: a vision transformer whose queries detect an object each (an extension of Boxwright)."""

    num_classes: int = number(0, "[0, 100000]", "Number of object classes, background not counted.")
    image_resizer: ImageResizer | None = field(None, "How input images are resized; published weights were trained "
        "with a square fixed_shape_resizer and resize_method: BILINEAR_ANTIALIASED.")
    size: RfDetrSize = field(RfDetrSize.N, "The published size that the fields below have where they are not written.")
    feature_extractor: RfDetrFeatureExtractor | None = field(None, "The backbone.")
    projector: RfDetrProjector | None = field(None, "From the backbone's maps to those that queries read.")
    decoder: RfDetrDecoder | None = field(None, "From cells of the maps to queries, and from these to detections.")
    masks: RfDetrMasks | None = field(None, "Masks of instances; without it, boxes alone.")
    matcher: QueryMatcher | None = field(None, "The cost of matching queries with objects.")
    loss: RfDetrLoss | None = field(None, "The losses.")
    post_processing: QueryPostProcessing | None = field(None, "Which of the outputs are detections.")
    class_rows: RfDetrClassRows = field(RfDetrClassRows.BY_NAME, "Which rows of class heads of an authors' file are "
        "kept for other classes: those of the same names, or the first, repeated if they are too few (the authors').")

    @property
    def side_unit(self) -> int:
        """The number that sides of inputs are multiples of: patches times windows."""
        extractor, size = self.feature_extractor or RfDetrFeatureExtractor(), SIZES[self.size.name]
        return (extractor.patch or size.patch) * (extractor.windows or size.windows)

    rules = (
        Rule("image_resizer", lambda c: sides_problem(c.image_resizer, c.side_unit, ", patches times windows")),
    )

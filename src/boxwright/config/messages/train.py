"""Training, and TensorFlow's graph rewriting (quantization-aware training).

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from __future__ import annotations

import math

from boxwright.config.field import AllowedValues, Enum, UInt32, field, number
from boxwright.config.message import Message
from boxwright.config.messages.optimizer import Optimizer
from boxwright.config.messages.preprocessor import PreprocessingStep
from boxwright.config.rules import QUANTIZATION, QUEUE, TF1_SERVERS, excludes, ordered, refuse


class Quantization(Message):
    """Quantization-aware training (TF1 graph rewriting)."""

    delay: int = field(500000, "Training step at which simulated quantization starts.", no_effect=QUANTIZATION)
    weight_bits: int = field(8, "Bits per weight; only 8 is supported.", no_effect=QUANTIZATION)
    activation_bits: int = field(8, "Bits per activation; only 8 is supported.", no_effect=QUANTIZATION)
    symmetric: bool = field(False, "Use value ranges centered on 0.", no_effect=QUANTIZATION)

class GraphRewriter(Message):
    """Changes made to the model graph, such as quantization-aware training."""

    quantization: Quantization | None = field(None, "Train with simulated 8-bit quantization.", no_effect=QUANTIZATION)


class CheckpointVersion(Enum):
    """Values of `CheckpointVersion`."""

    UNKNOWN = 0
    V1 = 1
    V2 = 2

class ChannelOrder(Enum):
    """Which color a network's first convolution takes first (an extension of Boxwright)."""

    RGB = 0
    BGR = 1

class FreezeStage(Message):
    """Weights that start to learn later than the others (an extension of Boxwright)."""

    until_step: UInt32 = number(0, "[0, inf)", "The step from which these variables learn.")
    variables: list[str] = field([], "Name patterns (regex) of the variables that wait until then.")

class MultiScaleMethod(Enum):
    """How inputs get the size that was drawn (an extension of Boxwright)."""

    IMAGE_RESIZER = 0
    NEAREST_AFTERWARDS = 1
    BILINEAR_AFTERWARDS = 2

class MultiScale(Message):
    """Inputs of another size in each batch (an extension of Boxwright)."""

    min_scale: float = number(0.75, "(0, 1]", "Least size, relative to the image resizer's.")
    max_scale: float = number(1.25, "[1, 16]", "Largest size, relative to the image resizer's.")
    multiple_of: UInt32 = number(32, "[1, 4096]", "Sides are multiples of this.", unit="pixels")
    own_size_weight: UInt32 = number(1, "[0, 10000]",
        "How often the resizer's own size is drawn, where each of the others is drawn once.")
    resize_method: MultiScaleMethod = field(MultiScaleMethod.IMAGE_RESIZER,
        "IMAGE_RESIZER: images are resized once, as the image resizer does; NEAREST_AFTERWARDS: inputs of the image "
        "resizer's size are resized once more, to the nearest pixel, as DEIM's authors do; BILINEAR_AFTERWARDS: those "
        "of the largest size that can be drawn, bilinearly without antialiasing, as RF-DETR's authors do.")
    from_step: UInt32 = number(0, "[0, inf)", "The training step from which sizes are drawn.")
    until_step: UInt32 = number(0, "[0, inf)", "The training step from which inputs have the resizer's own size; 0 for "
        "none.")

    rules = (
        refuse("until_step", "{until_step} is not after from_step {from_step}",
            when=lambda c: c.has("until_step") and c.until_step <= c.from_step),
    )

class BatchMixup(Message):
    """Blends each image of a batch with the one before it, at random (an extension of Boxwright)."""

    probability: float = number(0.5, "[0, 1]", "Chance that a batch is blended.")
    min_share: float = number(0.45, "[0, 1]", "Least share of an image, the same for all of a batch; the one before it "
        "has the rest. Objects of both count in full.")
    max_share: float = number(0.55, "[0, 1]", "Largest share of an image.")
    from_step: UInt32 = number(0, "[0, inf)", "The training step from which batches are blended.")
    until_step: UInt32 = number(0, "[0, inf)", "The training step from which they no longer are; 0 for none.")

    rules = (
        ordered("min_share", "max_share"),
        refuse("until_step", "{until_step} is not after from_step {from_step}",
            when=lambda c: c.has("until_step") and c.until_step <= c.from_step),
    )

class WeightsOrigin(Message, path="pedigree"):
    """Published weights that a model's own descend from (an extension of Boxwright)."""

    name: str = field("", "Their name in `boxwright weights list`; empty for a file that is not in it.")
    file: str = field("", "Their file's name.")
    sha256: str = field("", "The file's SHA-256.")
    publisher: str = field("", "Who published them.")
    page: str = field("", "Where they are published.")
    license: str = field("", "Their license, as their publisher states it; empty if that is not known.")
    data: list[str] = field([], "The data that they were trained on.")

class GradientClipping(Enum):
    """The norm by which gradients are clipped (an extension of Boxwright)."""

    GLOBAL = 0
    EACH = 1

class TrainConfig(Message, path="train_config"):
    """Training: batch, augmentation, optimizer, initial weights and duration."""

    batch_size: UInt32 = number(32, "[1, 1000000]", "Images per training step, summed over all replicas.")
    data_augmentation_options: list[PreprocessingStep] = field([],
        "Augmentations applied to each training image, in the listed order.")
    sync_replicas: bool = field(False, "TF1: gather gradients from all workers before each update, instead of updating "
        "at will.", no_effect=TF1_SERVERS)
    keep_checkpoint_every_n_hours: float = field(10000.0,
        "TF1: keep one checkpoint for good every this many hours.", note="in TF2 without effect; here as in TF1")
    optimizer: Optimizer | None = field(None, "Optimizer and learning rate schedule.")
    gradient_clipping_by_norm: float = field(0.0, "Clip gradients to this norm; 0 = no clipping.")
    fine_tune_checkpoint: str = field("",
        "Path prefix of the checkpoint to start from; empty = train from the initializers.")
    fine_tune_checkpoint_type: str = field("",
        "What to restore: classification (the backbone), detection or fine_tune (all but the heads), full (all), or "
        "transfer (all that fits, and classes by name; an extension of Boxwright).",
        values=AllowedValues(('classification', 'detection', 'fine_tune', 'full', 'transfer')))
    fine_tune_checkpoint_version: CheckpointVersion = field(CheckpointVersion.V1,
        "Format of the starting checkpoint, V1 (TF1) or V2 (TF2 object-based); TF2 training needs V2.",
        no_effect="the kind of a checkpoint is seen from its files")
    from_detection_checkpoint: bool = field(False,
        "Deprecated. Old form of fine_tune_checkpoint_type: true = detection, false = classification.")
    load_all_detection_checkpoint_vars: bool = field(False,
        "TF1: restore every variable whose name and shape match, not only the feature extractor's.",
        note="of a checkpoint of detection; TF2's trainer refuses it, here as in TF1")
    run_fine_tune_checkpoint_dummy_computation: bool = field(True, "Run the model once on data before restoring, so "
        "that all its variables exist.", no_effect="TensorFlow's creation of variables")
    num_steps: UInt32 = field(0, "Number of training steps; 0 = no limit in TF1.")
    startup_delay_steps: float = field(15.0,
        "TF1: steps by which each further asynchronous worker waits before it starts.", no_effect=TF1_SERVERS)
    bias_grad_multiplier: float = field(0.0,
        "TF1: multiplier on the gradients of biases; 0 = leave them as they are.",
        note="in TF2 without effect; here as in TF1")
    update_trainable_variables: list[str] = field([], "TF1: name patterns (regex) of the only variables to train; "
        "empty = all.", note="in TF2 without effect; here as in TF1, over TF2's names and ours")
    freeze_variables: list[str] = field([],
        "TF1: name patterns (regex) of variables that are not trained; wins over update_trainable_variables.",
        note="in TF2 without effect; here as in TF1, over TF2's names, ours, and both below FeatureExtractor/ and "
             "BoxPredictor/")
    replicas_to_aggregate: int = field(1,
        "TF1: how many workers' gradients make one synchronous update.", no_effect=TF1_SERVERS)
    batch_queue_capacity: int = field(150, "Deprecated. Batches the TF1 input queue could hold.", no_effect=QUEUE)
    num_batch_queue_threads: int = field(8, "Deprecated. Threads that filled the TF1 batch queue.", no_effect=QUEUE)
    prefetch_queue_capacity: int = field(5, "Deprecated. Batches the TF1 prefetch queue could hold.", no_effect=QUEUE)
    merge_multiple_label_boxes: bool = field(False,
        "Merge boxes with identical coordinates into one box with several classes.")
    use_multiclass_scores: bool = field(False,
        "Train on per-class scores stored with the boxes instead of one-hot labels.")
    add_regularization_loss: bool = field(True, "Add the weight regularization losses to the training loss.")
    max_number_of_boxes: int = field(100, "Deprecated. Old limit on groundtruth boxes per image; set it in the input "
        "reader instead.", no_effect="TF2 does not read it; train_input_reader.max_number_of_boxes is what cuts")
    unpad_groundtruth_tensors: bool = field(True, "Strip the padding rows from groundtruth before the loss; must be "
        "false on TPU.", no_effect="padding never counts")
    retain_original_images: bool = field(False, "Also keep the original images in the training batch, for image "
        "summaries.", no_effect="nothing in training reads them; input images are logged from the batch")
    use_bfloat16: bool = field(False, "Train in bfloat16 precision; meant for TPU.")
    summarize_gradients: bool = field(False,
        "Write gradient histograms to the training summaries.", note="in TF2 without effect; here as in TF1")
    gradient_clipping: GradientClipping = field(GradientClipping.GLOBAL,
        "Ours: GLOBAL: gradients are scaled by the norm of all together (TF2); EACH: each by its own (TF1's legacy "
        "trainer).")
    use_float16: bool = field(False,
        "Ours: train the network in float16 with scaled gradients, for GPUs without bfloat16.")
    gradient_accumulation_steps: UInt32 = number(1, "(0, inf)",
        "Ours: learn from each batch in this many parts, so that a part fits into memory.")
    fine_tune_checkpoint_channels: ChannelOrder = field(ChannelOrder.RGB,
        "Ours: BGR: the checkpoint's first convolution takes blue first, as converted Caffe weights may; it is turned.")
    freeze_stage: list[FreezeStage] = field([], "Ours: variables that start to learn later.")
    debias_batch_norm: bool = field(True, "Ours: batch normalization's moving statistics that began with mean 0 and "
        "variance 1 are used without the share of these that a short run leaves in them; false: with it, as in TF.")
    multi_scale: MultiScale | None = field(None, "Ours: inputs of another size in each batch; default: of one size.")
    restart_from_best_step: UInt32 = number(0, "[0, inf)", "Ours: at this step training goes on from the state that "
        "was evaluated best, and so after each later evaluation without a gain, with a shorter average; 0: never.")
    batch_mixup: BatchMixup | None = field(None, "Ours: images of a batch are blended with each other; default: not. "
        "random_mixup blends before images have one size.")
    recipe_steps: UInt32 = number(0, "[0, inf)", "Ours: the num_steps for which the schedules of the same file are "
        "meant; with another num_steps they are stretched. A preset has its own; `boxwright init` writes it.")
    learning_rate_batch_size: UInt32 = number(0, "[0, 1000000]", "Ours: in a preset: the batch size that its learning "
        "rates are meant for; with another batch_size they are scaled in proportion.")

    # The file that set `recipe_steps`, whose schedules follow num_steps; empty for a preset's alone.
    _recipe_file: str = ""

    rules = (
        refuse("gradient_clipping_by_norm", "expected a finite number, found {gradient_clipping_by_norm}",
            when=lambda c: not math.isfinite(c.gradient_clipping_by_norm)),
        refuse("bias_grad_multiplier", "expected a finite number, found {bias_grad_multiplier}",
            when=lambda c: not math.isfinite(c.bias_grad_multiplier)),
        excludes("use_float16", "use_bfloat16", why="choose one"),
        refuse("gradient_accumulation_steps",
            "{gradient_accumulation_steps} parts of a batch of {batch_size}; each needs an image",
            when=lambda c: c.gradient_accumulation_steps > c.batch_size),
        excludes("use_multiclass_scores", "merge_multiple_label_boxes",
            why="it too says of which classes an object is; remove one"),
    )

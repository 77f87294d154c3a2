"""Training.

Names, types, defaults and oneofs are those of the TensorFlow Object Detection API.
"""

from typing import ClassVar

from boxwright.config.field import Field, Values
from boxwright.config.message import Bool, Enum, Float, Int32, Message, String, UInt32
from boxwright.config.messages.optimizer import Optimizer
from boxwright.config.messages.preprocessor import PreprocessingStep
from boxwright.config.reasons import QUEUE, TF1_SERVERS


class CheckpointVersion(Enum):
    """Values of `CheckpointVersion`."""

    UNKNOWN = 0
    V1 = 1
    V2 = 2


class ChannelOrder(Enum):
    """Which colour a network's first convolution takes first (an extension of Boxwright)."""

    RGB = 0
    BGR = 1


class FreezeStage(Message):
    """Weights that start to learn later than the others (an extension of Boxwright)."""

    proto_name: ClassVar[str] = "FreezeStage"

    until_step: UInt32 = Field(0, ge=0, description="The step from which these variables learn.")
    variables: list[String] = Field(
        default_factory=list, description="Name patterns (regex) of the variables that wait until then."
    )


class TrainConfig(Message):
    """Training: batch, augmentation, optimizer, initial weights and duration."""

    proto_name: ClassVar[str] = "TrainConfig"

    batch_size: UInt32 = Field(32, ge=1, le=1000000, description="Images per training step, summed over all replicas.")
    data_augmentation_options: list[PreprocessingStep] = Field(
        default_factory=list, description="Augmentations applied to each training image, in the listed order."
    )
    sync_replicas: Bool = Field(
        False,
        no_effect=TF1_SERVERS,
        description="TF1: gather gradients from all workers before each update, instead of updating at will.",
    )
    keep_checkpoint_every_n_hours: Float = Field(
        10000.0,
        note="in TF2 without effect; here as in TF1",
        description="TF1: keep one checkpoint for good every this many hours.",
    )
    optimizer: Optimizer | None = Field(None, description="Optimizer and learning rate schedule.")
    gradient_clipping_by_norm: Float = Field(0.0, description="Clip gradients to this norm; 0 = no clipping.")
    fine_tune_checkpoint: String = Field(
        "", description="Path prefix of the checkpoint to start from; empty = train from the initializers."
    )
    fine_tune_checkpoint_type: String = Field(
        "",
        values=Values(("classification", "detection", "fine_tune", "full", "transfer")),
        description="What to restore: classification (the backbone), detection or fine_tune (all but the heads), full "
        "(all), or transfer (all that fits, and classes by name; an extension of Boxwright).",
    )
    fine_tune_checkpoint_version: CheckpointVersion = Field(
        CheckpointVersion.V1,
        no_effect="the kind of a checkpoint is seen from its files",
        description="Format of the starting checkpoint, V1 (TF1) or V2 (TF2 object-based); TF2 training needs V2.",
    )
    from_detection_checkpoint: Bool = Field(
        False,
        description="Deprecated. Old form of fine_tune_checkpoint_type: true = detection, false = classification.",
    )
    load_all_detection_checkpoint_vars: Bool = Field(
        False,
        note="with a TF1 extractor and a checkpoint of detection; TF2 does not read it",
        description="TF1: restore every variable whose name and shape match, not only the feature extractor's.",
    )
    run_fine_tune_checkpoint_dummy_computation: Bool = Field(
        True,
        no_effect="TensorFlow's creation of variables",
        description="Run the model once on data before restoring, so that all its variables exist.",
    )
    num_steps: UInt32 = Field(0, description="Number of training steps; 0 = no limit in TF1.")
    startup_delay_steps: Float = Field(
        15.0,
        no_effect=TF1_SERVERS,
        description="TF1: steps by which each further asynchronous worker waits before it starts.",
    )
    bias_grad_multiplier: Float = Field(
        0.0,
        note="in TF2 without effect; here as in TF1",
        description="TF1: multiplier on the gradients of biases; 0 = leave them as they are.",
    )
    update_trainable_variables: list[String] = Field(
        default_factory=list,
        note="in TF2 without effect; here as in TF1, over TF2's names and ours",
        description="TF1: name patterns (regex) of the only variables to train; empty = all.",
    )
    freeze_variables: list[String] = Field(
        default_factory=list,
        note="in TF2 without effect; here as in TF1, over TF2's names, ours, and both below FeatureExtractor/ and BoxPredictor/",
        description="TF1: name patterns (regex) of variables that are not trained; wins over update_trainable_variables.",
    )
    replicas_to_aggregate: Int32 = Field(
        1, no_effect=TF1_SERVERS, description="TF1: how many workers' gradients make one synchronous update."
    )
    batch_queue_capacity: Int32 = Field(
        150, no_effect=QUEUE, description="Deprecated. Batches the TF1 input queue could hold."
    )
    num_batch_queue_threads: Int32 = Field(
        8, no_effect=QUEUE, description="Deprecated. Threads that filled the TF1 batch queue."
    )
    prefetch_queue_capacity: Int32 = Field(
        5, no_effect=QUEUE, description="Deprecated. Batches the TF1 prefetch queue could hold."
    )
    merge_multiple_label_boxes: Bool = Field(
        False, description="Merge boxes with identical coordinates into one box with several classes."
    )
    use_multiclass_scores: Bool = Field(
        False, description="Train on per-class scores stored with the boxes instead of one-hot labels."
    )
    add_regularization_loss: Bool = Field(
        True, description="Add the weight regularization losses to the training loss."
    )
    max_number_of_boxes: Int32 = Field(
        100,
        no_effect="TF2 does not read it; train_input_reader.max_number_of_boxes is what cuts",
        description="Deprecated. Old limit on groundtruth boxes per image; set it in the input reader instead.",
    )
    unpad_groundtruth_tensors: Bool = Field(
        True,
        no_effect="padding never counts",
        description="Strip the padding rows from groundtruth before the loss; must be false on TPU.",
    )
    retain_original_images: Bool = Field(
        False,
        no_effect="nothing in training reads them; input images are logged from the batch",
        description="Also keep the original images in the training batch, for image summaries.",
    )
    use_bfloat16: Bool = Field(False, description="Train in bfloat16 precision; meant for TPU.")
    summarize_gradients: Bool = Field(
        False,
        note="in TF2 without effect; here as in TF1",
        description="Write gradient histograms to the training summaries.",
    )
    use_float16: Bool = Field(
        False,
        description="Train the network in float16 with scaled gradients, for GPUs without bfloat16 "
        "(an extension of Boxwright).",
    )
    gradient_accumulation_steps: UInt32 = Field(
        1,
        gt=0,
        description="Learn from each batch in this many parts, so that a part fits into memory "
        "(an extension of Boxwright).",
    )
    fine_tune_checkpoint_channels: ChannelOrder = Field(
        ChannelOrder.RGB,
        description="BGR: the checkpoint's first convolution takes blue first, as converted Caffe weights may; it is "
        "turned (an extension of Boxwright).",
    )
    freeze_stage: list[FreezeStage] = Field(
        default_factory=list, description="Variables that start to learn later (an extension of Boxwright)."
    )
    learning_rate_batch_size: UInt32 = Field(
        0,
        ge=0,
        le=1000000,
        description="In a preset: the batch size that its learning rates are meant for; with another batch_size they "
        "are scaled in proportion (an extension of Boxwright).",
    )

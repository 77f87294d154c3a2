"""The base classes of networks and backbones, and the description of a network's parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from boxwright.nn.anchor_layer import AnchorLayer, infer_grids
from boxwright.nn.initial_statistics import InitialShares, initial_taken_out
from boxwright.types import Targets


class Backbone(nn.Module):
    """An image classifier's layers, up to the last requested feature map.

    Attributes:
        channels: Channels of each map that `forward` returns, finest first.
        beyond_classifier: Modules within it that the image classifier lacks.
    """

    channels: tuple[int, ...]
    beyond_classifier: tuple[str, ...] = ()

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the feature maps, finest first."""
        raise NotImplementedError


class LastMap(nn.Module):
    """A part of a backbone applied to crops, of which only the coarsest map is returned."""

    def __init__(self, body: Backbone) -> None:
        """Wrap the part."""
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [N, C, H, W]."""
        maps: list[Tensor] = self.body(inputs)
        return maps[-1]


@dataclass(frozen=True)
class ClassLayer:
    """A layer whose rows are classes, anchor by anchor.

    Attributes:
        columns: Columns per anchor: the background, if any, and the classes.
        numbers: Rows per column, such as the 4 of a box code.
        after: Rows after all columns that are of no class, such as an embedding's for padding.
    """

    name: str
    columns: int
    numbers: int = 1
    after: int = 0


@dataclass(frozen=True)
class Parts:
    """The names of a network's modules by role.

    Used for restoring, mapping classes, freezing and TensorFlow's names.

    Attributes:
        backbone: The parts that an image classifier has too.
        beyond_classifier: Modules within them that a classifier lacks.
        class_outputs: The modules of a head that end in class logits.
        additions: Modules of a head without which a detector is whole, too, such as attention to context.
        training_only: Modules that only training uses; weights for use are without them.
    """

    backbone: tuple[str, ...]
    necks: tuple[str, ...]
    heads: tuple[str, ...]
    class_outputs: tuple[str, ...]
    box_outputs: tuple[str, ...]
    class_layers: tuple[ClassLayer, ...]
    beyond_classifier: tuple[str, ...] = ()
    additions: tuple[str, ...] = ()
    training_only: tuple[str, ...] = ()

    def in_classifier(self, name: str) -> bool:
        """Return whether an image classifier has a tensor too."""
        return is_within(name, self.backbone) and not is_within(name, self.beyond_classifier)


def is_within(name: str, modules: tuple[str, ...]) -> bool:
    """Return whether a tensor belongs to one of the modules."""
    return any(name.startswith(f"{module}.") for module in modules)


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Let a network, or a detector of one, be used: in evaluation mode, its statistics without their initial values.

    At the end both are as before.
    """
    with ExitStack() as stack:
        parts = list(module.modules())
        for network in parts:
            if isinstance(network, Network) and network.initial_shares and network.debiases:
                stack.enter_context(initial_taken_out(network))
        # Setting the modes of a network's hundreds of modules takes longer than reading them: 1.5 ms an image.
        if any(part.training for part in parts):
            stack.callback(module.train, module.training)
            module.eval()
        yield


@runtime_checkable
class TwoStage(Protocol):
    """A network whose first stage has outputs of shapes that depend on the inputs' shapes alone."""

    def first_stage(self, inputs: Tensor) -> Any:
        """Return the first stage's predictions."""
        ...

    def later_stages(self, first: Any, true_sizes: Tensor, targets: Targets | None = None) -> Any:
        """Return the network's predictions from the first stage's."""
        ...


class Network(nn.Module):
    """Predicts from images; each family of detectors has its own.

    Attributes:
        frozen_statistics: Parts whose batch normalization keeps its stored statistics in training, while gain and
            bias learn; "" for the whole network.
        learns_masks: Whether training needs instance masks; if not, no batch carries them, as they are large.
        initial_shares: What statistics that training moves still hold of their initial values.
        debiases: Whether `evaluation_mode` takes that out.
        most_objects: How many objects of an image can be learned, each by a query of its own; None for any number.
    """

    frozen_statistics: tuple[str, ...] = ()
    learns_masks: bool = False
    initial_shares: InitialShares = InitialShares()
    debiases: bool = True
    most_objects: int | None = None

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002  # PyTorch's signature
        """Set the mode of all but frozen normalization, which stays in evaluation mode."""
        super().train(mode)
        for part in self.frozen_statistics:
            for module in self.get_submodule(part).modules():
                # Gain and bias still learn: evaluation mode stops the statistics, not the gradients.
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    @property
    def parts(self) -> Parts:
        """The network's modules by role."""
        raise NotImplementedError

    @property
    def attention(self) -> Any:
        """The module that attends to features of other images; None for a detector of single images."""
        return None

    @property
    def drops_at_border(self) -> bool:
        """Whether a crop that ends at the input's border has values or zeros there by the last bit of its box."""
        return False

    def statistics(self) -> list[Tensor]:
        """Return the float32 buffers that training changes, without counts of batches, which nothing reads."""
        return list(self.named_statistics().values())

    def named_statistics(self) -> dict[str, Tensor]:
        """Return what `statistics` returns, by name."""
        return {
            f"{prefix}{'.' if prefix else ''}{name}": buffer
            for prefix, module in self.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set and buffer.is_floating_point()
        }

    def begin_step(self, step: int) -> None:
        """Take the number of the training step that begins, for losses that change with it; most do not."""

    def observe_gradients(self) -> None:
        """Look at a step's gradients before weights change, for losses whose weights follow from them; most do not."""

    def drop_training_parts(self) -> tuple[str, ...]:
        """Remove the modules that only training uses, and return their names."""
        names = self.parts.training_only
        for name in names:
            parent, _, own = name.rpartition(".")
            setattr(self.get_submodule(parent), own, None)
        return names

    def lay_anchors(self, input_size: tuple[int, int], channels: int = 3) -> None:
        """Store the anchors of an input size as buffers, if the network has any."""
        layers = [module for module in self.modules() if isinstance(module, AnchorLayer)]
        grids = infer_grids(self, input_size, channels) if layers else []
        for layer in layers:
            layer.lay(grids, input_size)

    def forward(self, inputs: Tensor, true_sizes: Tensor, targets: Targets | None = None) -> Any:
        """Return the family's predictions for inputs float [B, C, H, W], preprocessed.

        `true_sizes` int64 [B, 2] is the (height, width) of each input without its padding; two-stage networks clip
        proposals to it, and sample them from `targets` in training.
        """
        raise NotImplementedError

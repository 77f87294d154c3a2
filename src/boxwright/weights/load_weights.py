"""Loading weights from other sources, with a report of what was restored, what was not, and why.

Where the classes are others, the columns of shared classes in the class predictor are kept, by name.

Dimensions: A anchors per location, C columns of the class head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from boxwright.base.errors import CheckpointError
from boxwright.base.text import visible_line
from boxwright.families.shared.source_weights import SourceWeights
from boxwright.nn.detector import Detector
from boxwright.nn.network import ClassLayer, Network, Parts, is_within
from boxwright.nn.postprocessing.anchor import AnchorPostprocessor
from boxwright.nn.tensorflow_names.checkpoint_keys import ATTRIBUTE
from boxwright.types import Categories
from boxwright.types.class_names import find_same_class
from boxwright.types.scopes import ChannelOrder, Scope
from boxwright.weights.sources import read_source

# The tensors of a predictor's convolution, and of its normalization.
_TENSORS = ("weight", "bias", "running_mean", "running_var")


class ClassSurgery:
    """The mapping of a class predictor's columns to those for other classes."""

    def __init__(self, source: Categories, target: Categories, num_classes: int) -> None:
        """Match classes by name, or by the name that another data set has for the same objects."""
        self.num_classes = num_classes
        self.pairs: list[tuple[int, int]] = []
        self.kept: list[str] = []
        self.fresh: list[str] = []
        for category in target:
            same = find_same_class(source, category)
            if same is None:
                self.fresh.append(category.name)
            else:
                self.kept.append(category.name if same.name == category.name else f"{category.name} ({same.name})")
                self.pairs.append((category.label, same.label))

    def apply(self, old: Tensor, new: Tensor, layer: ClassLayer) -> Tensor | None:
        """Return a tensor of a predictor's last layers, with columns of shared classes from the source.

        Args:
            old: [A · C' · n, …], from the source; and the rows after all columns, if the layer has such.
            new: [A · C · n, …], of the detector, with initial values; and those rows.
            layer: The layer whose tensors they are.

        Returns:
            Like `new`; None if the two differ in more than their classes.
        """
        if layer.after:
            old, new, others = old[: -layer.after], new[: -layer.after], old[-layer.after :]
            kept = self.apply(old, new, replace(layer, after=0)) if others.shape[1:] == new.shape[1:] else None
            return None if kept is None else torch.cat([kept, others.to(kept)])
        background = layer.columns - self.num_classes
        anchors, rest = divmod(len(new), layer.columns * layer.numbers)
        if rest or len(old) % (anchors * layer.numbers) or old.shape[1:] != new.shape[1:]:
            return None
        before = old.reshape(anchors, -1, layer.numbers, *old.shape[1:])
        after = new.clone().reshape(anchors, layer.columns, layer.numbers, *new.shape[1:])
        # The background is the same class in every detector, and keeps its column.
        pairs = [(column, column) for column in range(background)]
        pairs += [(background + label, background + same) for label, same in self.pairs]
        # The source has fewer columns than classes, as one without background, or with a class-agnostic head, has.
        if max(column for _, column in pairs) >= before.shape[1]:
            return None
        for column, same in pairs:
            after[:, column] = before[:, same].to(after)
        return after.reshape(new.shape)


def map_classes(network: Network, values: dict[str, Tensor], surgery: ClassSurgery) -> dict[str, Tensor] | None:
    """Return the last layers of the class predictors for the detector's classes, by our names.

    Args:
        network: The network, with initial values in its class predictor.
        values: The source's tensors, by our names.
        surgery: Which of the source's classes are whose of the detector's.

    Returns:
        None if source and network do not have the same kind of class predictor.
    """
    state, parts = network.state_dict(), network.parts
    changed: dict[str, Tensor] = {}
    for layer in parts.class_layers:
        for name in (f"{layer.name}.{own}" for own in _TENSORS):
            if name in state and name in values:
                mapped = surgery.apply(values[name], state[name].cpu(), layer)
                if mapped is None:
                    return None
                changed[name] = mapped
    return changed or None


Source = str | Path | Mapping[str, NDArray[Any]]

_WIDTH = 50


@dataclass(frozen=True)
class LoadReport:
    """The result of loading weights.

    Attributes:
        restored: Our names of the restored tensors, each with the source's name.
        kept: Our names of those that kept their initial values, each with the reason.
        unused: Names in the source that were not used, each with the reason.
        classes: How the source's classes were mapped, if the detector has others; else empty.
    """

    restored: dict[str, str]
    kept: dict[str, str]
    unused: dict[str, str]
    classes: str = ""

    def __str__(self) -> str:
        rows = [("", "tensors", "of", "reason")]
        for title, items in (("restored", dict.fromkeys(self.restored, "")), ("reset", self.kept)):
            for (part, reason), names in _grouped(items).items():
                rows.append((title, str(len(names)), f"{part}: {_example(names)}", reason))
        for (_, reason), names in _grouped(self.unused, parts=False).items():
            rows.append(("unused", str(len(names)), f"source: {_example(names)}", reason))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            f"{title:<{widths[0]}}  {count:>{widths[1]}}  {what:<{widths[2]}}  {reason}".rstrip()
            for title, count, what, reason in rows
        ]
        head = f"{len(self.restored)} tensors restored, {len(self.kept)} reset, {len(self.unused)} of the source unused"
        return "\n".join([head, *lines, *([self.classes] if self.classes else [])])


def _example(names: list[str]) -> str:
    """Return the first name; a long one is truncated to its end, which is the most informative part."""
    name = names[0].removesuffix(ATTRIBUTE)
    shown = name if len(name) <= _WIDTH else f"…{name[-_WIDTH:]}"
    return f"{shown}, …" if len(names) > 1 else shown


def _grouped(items: Mapping[str, str], *, parts: bool = True) -> dict[tuple[str, str], list[str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for name, reason in items.items():
        groups.setdefault((name.split(".")[0] if parts else "", reason), []).append(name)
    return groups


def load_weights(
    detector: Detector,
    source: Source,
    scope: Scope = "full",
    *,
    channels: ChannelOrder = "RGB",
    use_average: bool = False,
    min_share: float = 1.0,
) -> LoadReport:
    """Load weights into a detector.

    Args:
        detector: The detector, changed in place, or unchanged if loading fails.
        source: A TF2 checkpoint (prefix, folder, or SavedModel), one of our checkpoints (a file, or a run's folder, of
            which the newest is used), a `.safetensors` file with our names, a file that `torch.save` wrote of the
            network's own state dictionary or of a known layout (`pytorch_names`), or a mapping from TF2 checkpoint
            keys to arrays in TensorFlow's layout.
        scope: "full" requires every tensor, with the same shape. "detection" restores all but the heads, as TensorFlow
            does; "classification" only the backbone. "transfer" restores all that fits: a class or box predictor in
            which a shape differs keeps its initial values, as does attention to context that the source lacks; if a
            source that names its classes has others, shared ones are kept by name.
        channels: The channel order of the source's first convolution, such as BGR for converted Caffe weights. Ours is
            RGB; the kernel of others is reversed.
        use_average: Whether to use moving averages of the weights, which the source must have.
        min_share: The share of the tensors in the scope that must be restored.

    A first kernel of red, green and blue is widened where the detector's images have more channels, whose weights
    start at 0.

    Returns:
        What was restored and what was not; it prints as a table.

    Raises:
        CheckpointError: If the source cannot be read, or lacks tensors of the scope.
    """
    network = detector.network
    coder = detector.postprocessor.box_coder if isinstance(detector.postprocessor, AnchorPostprocessor) else None
    weights = read_source(network, source, use_average=use_average, coder=coder)
    if channels == "BGR":
        weights = _red_first(network, weights)
    weights = _widened(network, weights)
    classes = ""
    if scope == "transfer" and weights.is_classifier:
        scope = "classification"  # all that fits
    if scope == "transfer":
        weights, classes = _with_our_classes(detector, weights)
    wanted = _learned(network)
    kept = _kept(wanted, weights, scope, network.parts)
    restored = {name: weights.values[name].to(value) for name, value in wanted.items() if name not in kept}
    if any(is_within(name, network.parts.box_outputs) for name in restored):
        weights.check_anchors()
    check_finite(restored, "mapping" if isinstance(source, Mapping) else str(source))
    unused = dict(weights.unused)
    for name in weights.values:
        if name not in restored:
            unused[weights.names.get(name, name)] = kept.get(name, "the network has no such tensor")
    report = LoadReport({name: weights.names.get(name, name) for name in restored}, kept, unused, classes)
    _check(report, scope, min_share, network.parts)
    # Only after every check, so that a failure leaves the detector as it was.
    network.load_state_dict(restored, strict=False)
    network.initial_shares = network.initial_shares.without(restored)
    return report


def check_finite(tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise if a tensor has values that are not finite, with which a detector silently detects nothing.

    Args:
        tensors: By name.
        source: Where they come from, for the error.

    Raises:
        CheckpointError: For the first such tensor.
    """
    for name, value in tensors.items():
        finite = value.isfinite()
        if not finite.all():
            bad = int((~finite).sum())
            raise CheckpointError(f"{source}: {name}: {bad} of {value.numel()} values are not finite")


def _red_first(network: nn.Module, weights: SourceWeights) -> SourceWeights:
    """Reverse the input channels of the first convolution's kernel, which are BGR."""
    # Modules are registered in the order in which networks use them: the first convolution sees the image.
    first = next(f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Conv2d))
    kernel = weights.values.get(first)
    if kernel is None or kernel.ndim != 4 or kernel.shape[1] != 3:
        problem = "is missing" if kernel is None else f"has shape {list(kernel.shape)}"
        raise CheckpointError(f"channels 'BGR': {first} would take blue, green and red, but in the source it {problem}")
    return replace(weights, values={**weights.values, first: kernel.flip(1)})


def _widened(network: nn.Module, weights: SourceWeights) -> SourceWeights:
    """Widen a first kernel of red, green and blue to a network's further channels, which start without effect.

    TF1 initializes such a kernel, as its shape differs, and TF2 stops.
    """
    convs = ((name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d))
    first = next(convs, None)
    if first is None:
        return weights
    name, wanted = f"{first[0]}.weight", first[1].weight
    kernel = weights.values.get(name)
    more = wanted.shape[1] - 3
    fits = kernel is not None and kernel.ndim == wanted.ndim and kernel.shape[1] == 3
    if kernel is None or not fits or more < 1 or first[1].groups > 1:
        return weights
    zeros = kernel.new_zeros(kernel.shape[0], more, *kernel.shape[2:])
    return replace(weights, values={**weights.values, name: torch.cat([kernel, zeros], dim=1)})


def _with_our_classes(detector: Detector, weights: SourceWeights) -> tuple[SourceWeights, str]:
    """Map a class predictor to the detector's classes; also return a description."""
    theirs, ours, parts = weights.categories, detector.categories, detector.network.parts
    if theirs is None or ours is None or [(c.label, c.name) for c in theirs] == [(c.label, c.name) for c in ours]:
        return weights, ""
    surgery = ClassSurgery(theirs, ours, num_classes=detector.num_classes)
    mapped = map_classes(detector.network, weights.values, surgery) if surgery.kept else None
    if mapped is None:
        # Nothing of the predictor can be used: drop it, so that all of it is reset.
        others = {n: v for n, v in weights.values.items() if not is_within(n, parts.class_outputs)}
        return replace(weights, values=others), "classes: none of the checkpoint's; all start fresh"
    fresh = f"; {visible_line(', '.join(surgery.fresh))} start fresh" if surgery.fresh else ""
    return replace(
        weights, values={**weights.values, **mapped}
    ), f"classes: {visible_line(', '.join(surgery.kept))} kept by name{fresh}"


# TF leaves out gains that a configuration fixes at 1 (scale: false), so no checkpoint of TF's has them.
def _learned(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that a source must have: all but fixed gains and biases of normalization."""
    fixed = {
        f"{prefix}.{name}"
        for prefix, module in network.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for name, parameter in module.named_parameters(recurse=False)
        if not parameter.requires_grad
    }
    state = network.state_dict()
    return {n: v for n, v in state.items() if n not in fixed and not n.endswith("num_batches_tracked")}


def _kept(wanted: Mapping[str, Tensor], weights: SourceWeights, scope: Scope, parts: Parts) -> dict[str, str]:
    """Return the tensors that keep their initial values, each with the reason."""
    kept: dict[str, str] = {}
    for name, current in wanted.items():
        if scope == "classification" and not parts.in_classifier(name):
            kept[name] = "scope 'classification' only restores the backbone"
        elif scope == "detection" and is_within(name, parts.heads):
            kept[name] = "scope 'detection' does not restore the heads"
        elif name not in weights.values:
            missing = (reason for module, reason in weights.missing.items() if is_within(name, (module,)))
            kept[name] = next(missing, "not in the source")
        elif weights.values[name].shape != current.shape:
            kept[name] = f"shape {list(weights.values[name].shape)} in the source, {list(current.shape)} here"
    if scope == "transfer":
        # A predictor is restored completely or not at all: half of one is useless.
        for predictor in (parts.class_outputs, parts.box_outputs):
            if any(is_within(name, predictor) for name in kept):
                rest = {name for name in wanted if is_within(name, predictor)} - set(kept)
                kept |= dict.fromkeys(rest, "of a predictor whose shape differs")
    return kept


def _may_start_fresh(name: str, scope: Scope, parts: Parts) -> bool:
    """Return whether a scope does not require a tensor."""
    if is_within(name, parts.training_only):
        return True
    if scope == "classification":
        return not parts.in_classifier(name)
    fresh: dict[Scope, tuple[str, ...]] = {
        "full": (),
        "detection": parts.heads,
        "transfer": parts.class_outputs + parts.box_outputs + parts.additions,
    }
    return is_within(name, fresh[scope])


def _check(report: LoadReport, scope: Scope, min_share: float, parts: Parts) -> None:
    """Raise if a required tensor was not restored."""
    missing = {name: reason for name, reason in report.kept.items() if not _may_start_fresh(name, scope, parts)}
    promised = len(report.restored) + len(missing)
    if not report.restored or len(report.restored) < min_share * promised:
        name, reason = next(iter((missing or report.kept).items()), ("nothing", "the network is empty"))
        raise CheckpointError(
            f"scope '{scope}': {len(missing)} of {promised} tensors cannot be restored; "
            f"the first is {name}: {reason}\n{report}"
        )

"""Batch normalization folded into convolutions for inference, and the sizes of the maps that these are given.

With stored statistics, normalization is an affine map of each channel that the preceding convolution can absorb; the
result is equal up to float32 rounding.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from boxwright.base.device import in_float64
from boxwright.base.errors import ConfigError
from boxwright.nn.batch_norm import gain_and_shift


@torch.no_grad()
def input_sizes(network: nn.Module, run: Callable[[], object]) -> dict[nn.Module, torch.Size]:
    """Return, for each convolution or linear layer that a run calls, the size of its largest input.

    Those that are called on no rows alone, as a second stage is without boxes, are not among them.

    Args:
        network: In evaluation mode.
        run: Runs the network on inputs of the usual size.
    """
    sizes: dict[nn.Module, torch.Size] = {}

    def sees(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not inputs:  # called by name
            return
        size = inputs[0].shape
        if size.numel() > (sizes[layer].numel() if layer in sizes else 0):
            sizes[layer] = size

    with ExitStack() as hooks:
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                hooks.enter_context(module.register_forward_pre_hook(sees))
        run()
    return sizes


# Tolerance relative to a layer's largest value, for channels whose deviation is far below their mean.
_ALLOWED = 1e-2

Pairs = dict[nn.BatchNorm2d, nn.Conv2d]


@torch.no_grad()
def fold_batch_norms(network: nn.Module, run: Callable[[], object]) -> int:
    """Fold each normalization into the preceding convolution, if nothing else uses that one's output.

    The order of layers is observed by running the network, not guessed from names. Each pair is verified before any
    change: the folded convolution must reproduce the normalization's output, and nothing but the normalization may use
    the convolution's output. A convolution that runs several times, as in a pyramid's shared tower, is not folded.

    Args:
        network: In evaluation mode; its modules are changed.

    Raises:
        ConfigError: If a pair fails; the network is then unchanged.
    """
    pairs, broken = _pairs(network, run)
    folded = {norm: _folded(conv, norm) for norm, conv in pairs.items()}
    problem = _problems(network, pairs, folded, run, broken)
    if problem:
        raise ConfigError(problem)
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d) and child in pairs:
                setattr(parent, name, _without_norm(child))
    for norm, conv in pairs.items():
        conv.weight, conv.bias = folded[norm].weight, folded[norm].bias
    return len(pairs)


def _pairs(network: nn.Module, run: Callable[[], object]) -> tuple[Pairs, set[nn.Module]]:
    """Return normalizations with the convolutions, run once each, that they follow; and the layers that output NaN."""
    made: MutableMapping[Tensor, nn.Conv2d] = WeakIdKeyDictionary()  # the maps of all layers take much memory
    runs: Counter[nn.Module] = Counter()
    before: dict[nn.BatchNorm2d, list[nn.Conv2d | None]] = defaultdict(list)
    broken: set[nn.Module] = set()

    # A run on no rows, as of a second stage without boxes, verifies nothing and counts for none.
    def convolved(conv: nn.Conv2d, _: Any, output: Tensor) -> None:
        runs[conv] += bool(output.numel())
        made[output] = conv

    def normalizes(norm: nn.BatchNorm2d, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel():
            before[norm].append(made.get(inputs[0]))

    def reads_output(layer: nn.Module, _: Any, output: Tensor) -> None:
        if bool(output.isnan().any()):
            broken.add(layer)

    with ExitStack() as hooks:
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                hooks.enter_context(module.register_forward_hook(convolved))
                hooks.enter_context(module.register_forward_hook(reads_output))
            elif isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
                hooks.enter_context(module.register_forward_pre_hook(normalizes))
        run()
    pairs = {norm: convs[0] for norm, convs in before.items() if len(convs) == 1 and convs[0] is not None}
    takers = Counter(pairs.values())
    return {norm: conv for norm, conv in pairs.items() if runs[conv] == takers[conv] == 1}, broken


def _problems(
    network: nn.Module,
    pairs: Pairs,
    folded: dict[nn.BatchNorm2d, nn.Conv2d],
    run: Callable[[], object],
    broken: set[nn.Module],
) -> str:
    """Run once more, with NaN in place of paired convolutions' outputs; return the problems."""
    names = {module: name for name, module in network.named_modules()}
    given_by = set(pairs.values())
    given: dict[nn.Conv2d, tuple[Tensor, Tensor]] = {}
    problems: list[str] = []

    def hides(conv: nn.Conv2d, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given[conv] = (inputs[0], output)
        return torch.full_like(output, torch.nan)

    def sees(norm: nn.BatchNorm2d, _: Any) -> tuple[Tensor]:
        return (given[pairs[norm]][1],)

    def gave(norm: nn.BatchNorm2d, _: Any, output: Tensor) -> None:
        # `forward` itself: the copy has the hooks of its original.
        ours = _without_norm(norm)(folded[norm].forward(given.pop(pairs[norm])[0]))
        if not torch.allclose(ours, output, rtol=0.0, atol=_allowed(output), equal_nan=True):
            problems.append(
                f"{names[pairs[norm]]} cannot be folded: it differs by {float((ours - output).abs().amax()):g}"
            )

    def reads_output(layer: nn.Module, _: Any, output: Tensor) -> None:
        if layer not in broken and bool(output.isnan().any()):
            problems.append(f"a convolution before {names[layer]} cannot be folded: other layers also use its output")

    with ExitStack() as hooks:
        for norm, conv in pairs.items():
            hooks.enter_context(conv.register_forward_hook(reads_output))
            hooks.enter_context(conv.register_forward_hook(hides))
            hooks.enter_context(norm.register_forward_pre_hook(sees))
            hooks.enter_context(norm.register_forward_hook(gave))
        for module in network.modules():
            if isinstance(module, nn.Conv2d) and module not in given_by:
                hooks.enter_context(module.register_forward_hook(reads_output))
        run()
    return problems[0] if problems else ""


def _allowed(output: Tensor) -> float:
    """Return the largest difference from an output that rounding explains; 0 for no rows."""
    return _ALLOWED * float(output.abs().nan_to_num().amax()) if output.numel() else 0.0


def _without_norm(norm: nn.BatchNorm2d) -> nn.Module:
    """Return what a layer does besides normalizing; timm's include an activation."""
    # Importing timm takes a second: where nobody has, no layer is of it.
    timm = sys.modules.get("timm.layers.norm_act")
    return nn.Sequential(norm.drop, norm.act) if timm and isinstance(norm, timm.BatchNormAct2d) else nn.Identity()


def _folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """Return a convolution combined with its normalization, computed in float64."""
    gain, shift = gain_and_shift(norm)
    if conv.bias is not None:
        shift = shift + in_float64(conv.bias) * gain
    kernel = (in_float64(conv.weight) * gain[:, None, None, None]).to(conv.weight)
    layout = conv.weight.is_contiguous(memory_format=torch.channels_last)
    made = copy.copy(conv)
    made._parameters = {}  # not shared with the original
    made.weight = nn.Parameter(
        kernel.contiguous(memory_format=torch.channels_last if layout else torch.contiguous_format), False
    )
    made.bias = nn.Parameter(shift.to(conv.weight), False)
    return made

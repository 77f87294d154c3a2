"""Calls of oneDNN's convolution operators, with a sum, an activation or a packed kernel, for inference on a CPU.

PyTorch's own compiler calls them too. They compute no gradients, and maps must have channels last in memory.

Dimensions: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from boxwright.nn.activations import ReLU6
from boxwright.nn.layers import Conv2d
from boxwright.nn.ops.compiled import is_readable

# Its Swish is as near the exact one as PyTorch's, to 3e-7 of it.
ACTIVATIONS: dict[type[nn.Module], tuple[str, tuple[float, ...]]] = {
    nn.ReLU: ("relu", ()),
    ReLU6: ("hardtanh", (0.0, 6.0)),
    nn.SiLU: ("swish", ()),
}
"""Names and scalars of the activations that it computes, by class."""


class _Packed:
    """A kernel in oneDNN's own layout, an opaque tensor, or None. It never changes: copies share it."""

    def __init__(self, kernel: Tensor | None) -> None:
        """Keep the kernel."""
        self.kernel = kernel

    def __deepcopy__(self, _: object) -> _Packed:
        return self

    def __reduce__(self) -> tuple[type[_Packed], tuple[None]]:
        return _Packed, (None,)  # an opaque tensor cannot be pickled: what is unpickled is right, and slower


class PackedConv2d(Conv2d):
    """A convolution whose kernel is also kept in oneDNN's layout, which PyTorch otherwise makes at each call."""

    packed: _Packed

    def _load_from_state_dict(self, *given: Any) -> None:
        super()._load_from_state_dict(*given)
        self.packed = _Packed(None)  # of the weights before

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, C', H', W']."""
        if is_fast(self, input):
            return convolve(input, self)
        return super().forward(input)


def is_available() -> bool:
    """Return whether PyTorch has oneDNN's convolutions here."""
    names = ("_convolution_pointwise", "_reorder_convolution_weight")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


@torch.no_grad()
def pack_kernels(network: nn.Module, sizes: Mapping[nn.Module, torch.Size]) -> int:
    """Pack the kernels of convolutions, whose weights must not be changed in place, and return their number.

    Args:
        network: In evaluation mode, channels last.
        sizes: As `input_sizes` returns them. The layout is chosen for these; maps of other sizes are convolved too.
    """
    if not is_available():
        return 0
    count = 0
    for conv in network.modules():
        # Subclasses compute otherwise, and PyTorch's own class has no padding of TF's.
        if type(conv) is Conv2d and conv in sizes and is_readable(conv.weight):
            size = list(conv.padded(torch.empty(sizes[conv])).shape)
            place = (conv.padding, conv.stride, conv.dilation, conv.groups)
            kernel = torch.ops.mkldnn._reorder_convolution_weight(conv.weight, *place, size)
            conv.__class__ = PackedConv2d
            cast(PackedConv2d, conv).packed = _Packed(kernel)
            count += 1
    return count


def convolve(inputs: Tensor, conv: Conv2d) -> Tensor:
    """Return a convolution of inputs [B, C, H, W], without gradients."""
    return _pointwise(inputs, conv, "none", ())


def convolve_and_activate(inputs: Tensor, conv: Conv2d, activation: nn.Module) -> Tensor:
    """Return an activated convolution of inputs [B, C, H, W], without gradients."""
    return _pointwise(inputs, conv, *ACTIVATIONS[type(activation)])


def convolve_add_and_activate(inputs: Tensor, conv: Conv2d, other: Tensor, activation: nn.Module) -> Tensor:
    """Return the activated sum of a convolution of inputs [B, C, H, W] and another map, without gradients."""
    padded, *settings = _given(inputs, conv)
    # After a sum, PyTorch has no other activation.
    relu = type(activation) is nn.ReLU
    outputs: Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
        padded, other, *settings, "add", 1.0, "relu" if relu else None, [], ""
    )
    return outputs if relu else cast(Tensor, activation(outputs))


def _pointwise(inputs: Tensor, conv: Conv2d, name: str, scalars: tuple[float, ...]) -> Tensor:
    outputs: Tensor = torch.ops.mkldnn._convolution_pointwise(*_given(inputs, conv), name, scalars, "")
    return outputs


def _given(inputs: Tensor, conv: Conv2d) -> tuple[object, ...]:
    packed = conv.packed.kernel if isinstance(conv, PackedConv2d) else None
    kernel = conv.weight if packed is None else packed
    return conv.padded(inputs), kernel, conv.bias, conv.padding, conv.stride, conv.dilation, conv.groups


def is_fast(conv: Conv2d, inputs: Tensor) -> bool:
    """Return whether the functions above compute a convolution of inputs."""
    return (
        not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and cast("bool", torch.backends.mkldnn.enabled)
        and is_readable_map(inputs)
        and is_readable(conv.weight)
        and conv.padding_mode == "zeros"
    )


def is_readable_map(maps: Tensor) -> bool:
    """Return whether a map is readable, not empty, and has channels last in memory."""
    return is_readable(maps) and maps.numel() > 0 and maps.is_contiguous(memory_format=torch.channels_last)

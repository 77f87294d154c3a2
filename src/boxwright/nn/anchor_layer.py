"""Anchors as part of a network.

Dimensions: A anchors of all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from boxwright.base.device import without_wait
from boxwright.nn.anchor_grids import AnchorGenerator, Size

T = TypeVar("T")
# Input sizes whose anchors are cached; RetinaNet's at 800 × 1344 take 4 MB each.
_MOST_SIZES = 64


class HasFeatureMaps(Protocol):
    """A network that predicts from feature maps."""

    def feature_maps(self, inputs: Tensor) -> list[Tensor]:
        """Return the maps that anchors are laid over, finest first."""
        ...


class AnchorLayer(nn.Module):
    """Lay anchors over feature maps, once for each input size.

    A detector with a fixed input size keeps its anchors in buffers, which a graph can carry. Other detectors cache them
    on the device by size: laying RetinaNet's at 800 × 1344 takes 23 ms on a CPU.
    """

    anchors: Tensor
    inside: Tensor | None

    def __init__(self, generator: AnchorGenerator, *, finds_inside: bool = False) -> None:
        """Start without buffers.

        Args:
            generator: Lays anchors, in the order of a head's rows.
            finds_inside: Whether `lay` also stores which anchors do not cross the input's border.
        """
        super().__init__()
        self.generator, self.finds_inside = generator, finds_inside
        self.laid_for: tuple[tuple[Size, ...], Size] | None = None
        self.level_sizes: tuple[int, ...] = ()
        # Not in the state: they follow from the input size, and a checkpoint also loads where that is another.
        self.register_buffer("anchors", torch.zeros(0, 4), persistent=False)
        # The indices of anchors that do not cross the border, and their number on each map.
        self.register_buffer("inside", None, persistent=False)
        self.inside_sizes: tuple[int, ...] = ()
        self._cache: dict[_Key, tuple[Tensor, tuple[int, ...]]] = {}
        self._cached_within: dict[_Key, tuple[Tensor, tuple[int, ...]]] = {}

    def lay(self, grids: Sequence[Size], input_size: Size) -> None:
        """Store the anchors of one input size in the buffers, on the buffers' device."""
        anchors, self.level_sizes = self.generate(grids, input_size)
        self.anchors = anchors.to(self.anchors.device)
        self.laid_for, self.inside = (tuple(grids), input_size), None
        if self.finds_inside and not anchors.is_meta:  # a network of shapes alone has no anchors to count
            inside, self.inside_sizes = _within(anchors, self.level_sizes, input_size)
            self.inside = inside.to(self.anchors.device)

    def forward(self, maps: Sequence[Tensor], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
        """Return anchors float32 [A, 4], xyxy in pixels of the input, and the number of anchors on each map."""
        grids = _grids(maps)
        if self.laid_for == (grids, input_size):
            return self.anchors, self.level_sizes
        if torch.compiler.is_compiling():
            anchors, sizes = self.generate(grids, input_size)
            return anchors.to(maps[0].device), sizes
        device = maps[0].device

        def lay() -> tuple[Tensor, tuple[int, ...]]:
            anchors, sizes = self.generate(grids, input_size)
            return without_wait(anchors, device), sizes

        return _cached(self._cache, (grids, input_size, device), lay)

    def within(self, maps: Sequence[Tensor], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
        """Return the indices int64 [n] of the anchors within the input's border, and their number on each map.

        Computed from sizes alone: a mask on the device would force a synchronization at each step.
        """
        if self.inside is not None and self.laid_for == (_grids(maps), input_size):
            return self.inside, self.inside_sizes
        anchors_and_sizes: tuple[Tensor, tuple[int, ...]] = self._find_within(maps, input_size)
        return anchors_and_sizes

    # The number of anchors inside is read from their values, which a graph cannot do. `torch.compiler.disable` does the
    # same, and imports the compiler at once, which takes a second.
    @_disable_dynamo
    def _find_within(self, maps: Sequence[Tensor], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
        grids, device = _grids(maps), maps[0].device

        def find() -> tuple[Tensor, tuple[int, ...]]:
            anchors, sizes = self.generate(grids, input_size)
            inside, counts = _within(anchors, sizes, input_size)
            return without_wait(inside, device), counts

        return _cached(self._cached_within, (grids, input_size, device), find)

    def generate(self, grids: Sequence[Size], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
        """Return what `forward` returns, on the CPU and uncached."""
        by_level = self.generator(grids, input_size)
        return torch.cat(by_level), tuple(len(anchors) for anchors in by_level)


_Key = tuple[tuple[Size, ...], Size, torch.device]


def _grids(maps: Sequence[Tensor]) -> tuple[Size, ...]:
    return tuple((level.shape[-2], level.shape[-1]) for level in maps)


def _within(anchors: Tensor, sizes: tuple[int, ...], input_size: Size) -> tuple[Tensor, tuple[int, ...]]:
    """Return the indices of the anchors [A, 4] within the input's border, and their number on each map."""
    height, width = input_size
    border = torch.tensor([width, height], device=anchors.device)
    inside = ((anchors[:, :2] >= 0) & (anchors[:, 2:] <= border)).all(1)
    counts = tuple(int(part.sum()) for part in torch.split(inside, list(sizes)))
    return inside.nonzero().squeeze(1), counts


def _cached(cache: dict[_Key, T], key: _Key, make: Callable[[], T]) -> T:
    """Return the cached value of a key, made if missing; a full cache is cleared first."""
    value = cache.get(key)
    if value is None:
        value = make()
        if len(cache) >= _MOST_SIZES:
            cache.clear()
        cache[key] = value
    return value


class _FeatureMaps(nn.Module):
    """A network up to its feature maps, as a module."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> list[Tensor]:
        return cast(HasFeatureMaps, self.network).feature_maps(inputs)


def _has_shape_of_first(args: tuple[Any, ...]) -> bool:
    """Return whether what a tensor and a second argument give has the tensor's shape: it is a number, or repeated."""
    first, second = (*args, None)[:2]
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return isinstance(second, int | float)
    sizes = zip(reversed(first.shape), reversed(second.shape), strict=False)
    return second.ndim <= first.ndim and all(other in (1, size) for size, other in sizes)


def _convolved(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return an empty tensor of a convolution's shape; the arguments are those of `torch.conv2d`."""
    del bias, groups
    settings = [(setting, setting) if isinstance(setting, int) else setting for setting in (stride, padding, dilation)]
    sides = [
        (size + 2 * pad - apart * (side - 1) - 1) // step + 1
        for size, side, step, pad, apart in zip(inputs.shape[2:], weight.shape[2:], *settings, strict=True)
    ]
    return inputs.new_empty(len(inputs), len(weight), *sides)


def _resized(
    inputs: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    *_: object,
    **__: object,
) -> Tensor:
    """Return an empty tensor of a resized map's shape; the arguments are those of `F.interpolate`."""
    if size is None:
        factors = scale_factor if isinstance(scale_factor, Sequence) else (scale_factor or 1.0,) * 2
        sides: Sequence[int] = [int(side * factor) for side, factor in zip(inputs.shape[2:], factors, strict=True)]
    else:
        sides = (size, size) if isinstance(size, int) else size
    return inputs.new_empty(*inputs.shape[:2], *sides)


def _reduced(
    inputs: Tensor, dim: int | Sequence[int] | None = None, *positional: bool, keepdim: bool = False, **_: object
) -> Tensor:
    """Return an empty tensor of a sum's or an average's shape; the arguments are those of `Tensor.mean`."""
    dims = range(inputs.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    reduced = {axis % inputs.ndim for axis in dims}
    sides = [1 if number in reduced else size for number, size in enumerate(inputs.shape)]
    if keepdim or any(positional):
        return inputs.new_empty(sides)
    return inputs.new_empty([side for number, side in enumerate(sides) if number not in reduced])


class _ShapesOnly(TorchFunctionMode):
    """Give operations whose result's shape is plain an empty result of it.

    Each costs milliseconds on the meta device, and the first imports PyTorch's compiler and SymPy, a second and a half.
    """

    _SAME_SHAPE = frozenset(
        (
            *(F.batch_norm, F.dropout, F.hardtanh, F.relu, F.relu6, F.silu, F.hardswish, F.hardsigmoid),
            *(Tensor.relu, Tensor.sigmoid, torch.softmax),
        )
    )
    _SHAPED: ClassVar[dict[Callable[..., Any], Callable[..., Tensor]]] = {
        torch.conv2d: _convolved,
        F.interpolate: _resized,
        Tensor.mean: _reduced,
        Tensor.sum: _reduced,
    }
    _OF_TWO = frozenset(
        (
            *(torch.add, Tensor.add, Tensor.__add__),
            *(torch.mul, Tensor.mul, Tensor.__mul__),
            *(torch.div, Tensor.div, Tensor.__truediv__),
        )
    )

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func in self._SAME_SHAPE or (func in self._OF_TWO and _has_shape_of_first(args)):
            return args[0]
        call: Callable[..., Any] = self._SHAPED.get(func, func)
        return call(*args, **(kwargs or {}))


def infer_grids(network: nn.Module, input_size: Size, channels: int) -> list[Size]:
    """Return the (height, width) of each of a network's feature maps, without computing them."""
    module = _FeatureMaps(network)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    meta = {name: value.detach().to("meta") for name, value in state.items()}
    with torch.no_grad():
        # Two images: normalization in training needs more than one value per channel.
        inputs = torch.empty(2, channels, *input_size, device="meta")
        with _ShapesOnly():
            maps = torch.func.functional_call(module, meta, (inputs,))
    return [(level.shape[-2], level.shape[-1]) for level in maps]

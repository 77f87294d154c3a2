"""What a GPU would be told: each operation, each wait of the program for it, each type that it is asked to compute in."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import boxwright

_PACKAGE = Path(boxwright.__file__).parent
_TESTS = Path(__file__).parent.parent
_COPIES = {"_to_copy", "copy_", "copy", "_foreach_copy_", "_foreach_copy"}
# Of memory that is not written, or not of a GPU.
_NO_KERNEL = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "lift_fresh",
    "_local_scalar_dense", "sym_size", "is_pinned", "record_stream",
}  # fmt: skip
# Their backward passes look for zeros on a GPU; of fake tensors PyTorch takes another way, which does not wait.
_LOOK_FOR_ZEROS = {"prod", "cumprod"}
aten = torch.ops.aten


class MixedDevicesError(AssertionError):
    """A tensor on the CPU takes part in an operation on the GPU."""


class OperationRecorder(TorchDispatchMode):
    """Writes down the operations of fake tensors, and answers what only data could.

    Attributes:
        device: The type of the GPU, such as "cuda".
        operators: What the GPU was asked for, with its overload, as "aten::add.Tensor".
        kernels: Operations on the GPU that are more than views: name to number.
        waits: What makes the program wait for the GPU: (place in the package, operation) to number.
        dtypes: (operation, variant, type) that a GPU was asked for.
        copied_bytes: What was copied from the GPU to the CPU.
        moved_bytes: What operations read and write in the GPU's memory, as if each read all of its tensors: room to
            number.
        mixed_lists: Operations on lists whose tensors have several types, or lie in memory in several ways: a GPU does
            them tensor by tensor.
    """

    def __init__(self, mode: FakeTensorMode, device: str = "cuda") -> None:
        super().__init__()
        self.mode, self.device = mode, device
        self.operators: set[str] = set()
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.dtypes: set[tuple[str, str, torch.dtype]] = set()
        self.mixed_lists: Counter[tuple[str, str]] = Counter()
        self.copied_bytes = 0
        self.moved_bytes: Counter[str] = Counter()
        self._pinned: list[Tensor] = []  # held, so that none has the identity of another that is gone

    def clear(self) -> None:
        """Forget what was written down."""
        self.copied_bytes = 0
        for record in (self.operators, self.kernels, self.waits, self.dtypes, self.mixed_lists, self.moved_bytes):
            record.clear()

    def wait(self, operation: str) -> None:
        """Write down a wait."""
        self.waits[_place(), operation] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        devices = {one.device.type for one in tensors}
        name = func._schema.name.split("::")[1]
        if func.namespace == "boxwright":
            with self:  # what it does is written down, too; PyTorch would ask it for shapes alone
                return _body(func, self.device)(*args, **kwargs)
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if name != "item" and _is_composite(func):
            with self:  # within operators of ours such as `to` come whole
                return func.decompose(*args, **kwargs)
        if name == "_pin_memory":  # which a fake tensor cannot be
            pinned = args[0].clone()
            self._pinned.append(pinned)
            return pinned
        if name in _COPIES:
            self._copy(name, devices, tensors, kwargs)
        elif devices == {self.device, "cpu"}:
            raise MixedDevicesError(f"{name} at {_place()}: {[(one.device.type, list(one.shape)) for one in tensors]}")
        if self.device in devices or str(kwargs.get("device", "")).startswith(self.device):
            return self._run(func, name, args, kwargs)
        if name in _OF_DATA:  # on the CPU: what has arrived there
            return _OF_DATA[name](args[0])
        return func(*args, **kwargs)

    def _run(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Return the result of an operation on the GPU, written down."""
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        self._computed(func, name, args, kwargs)
        self._differentiated(name, tensors)
        answer = self._answer(func, name, args, tensors)
        result = func(*args, **kwargs) if answer is None else answer
        if not _is_view(func) and name not in _NO_KERNEL:
            self._moved((tensors, result))
        return result

    def _differentiated(self, name: str, tensors: list[Tensor]) -> None:
        """Write down a wait of the backward pass that fake tensors do not show."""
        if name in _LOOK_FOR_ZEROS and tensors[0].requires_grad and torch.is_grad_enabled():
            self.wait(f"{name}'s backward pass")

    def _moved(self, values: Any) -> None:
        """Count the bytes of an operation's tensors."""
        tensors = [one for one in tree_leaves(values) if isinstance(one, Tensor) and one.device.type == self.device]
        self.moved_bytes[_place().rpartition("/")[0]] += sum(one.numel() * one.element_size() for one in tensors)

    def _computed(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        if _is_view(func):
            return
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if name in _NO_KERNEL or (given and not any(one.numel() for one in given)):
            return
        self.kernels[name] += 1
        self.operators.add(func.name())
        if name.startswith("_foreach") and _mixed([one for one in args if isinstance(one, list | tuple)]):
            self.mixed_lists[_place(), name] += 1
        if func.namespace == "boxwright_triton":
            return  # compiled for the types that it is given
        values = [one for one in tree_leaves(args) if isinstance(one, Tensor)]
        if name in ("where", "masked_fill", "masked_fill_"):
            values = [one for one in values if one.dtype != torch.bool] or values
        if not values or name == "_to_copy":
            dtype = kwargs.get("dtype") or (values[0].dtype if values else torch.get_default_dtype())
        elif torch.Tag.pointwise in func.tags:
            dtype = values[0].dtype
            for one in values[1:]:
                dtype = torch.promote_types(dtype, one.dtype)
        else:
            dtype = values[0].dtype
        reduce = kwargs.get("reduce") or next((one for one in args if isinstance(one, str)), "")
        self.dtypes.add((name, reduce, dtype))

    def _copy(self, name: str, devices: set[str], tensors: list[Tensor], kwargs: Any) -> None:
        """Write down a copy from one device to another for which the program waits."""
        into = kwargs.get("device")
        target = torch.device(into).type if into is not None else tensors[0].device.type
        sources = (
            {one.device.type for one in tensors}
            if into is not None or len(tensors) == 1
            else {one.device.type for one in tensors[1:]}
        )
        if sources | {target} != {"cpu", self.device}:
            return
        if target == "cpu":
            self.copied_bytes += sum(
                one.numel() * one.element_size() for one in tensors if one.device.type == self.device
            )
        if target == "cpu" and kwargs.get("non_blocking"):
            return  # into pinned memory, and whoever reads it waits for an event
        if target == self.device and kwargs.get("non_blocking") and any(one is tensors[0] for one in self._pinned):
            return
        self.wait("copy from the CPU" if target == self.device else "copy to the CPU")

    def _answer(self, func: Any, name: str, args: Any, tensors: list[Tensor]) -> Any:
        """Return what data would have said, as if everything were true and chosen; None where data say nothing."""
        if name in ("_local_scalar_dense", "item"):
            self.wait("item")
            return _scalar(args[0])
        if name == "equal":
            self.wait("equal")
            return True
        if name == "nonzero":
            self.wait("nonzero")
            return _everywhere(args[0])
        if name == "nms":
            self.wait("nms")
            return torch.arange(len(args[0]), device=args[0].device)
        if name in ("index", "index_put", "index_put_") and _has_mask(args[1]):
            self.wait("boolean mask")
            indices = _without_masks(args[1])
            values = args[2:]
            if name != "index" and values[0].ndim:  # as many as the mask chooses, which fake data cannot tell
                values = (values[0].flatten()[:1].squeeze(), *values[1:])
            return func(args[0], indices, *values)
        if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags) and name not in (
            "index", "index_put", "index_put_",
        ):  # fmt: skip
            raise NotImplementedError(f"{func}: what would data say?")
        return None


def _is_composite(func: Any) -> bool:
    """Return whether an operator is made of others, and has no kernel of its own (as SiLU's gradient has)."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")


def _is_view(func: Any) -> bool:
    """Return whether an operator returns what it was given in another shape."""
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def _mixed(lists: list[Any]) -> bool:
    """Return whether tensors of a list differ in type, or those in one place of several lists in layout."""
    tensors = [[one for one in given if isinstance(one, Tensor)] for given in lists]
    tensors = [given for given in tensors if given]
    several = any(len({one.dtype for one in given}) > 1 for given in tensors)
    return several or any(len({one.stride() for one in place}) > 1 for place in zip(*tensors, strict=True))


def _everywhere(value: Tensor) -> Tensor:
    return value.new_zeros(value.numel(), value.ndim, dtype=torch.int64)


def _scalar(value: Tensor) -> bool | int | float:
    if value.dtype == torch.bool:
        return True
    return 1.0 if value.is_floating_point() else 1


# What only data could say, as if everything were true and chosen.
_OF_DATA = {"_local_scalar_dense": _scalar, "item": _scalar, "nonzero": _everywhere}


def _has_mask(indices: Any) -> bool:
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _without_masks(indices: Any) -> list[Tensor | None]:
    """Return indices of whole numbers in place of masks that choose everything."""
    found: list[Tensor | None] = []
    for one in indices:
        if one is None or one.dtype not in (torch.bool, torch.uint8):
            found.append(one)
        else:
            found += [torch.zeros(one.numel(), dtype=torch.int64, device=one.device) for _ in range(one.ndim)]
    return found


def _body(func: Any, device: str) -> Any:
    """Return the Python function behind an operator of ours on a device."""
    from torch._library.custom_ops import OPDEFS

    operator = OPDEFS[func._schema.name]
    return operator._backend_fns.get(device, operator._init_fn)


def _place() -> str:
    """Return the innermost function of the package that is running, as `room/file.py function`."""
    frame = sys._getframe(1)
    while frame is not None:
        room, file = _room(frame.f_code.co_filename)
        if room == "package":
            return f"{file} {frame.f_code.co_name}"
        if room == "tests":
            break
        if frame.f_code.co_name == "backward" and room == "cuda":
            return "autograd backward"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside the package"


@functools.cache
def _room(file: str) -> tuple[str, str]:
    """Return whose a source file is (the package's, cuda's, other tests' or nobody's), and its path in the package."""
    path = Path(file)
    if path.is_relative_to(_PACKAGE):
        return "package", path.relative_to(_PACKAGE).as_posix()
    if path.parent.name == "cuda":
        return "cuda", ""
    return ("tests" if path.is_relative_to(_TESTS) else ""), ""

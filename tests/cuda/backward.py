"""Autograd's backward pass, node by node in Python: on fake tensors, where PyTorch's engine wants a driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def backward(tensors: Tensor | Sequence[Tensor], *_: object, **__: object) -> None:
    """Add to each leaf's `grad`, as `torch.autograd.backward` does for scalars; each node of the graph is run once."""
    (root,) = [tensors] if isinstance(tensors, Tensor) else tensors
    waiting = _dependencies(root.grad_fn)
    gradients: dict[Any, dict[int, Tensor]] = {root.grad_fn: {0: torch.ones_like(root)}}
    ready = [root.grad_fn]
    while ready:
        node = ready.pop()
        arrived = gradients.pop(node, {})
        if hasattr(node, "variable"):
            _accumulate(node.variable, arrived)
            continue
        given = [arrived.get(number) for number in range(len(node._input_metadata))]
        if arrived:
            _hand_on(node, given, gradients)
        for following, _ in node.next_functions:
            if following is None:
                continue
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)


def _hand_on(node: Any, given: list[Tensor | None], gradients: dict[Any, dict[int, Tensor]]) -> None:
    """Run a node, and add what it finds to what the nodes after it will be given."""
    for (following, number), gradient in zip(node.next_functions, _run(node, given), strict=True):
        if following is not None and gradient is not None:
            _add(gradients.setdefault(following, {}), number, _fitting(gradient, following._input_metadata[number]))


def _run(node: Any, given: list[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients of what went into a node, in the order of `next_functions`."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        found = node(*given)
        return list(found) if isinstance(found, tuple | list) else [found]
    found = node.apply(*given)
    found = list(found) if isinstance(found, tuple | list) else [found]
    # It answers for its plain arguments too, of which the graph does not know.
    needed = iter([one for one, wanted in zip(found, node.needs_input_grad, strict=True) if wanted])
    return [None if following is None else next(needed) for following, _ in node.next_functions]


def _dependencies(root: Any) -> dict[Any, int]:
    """Return how many nodes hand a gradient to each node."""
    waiting: dict[Any, int] = {}
    seen, stack = {root}, [root]
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None:
                waiting[following] = waiting.get(following, 0) + 1
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
    return waiting


def _accumulate(leaf: Tensor, arrived: dict[int, Tensor]) -> None:
    """Add to a leaf's gradient, which lies in memory as the leaf does: the engine sees to that, too."""
    if not arrived:
        return
    gradient = arrived[0] if leaf.grad is None else leaf.grad + arrived[0]
    leaf.grad = gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)


def _add(into: dict[int, Tensor], number: int, gradient: Tensor) -> None:
    into[number] = into[number] + gradient if number in into else gradient


def _fitting(gradient: Tensor, wanted: Any) -> Tensor:
    """Return a gradient in the shape and type of what it is of, as the engine does."""
    if gradient.shape != wanted.shape:
        gradient = gradient.sum_to_size(wanted.shape)
    return gradient.to(wanted.dtype)

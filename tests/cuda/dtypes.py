"""Which types CUDA computes an operation in, as PyTorch's own test tables say."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

__all__ = ["KNOWN_BETTER", "UNKNOWN", "unsupported"]

# What the dispatcher calls operations that the tables have by another name.
_CALLED = {
    "convolution": "conv2d",
    "cudnn_batch_norm": "batch_norm",
    "native_batch_norm": "batch_norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "max_pool2d_with_indices": "max_pool2d",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "upsample_nearest2d": "interpolate",
    "upsample_bilinear2d": "interpolate",
    "_embedding_bag": "embedding_bag",
    "_embedding_bag_forward_only": "embedding_bag",
    "_embedding_bag_per_sample_weights": "embedding_bag",
    "grid_sampler_2d": "grid_sample",
    "native_dropout": "dropout",
    "replication_pad2d": "pad",
    "index": "__getitem__",
}
# What the tables do not know, and why it is fine nevertheless.
UNKNOWN = {
    "_to_copy": "copies and conversions are there for every type",
    "copy_": "copies and conversions are there for every type",
    "rand": "drawn in float32, as every generator can",
    "nms": "torchvision's; its own tests run it on CUDA in float32 and float16",
    "_assert_async": "of one bool",
}
# What the tables leave out, and why it is fine nevertheless.
KNOWN_BETTER = {
    "_embedding_bag_backward of torch.bfloat16": "left out for the mode `max`; ours is `sum`",
    "bmm of torch.bfloat16": "left out where no GPU is found; there since compute capability 5.3",
    "cumsum of torch.bool": "left out on the CPU too: a sum of bools is int64, to which they are converted first",
}


@functools.cache
def _tables() -> dict[str, list[Any]]:
    """Return the entries of PyTorch's tables by the operation's name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that the tables' own imports find missing
        from torch.testing._internal import common_methods_invocations as tables

    lists = [tables.op_db, *(getattr(tables, name) for name in dir(tables) if name.startswith("foreach_"))]
    found: dict[str, list[Any]] = {}
    for entry in (one for some in lists if isinstance(some, list) for one in some if isinstance(one, tables.OpInfo)):
        for name in {entry.aten_name, entry.name.split(".")[-1]}:
            found.setdefault(name or entry.name, []).append(entry)
    return found


def unsupported(asked: set[tuple[str, str, torch.dtype]]) -> tuple[set[str], set[str]]:
    """Return what a GPU cannot do.

    Args:
        asked: (operation, variant, type), as `Ledger.dtypes`.

    Returns:
        Operations in a type that CUDA does not compute them in; and operations that the tables do not know.
    """
    wrong, unknown = set(), set()
    for operation, variant, dtype in asked:
        name = operation.removesuffix("_")
        backward = name.endswith("_backward")
        name = name.removesuffix("_backward")
        entries = _tables().get(_CALLED.get(name, name), [])
        entries = [one for one in entries if one.variant_test_name == variant] or entries
        if not entries:
            unknown.add(operation)
        types = [one.supported_backward_dtypes("cuda") if backward else one.dtypesIfCUDA for one in entries]
        if entries and not any(dtype in some for some in types):
            wrong.add(f"{operation}{f' ({variant})' if variant else ''} of {dtype}")
    return wrong, unknown

"""Which types CUDA computes an operation in, as PyTorch's own test tables say."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import torch

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
    "_cdist_forward": "of float32 boxes",
    "__rshift__": "of int64: what the tables call bitwise_right_shift",
    "log_sigmoid_forward": "what log_sigmoid calls, which is there for every type",
    "_safe_softmax": "within attention with a mask, which a GPU computes in one kernel",
}
# What the tables leave out, and why it is fine nevertheless.
KNOWN_BETTER = {
    "_embedding_bag_backward of torch.bfloat16": "left out for the mode `max`; ours is `sum`",
    "bmm of torch.bfloat16": "left out where no GPU is found; there since compute capability 5.3",
    "cumsum of torch.bool": "left out on the CPU too: a sum of bools is int64, to which they are converted first",
}


# In a process of its own: what the tables import changes how PyTorch behaves, for tests of its own.
_READ = """
import json, warnings
warnings.simplefilter("ignore")
from torch.testing._internal import common_methods_invocations as tables
some = [getattr(tables, name) for name in dir(tables) if name.startswith("foreach_")]
entries = [one for part in [tables.op_db, *some] if isinstance(part, list) for one in part]
found = {}
for one in (one for one in entries if isinstance(one, tables.OpInfo)):
    types, backward = ([str(t) for t in s] for s in (one.dtypesIfCUDA, one.supported_backward_dtypes("cuda")))
    for name in {one.aten_name, one.name.split(".")[-1]} - {None}:
        found.setdefault(name, []).append([one.variant_test_name, types, backward])
print(json.dumps(found))
"""


# The tables of one release, as reading them takes as long as a dozen steps.
RECORDED = Path(__file__).parent / "recorded_dtypes.json"
Tables = dict[str, list[tuple[str, list[str], list[str]]]]


@functools.cache
def _tables() -> Tables:
    """Return what PyTorch's tables have of an operation: variant, types, types of its backward pass."""
    return recorded_tables() if torch.__version__ == recorded_release() else read_tables()


def read_tables() -> Tables:
    """Return the tables of the PyTorch that is installed."""
    done = subprocess.run([sys.executable, "-c", _READ], capture_output=True, text=True, check=True)
    found: Tables = json.loads(done.stdout.splitlines()[-1])
    return found


def recorded_release() -> str:
    """Return the release of PyTorch whose tables are recorded."""
    release: str = json.loads(RECORDED.read_text())["release"]
    return release


def recorded_tables() -> Tables:
    """Return the tables that `python -m tests.cuda.dtypes` wrote, in which a set of types is a number of bits."""
    content = json.loads(RECORDED.read_text())
    types: list[str] = content["types"]

    def members(bits: int) -> list[str]:
        return [name for number, name in enumerate(types) if bits >> number & 1]

    return {
        name: [(variant, members(forward), members(backward)) for variant, forward, backward in entries]
        for name, entries in content["operations"].items()
    }


def record() -> None:
    """Write the tables of the PyTorch that is installed."""
    tables = read_tables()
    types = sorted({one for entries in tables.values() for _, *both in entries for part in both for one in part})

    def bits(names: list[str]) -> int:
        return sum(1 << types.index(name) for name in set(names))

    operations = (
        f"{json.dumps(name)}: {json.dumps([[variant, bits(forward), bits(backward)] for variant, forward, backward in entries])}"
        for name, entries in sorted(tables.items())
    )
    head = f'"release": {json.dumps(torch.__version__)},\n"types": {json.dumps(types)}'
    RECORDED.write_text(f'{{{head},\n"operations": {{\n' + ",\n".join(operations) + "\n}}\n")


def unsupported(asked: set[tuple[str, str, torch.dtype]]) -> tuple[set[str], set[str]]:
    """Return what a GPU cannot do.

    Args:
        asked: (operation, variant, type), as `OperationRecorder.dtypes`.

    Returns:
        Operations in a type that CUDA does not compute them in; and operations that the tables do not know.
    """
    wrong, unknown = set(), set()
    assert len(_tables()) > 500
    for operation, variant, dtype in asked:
        name = operation.removesuffix("_")
        backward = name.endswith("_backward")
        name = name.removesuffix("_backward")
        entries = _tables().get(_CALLED.get(name, name), [])
        entries = [one for one in entries if one[0] == variant] or entries
        if not entries:
            unknown.add(operation)
        elif not any(str(dtype) in one[2 if backward else 1] for one in entries):
            wrong.add(f"{operation}{f' ({variant})' if variant else ''} of {dtype}")
    return wrong, unknown


if __name__ == "__main__":
    record()

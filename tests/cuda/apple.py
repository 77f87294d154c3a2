"""Which operators Apple's GPUs have, by the list of PyTorch's own operators that its code generator reads."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torchgen
import yaml

# An operator of one of these is made of others, each of which the recorder sees as well.
_MADE_OF_OTHERS = {"CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}
# What an NVIDIA GPU computes with its own libraries, and Apple's by another operator, which the list has.
CALLED = {
    "aten::cudnn_batch_norm": "aten::native_batch_norm",
    "aten::cudnn_batch_norm_backward": "aten::native_batch_norm_backward",
    "aten::_scaled_dot_product_efficient_attention": "aten::_scaled_dot_product_attention_math_for_mps",
    "aten::_scaled_dot_product_flash_attention": "aten::_scaled_dot_product_attention_math_for_mps",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "aten::_scaled_dot_product_attention_math_for_mps",
    # With gradients attention is products and a softmax there.
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "aten::_scaled_dot_product_attention_math",
}
OTHERS = {"torchvision::nms", "torchvision::roi_align", "torchvision::_roi_align_backward"}


@functools.cache
def _operators() -> dict[str, dict[str, Any]]:
    """Return the list's entries by name and overload."""
    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return {"aten::" + entry["func"].split("(")[0]: entry for entry in entries}


def is_on_mps(operator: str) -> bool:
    """Return whether an operator such as "aten::add.Tensor" has a kernel for Metal, or consists of operators."""
    operator = CALLED.get(operator, operator)
    if not operator.startswith("aten::"):
        return operator in OTHERS
    entry = _operators()[operator]
    if "structured_delegate" in entry:
        return is_on_mps("aten::" + entry["structured_delegate"])
    keys = {key.strip() for keys in entry.get("dispatch", {}) for key in keys.split(",")}
    return not keys or "MPS" in keys or bool(keys & _MADE_OF_OTHERS)

"""What a command has to import before it trains or detects: torchvision, timm and the compiler take seconds."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("timm", "torchvision", "torch._dynamo", "torch.distributed.tensor", "sympy", "pandas", "matplotlib")
IMPORTS = f"""
import sys
import boxwright.training.train, boxwright.inference.predict, boxwright.evaluation.evaluate, boxwright.api
print([name for name in {HEAVY} if name in sys.modules])
"""


def test_heavy_modules_are_imported_where_they_are_used() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"

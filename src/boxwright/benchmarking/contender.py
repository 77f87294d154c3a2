"""What is measured: something that takes pictures, and what of it can be counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Pictures = Sequence[NDArray[np.uint8]]
# From pictures to what is called once a round.
Prepare = Callable[[Pictures], Callable[[], Any]]


@dataclass(frozen=True, eq=False)
class Contender:
    """What is measured.

    Attributes:
        prepare: Makes of pictures what is called once a round.
        network: What PyTorch runs, whose operations and memory can be counted; None for an exported file, and for other
            ways of running what is counted already.
        look: Makes of pictures an inference by it, in which operations are counted.
    """

    prepare: Prepare
    network: nn.Module | None = None
    look: Prepare | None = None

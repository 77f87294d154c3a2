"""Contenders of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Pictures = Sequence[NDArray[np.uint8]]
# From pictures to a function that is called once per round.
Prepare = Callable[[Pictures], Callable[[], Any]]


@dataclass(frozen=True, eq=False)
class Contender:
    """Something that is measured.

    Attributes:
        prepare: Returns, for pictures, a function that is called once per round.
        network: The PyTorch network whose operations and memory are counted; None for an exported file, and for another
            way of running a counted network.
        look: Returns, for pictures, the network's inference, in which operations are counted.
    """

    prepare: Prepare
    network: nn.Module | None = None
    look: Prepare | None = None

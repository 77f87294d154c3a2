"""Weights, gradients, averages and the optimizer's slots, sharded over the processes (PyTorch's FSDP2).

At rest each process holds its rows of every weight. A step gathers the weights block by block, each shortly before it
computes and again for its backward pass, while the block before computes; and it leaves each process with its rows of
the averaged gradients. Updates are made row by row, so nothing else has to know.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from boxwright.base.distributed import is_sharded, is_sharded_module
from boxwright.nn.criteria.criterion import LossTerm
from boxwright.nn.network import Network
from boxwright.training.losses import ForwardResult, LossModule
from boxwright.training.state import TrainingState


@cache
def _register_outputs() -> None:
    """Let torch find, in what a forward pass returns, the tensors from which gradients will come."""
    for kind in (LossTerm, ForwardResult):
        torch.export.register_dataclass(kind)


def shard_state(losses: LossModule, state: TrainingState, count: int) -> None:
    """Leave in this process its rows of a state that is the same in all.

    Each stage of the backbone, each neck and each head is gathered and freed by itself; what lies in none of them, with
    the whole.

    Args:
        losses: Runs the state's network; weights are gathered when it is called.
        state: Its weights, averages and slots become sharded.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    _register_outputs()
    # Predictions are among what is returned, some of them views; nobody changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    network = state.detector.network
    device = next(network.parameters()).device.type
    # FSDP2 refuses parameters that are channels-last.
    network.to(memory_format=torch.contiguous_format)
    before = dict(network.named_parameters())
    mesh = init_device_mesh(device, (count,))
    for module in (*_blocks(network), losses):
        # Sum, then divide: gloo of torch 2.8 takes an average that it is asked for as a sum, and says nothing.
        fully_shard(module, mesh=mesh).set_force_sum_reduction_for_comms(True)
    after = dict(network.named_parameters())
    replaced: dict[Tensor, nn.Parameter] = {before[name]: after[name] for name in before}

    def rows_of(value: Tensor, like: nn.Parameter) -> Tensor:
        if not is_sharded(like) or value.shape != like.shape:
            return value
        return distribute_tensor(value.contiguous(), mesh, like.placements, src_data_rank=None)

    optimizer = state.optimizer
    for group in optimizer.param_groups:
        group["params"] = [replaced[parameter] for parameter in group["params"]]
    for old in list(optimizer.state):
        slots = optimizer.state.pop(old)
        optimizer.state[replaced[old]] = {name: rows_of(value, replaced[old]) for name, value in slots.items()}
    if state.average is not None:
        shadow = state.average.shadow
        state.average.shadow = {n: rows_of(value, after[n]) if n in after else value for n, value in shadow.items()}


def _blocks(network: Network) -> list[nn.Module]:
    """Return the stages of the backbone, the necks and the heads; each is a module that the network calls."""
    parts = network.parts
    backbones = [stage for name in parts.backbone for stage in _called(network.get_submodule(name))]
    others = [network.get_submodule(name) for name in (*parts.necks, *parts.heads)]
    return [block for block in (*backbones, *others) if next(block.parameters(), None) is not None]


def _called(module: nn.Module) -> list[nn.Module]:
    """Return the modules within one, and in place of lists of modules, which nobody calls, what they hold.

    What lies deeper stays together: others' backbones (timm's) call some of their layers one by one.
    """
    lists = (nn.ModuleList, nn.ModuleDict)
    return [
        called for child in module.children() for called in (_called(child) if isinstance(child, lists) else [child])
    ]


@contextmanager
def whole_weights(module: nn.Module) -> Iterator[None]:
    """Give a module its whole weights, however often it is called; all processes enter and leave together.

    They are read and not changed. Within, processes need not call it equally often: nothing is freed that would have
    to be gathered again.
    """
    blocks = [submodule for submodule in module.modules() if is_sharded_module(submodule)]
    for block in blocks:
        block.set_reshard_after_forward(False, recurse=False)
        block.unshard()
    try:
        yield
    finally:
        for block in blocks:
            block.reshard()
            # As `fully_shard` has it: the root stays gathered after its forward pass, as its backward pass is the next
            # to come.
            block.set_reshard_after_forward(block is not module, recurse=False)


def freeze_whole_weights(module: nn.Module) -> None:
    """Freeze the whole weights, which are other tensors, whose rows are frozen; all processes call this together."""
    learning = {name for name, rows in module.named_parameters() if rows.requires_grad}
    with whole_weights(module):
        for name, weight in module.named_parameters():
            weight.requires_grad_(name in learning)

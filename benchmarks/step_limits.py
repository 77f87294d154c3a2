"""What a training step cannot go below with its convolutions: their time alone, and the memory that the rest must move.

    BOXWRIGHT_TF_RACE=folder python benchmarks/step_limits.py --race benchmarks/results/race-cpu.json
        [--detect] [--models ssd_mobilenet_v2_320x320 …] [--rounds 7] [--json FILE]

For each of the race's models the convolutions of one step are noted with the shapes of their inputs. Each is then run
alone as the step runs it, forward and for its gradients; its least time, times how often it occurs, is the first part
of the limit. The second is the time in which this machine's memory moves what normalization and activation read and
write at least as a layer of its own: eight maps for each that is normalized (forward the map read for its statistics,
then read and written; backward gradient and map read for their sums, then both read and a gradient written).
Optimizer, targets, losses, penalties, pooling, padding, sums of branches and overhead are left out, so that no step
with these convolutions can be faster. The race's rows of the same machine say what whole steps take.

With `--detect` the same for a detection of one image by the optimized detector, in which normalization is folded: the
limit is the convolutions alone, as that detector computes them.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boxwright  # noqa: F401 – first: it sets how long threads spin

# isort: split
import torch
from torch import Tensor, nn

import step_profile
from boxwright.nn.batch_norm import BatchNorm2d
from boxwright.nn.winograd import WinogradConv2d
from boxwright.runtime.allocator import keep_freed_memory
from race import processor

_COPIED = 1 << 26
_MAPS = 8
_DETECTION = {"mode": "detect", "batch": 1, "image_size": (480, 640), "plain": False, "fresh": True}
# Which gradients a convolution needs, of its kernel and of its inputs; its settings; the shape of its inputs.
Key = tuple[Any, ...]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="default: all")
    parser.add_argument("--race", type=Path, required=True, help="the JSON of race.py")
    parser.add_argument("--detect", action="store_true", help="the limits of a detection")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cache", type=Path, default=Path("build/race"), help="where the graphs are unpacked")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    keep_freed_memory()
    race = step_profile.tf_race()
    mode = "detect" if arguments.detect else "train"
    raced = {row["model"]: row for row in json.loads(arguments.race.read_text())["rows"] if _is_plain(row, mode)}
    rows = []
    for model in arguments.models or list(race.PLAN):
        told = step_profile._told(race, model) | (_DETECTION if arguments.detect else {})
        side = race.Ours(told, race.unpacked(model, arguments.cache))
        calls, normalized = noted(side)
        convolutions = sum(
            count * least_s(conv, shape, learns, arguments.rounds) for conv, shape, learns, count in calls
        )
        memory = _MAPS * 4 * normalized / bytes_a_second(arguments.rounds)
        theirs, ours = raced[model]["tf_least_ms"] / 1000, raced[model]["ours_least_ms"] / 1000
        rows.append(
            {
                "model": model,
                "mode": mode,
                "convolutions_ms": round(1000 * convolutions, 1),
                "memory_ms": round(1000 * memory, 1),
                "tf_ms": round(1000 * theirs, 1),
                "convolutions_of_tf": round(convolutions / theirs, 3),
                "limit_of_tf": round((convolutions + memory) / theirs, 3),
                "ours_of_tf": round(ours / theirs, 3),
            }
        )
        print(*(f"{key}: {value}" for key, value in rows[-1].items()), sep="  ", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({**processor(), "rows": rows}, indent=1) + "\n")


def _is_plain(row: dict[str, Any], mode: str) -> bool:
    first = mode == "train" or row["batch"] == 1
    return bool(row["mode"] == mode and first and row["instructions"] == "default" and row["busy_per_core"] == 0)


def noted(side: Any) -> tuple[list[tuple[nn.Module, tuple[int, ...], tuple[bool, bool], int]], int]:
    """Return each convolution of a step with its inputs' shape, what learns and how often; how much is normalized."""
    calls: dict[Key, list[Any]] = {}
    normalized = 0

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal normalized
        if isinstance(module, BatchNorm2d):
            normalized += inputs[0].numel() if module.training else 0
        elif isinstance(module, nn.Conv2d | WinogradConv2d):
            learns = (next(module.parameters(), inputs[0]).requires_grad, inputs[0].requires_grad)
            kernel = module.kernel if isinstance(module, WinogradConv2d) else module.weight
            key = (type(module), repr(module), kernel.shape, module.bias is None, tuple(inputs[0].shape), learns)
            calls.setdefault(key, [module, tuple(inputs[0].shape), learns, 0])[3] += 1

    network = (side.detector or side.learner.state.detector).network
    hooks = [module.register_forward_pre_hook(note) for module in network.modules()]
    side.run()
    for hook in hooks:
        hook.remove()
    return [
        (copy.deepcopy(module), shape, learns, count) for module, shape, learns, count in calls.values()
    ], normalized


def least_s(conv: nn.Module, shape: tuple[int, ...], learns: tuple[bool, bool], rounds: int) -> float:
    """Return the least seconds of a convolution's forward pass and gradients."""
    conv.requires_grad_(learns[0])
    inputs = torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_(learns[1])
    with torch.no_grad():
        upstream = torch.randn_like(conv(inputs))
    learned = [one for one in (inputs, *conv.parameters()) if one.requires_grad]

    def forward_and_back() -> None:
        outputs = conv(inputs)
        if learned:
            torch.autograd.grad(outputs, learned, upstream)

    return _least_of(rounds, forward_and_back)


def bytes_a_second(rounds: int) -> float:
    """Return the bytes that are read and written in a second by a copy that fits no cache."""
    source, target = torch.ones(_COPIED), torch.ones(_COPIED)
    return 2 * 4 * _COPIED / _least_of(rounds, lambda: target.copy_(source))


def _least_of(rounds: int, work: Callable[[], object]) -> float:
    """Return the least seconds that some work takes."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


if __name__ == "__main__":
    main()

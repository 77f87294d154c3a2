"""The library changes nothing in the process around it: compared in processes of their own, before and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from boxwright.base.worker_pools import child_environment

# What a program has: read without PyTorch, and what it says of PyTorch where that is imported.
LOOK = """
import gc, json, locale, logging, multiprocessing, os, signal, sys, threading, warnings
def look():
    scheduled = [
        (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority, sorted(os.sched_getaffinity(0)), os.nice(0))
    ] if hasattr(os, "sched_getscheduler") else []
    umask = os.umask(0)
    os.umask(umask)
    seen = {
        "environment": dict(os.environ),
        "scheduled": scheduled,
        "umask": umask,
        "folder": os.getcwd(),
        "path": list(sys.path),
        "signals": {str(one): str(signal.getsignal(one)) for one in signal.valid_signals()},
        "warnings": [str(one) for one in warnings.filters], "showwarning": str(warnings.showwarning),
        "hooks": [str(sys.excepthook), str(threading.excepthook)],
        "logging": [str(one) for one in logging.root.handlers] + [logging.root.level, logging.root.manager.disable],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "collecting": [gc.isenabled(), gc.get_freeze_count(), *gc.get_threshold()],
        "locale": locale.setlocale(locale.LC_ALL),
        "switches": sys.getswitchinterval(),
    }
    if torch := sys.modules.get("torch"):
        cudnn = torch.backends.cudnn
        seen["torch"] = {
            "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
            "precision": [torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32],
            "cudnn": [cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.benchmark_limit],
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "default": [str(torch.get_default_dtype()), str(torch.get_default_device())],
            "gradients": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
            "sharing": torch.multiprocessing.get_sharing_strategy(),
            "tasks": tasks(),
        }
    return seen

def tasks():
    # How the system's threads are scheduled, OpenMP's among them: policy, niceness, and slices where Linux tells them.
    rows = set()
    for name in os.listdir("/proc/self/task"):
        about = f"/proc/self/task/{name}/sched"
        lines = open(about).read().split("\\n") if os.path.exists(about) else []
        slices = [line.split(":")[1].strip() for line in lines if line.startswith("se.slice")]
        rows.add((os.sched_getscheduler(int(name)), os.getpriority(os.PRIO_PROCESS, int(name)), *slices))
    return sorted(rows)

def flat(value, name=""):
    if not isinstance(value, dict):
        return {name: value}
    return {key: each for inner in value for key, each in flat(value[inner], f"{name}/{inner}").items()}

def compare(before, after):
    before, after = flat(before), flat(after)
    names = sorted(before.keys() | after.keys())
    changed = {n: [before.get(n), after.get(n)] for n in names if before.get(n) != after.get(n)}
    if (count := len(os.listdir("/proc/self/task"))) > most:  # fewer: a fork ends those of OpenBLAS for a while
        changed["threads of the system"] = [most, count]
    print(json.dumps(changed))
"""
# What other libraries do when they are imported (OpenCV and PyTorch set variables, SymPy and tqdm filter warnings), and
# the threads that PyTorch starts at the first product and gradient that are worth it, is not our doing.
OTHERS = """
import cv2, sympy, tqdm.auto, torch, torch._dynamo
weight = torch.nn.Conv2d(16, 16, 3).requires_grad_()
weight(torch.rand(4, 16, 64, 64)).sum().backward()
torch.rand(512, 512) @ torch.rand(512, 512)
"""


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="not Linux: threads are not listed")


def differences(first: str, last: str, tmp_path: Path, **variables: str) -> dict[str, Any]:
    """Return what a program finds changed after its last part."""
    before = "before, most = look(), len(os.listdir('/proc/self/task'))"
    environment = {name: value for name, value in child_environment().items() if not name.startswith(("OMP", "GOMP"))}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([LOOK, first, before, last, "compare(before, look())"])],
        env=environment | {"BOXWRIGHT_CACHE": str(tmp_path / "cache")} | variables,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    changed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return changed


def test_importing_changes_nothing(tmp_path: Path) -> None:
    assert differences("", "import boxwright; assert 'torch' not in sys.modules", tmp_path) == {}


def test_training_loading_and_steps_of_ones_own_change_nothing(small_config: Path, tmp_path: Path) -> None:
    use = f"""
config = bw.load_config({str(small_config)!r}, ["train_config.num_steps=2"])
run = bw.train(config, "run", workers=1, evaluate=False, preflight=False, device="cpu")
model = bw.load("run")
model(numpy.zeros((64, 64, 3), numpy.uint8))
learner = bw.Learner(config, device="cpu")
batches = learner.batches()
for _ in range(2):
    learner.step(next(batches))
batches.close()
bw.evaluate("run", device="cpu")
del learner, model, run, batches
"""
    # Threads that sleep at once take less time beside other tests.
    variables = {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0"}
    assert differences(f"{OTHERS}\nimport numpy, boxwright as bw", use, tmp_path, **variables) == {}

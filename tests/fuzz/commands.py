"""Commands with odd arguments, each in a process of its own (forked, as starting Python takes a second)."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from boxwright.cli import main as command_line
from boxwright.data.convert import write_coco, write_tfrecords, write_voc
from boxwright.data.image_io import encode_png
from boxwright.data.shapes import ShapesDataset
from tests.conftest import small_config_text
from tests.fuzz.mutate import mutate
from tests.fuzz.readers import small_checkpoint

_SECONDS = 120
_ODD = [
    "",
    "-1",
    "0",
    "nan",
    "1e400",
    "²",
    "\udcff",
    "x" * 5000,
    "../..",
    "/",
    "-",
    "--",
    "true",
    "18446744073709551616",
    "{",
    "a=b",
]
_OPTIONS = [
    "--set",
    "--model_dir",
    "--checkpoint",
    "--out",
    "--device",
    "--seed",
    "--workers",
    "--num_train_steps",
    "--config",
    "--min_score",
    "--multi_scale",
    "--reader",
    "--label-map",
    "--image-set",
    "--image-folder",
    "--num-shards",
    "--masks",
    "--sheet",
    "--pictures",
    "--patience",
    "--best_metric",
    "--track",
    "--checkpoint_every_n",
    "--max_seconds",
    "--allow_paths_outside",
    "--sample_1_of_n_eval_examples",
    "--class_agnostic",
    "--format",
    "--profile",
    "--data_timeout",
    "--skip_bad_records",
    "--cache",
    "--skip_not_finite",
    "--log_every_n",
    "--help",
]


def fuzz_commands(seed: int, seconds: float, count: int, write: Callable[[str, bytes, str], None]) -> Counter[str]:
    """Run commands for so many seconds, or so many of them; return what became of them."""
    rng, found = random.Random(f"commands {seed}"), Counter[str]()
    home, until = _material(), time.monotonic() + seconds
    # What the verbs import, once: a fork begins with it.
    import boxwright.evaluation.watch
    import boxwright.inference.predict
    import boxwright.training.train  # noqa: F401

    while time.monotonic() < until and found.total() < count:
        work = Path(tempfile.mkdtemp(prefix="boxwright-command-"))
        shutil.copytree(home, work, dirs_exist_ok=True)
        words = _words(rng, work)
        status, errors = _run(words, work)
        ended = os.waitstatus_to_exitcode(status)
        broke = "Traceback" in errors or ended not in (0, 1, 2, 75) or "Internal" in errors
        if broke:
            write("commands", "\0".join(words).encode("utf-8", "surrogateescape"), f"status {ended}\n{errors[-3000:]}")
        left = [path.name for path in work.rglob("*.partial")]
        if left and not broke:
            write("commands", "\0".join(words).encode("utf-8", "surrogateescape"), f"left behind: {left}")
        found["FINDING" if broke or left else "refused" if ended else "done"] += 1
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)
    return found


def _material() -> Path:
    """Make a folder with a little of everything that commands take."""
    home = Path(tempfile.mkdtemp(prefix="boxwright-material-"))
    shapes = ShapesDataset(3, seed=1, size=(40, 50))
    write_tfrecords(shapes, home / "train.record", num_shards=2)
    write_tfrecords(shapes, home / "val.record")
    write_coco(shapes, home / "coco" / "c.json")
    write_voc(shapes, home / "voc")
    (home / "ckpt-1.pt").write_bytes(small_checkpoint()[0])
    (home / "a.png").write_bytes(encode_png(np.zeros((20, 30, 3), np.uint8)))
    (home / "c.config").write_text(small_config_text(Path(".")).replace("num_steps: 6", "num_steps: 1"))
    return home


def _words(rng: random.Random, work: Path) -> list[str]:
    """Make a command line that is nearly right: one that works, with odd words in it, or odd files before it."""
    good = [
        ["train", "--config", "c.config", "--model_dir", "m", "--workers", "0"],
        ["evaluate", "--model_dir", "ckpt-1.pt", "--config", "c.config", "--out", "e"],
        ["predict", "a.png", "--checkpoint", "ckpt-1.pt", "--out", "o"],
        ["convert", "voc", "out/a.record"],
        ["convert", "coco/c.json", "out-voc"],
        ["convert", "train.record-00000-of-00002", "out/c.json"],
        ["export", "ckpt-1.pt", "w.safetensors"],
        ["inspect", "voc", "--sheet", "s.png"],
        ["config", "check", "c.config"],
        ["config", "show", "c.config", "--format", "yaml"],
        ["config", "fields", "train_config.optimizer"],
        ["replay", "m"],
    ]
    words = list(rng.choice(good))
    for _ in range(rng.choice((0, 1, 1, 2))):
        place = rng.randrange(len(words) + 1)
        change = rng.randrange(4)
        if change == 0 and place < len(words):
            words[place] = rng.choice(_ODD)
        elif change == 1:
            words[place:place] = [rng.choice(_OPTIONS), rng.choice(_ODD)]
        elif change == 2 and place < len(words):
            del words[place]
        else:
            words += [
                "--set",
                f"{rng.choice(['train_config.batch_size', 'model.ssd.num_classes', 'x', ''])}={rng.choice(_ODD)}",
            ]
    if rng.random() < 0.4:
        files = [path for path in work.rglob("*") if path.is_file()]
        file = rng.choice(files)
        data = file.read_bytes()
        file.write_bytes(mutate(data, rng, [data]))
    return words


def _run(words: list[str], work: Path) -> tuple[int, str]:
    errors = work / ".stderr"
    child = os.fork()
    if not child:
        with errors.open("w", errors="backslashreplace") as stream:
            status = 1
            try:
                signal.alarm(_SECONDS)
                os.chdir(work)
                os.dup2(stream.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                sys.stderr, sys.stdout = stream, open(os.devnull, "w")  # noqa: SIM115
                torch.set_num_threads(1)
                sys.argv = ["boxwright", *words]
                command_line.main()
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:  # noqa: BLE001  # that is what is looked for
                import traceback

                stream.write(traceback.format_exc())
                status = 70
            finally:
                stream.flush()
                os._exit(status)
    _, status = os.waitpid(child, 0)
    return status, errors.read_text(errors="replace") if errors.exists() else ""

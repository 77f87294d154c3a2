"""The summary of evaluated images: metrics, notes and pictures; in a separate process where that is asked for.

A thread would not help: both metrics and training run Python code, and only one thread of a process runs Python at a
time.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boxwright.base.errors import BoxwrightError
from boxwright.evaluation.build import EvaluationPlan
from boxwright.evaluation.images import EvaluatedImage, Keep, keep_nothing
from boxwright.evaluation.results import Evaluation
from boxwright.types import Categories

# Number of images. The metrics of fewer are ready before a process has started.
WORTH_A_PROCESS = 500

_LOG = logging.getLogger("boxwright.run")


def summarize(
    images: Iterable[EvaluatedImage], plan: EvaluationPlan, categories: Categories, keep: Keep = keep_nothing
) -> Evaluation:
    """Return metrics and pictures of images, none of which is kept after its turn.

    Args:
        images: In the data's order, by which equal scores are ranked.
        categories: `EvaluationData.counted_categories`.
        keep: Gets each image.
    """
    metrics = [make(categories) for make in plan.metrics]
    pictures: dict[str, NDArray[np.uint8]] = {}
    sums: dict[str, float] = {}
    count = 0
    for image in images:
        for metric in metrics:
            metric.add(image.sample, image.detections, image.masks)
        keep(image, categories)
        if image.picture is not None:
            name = image.sample.id or str(count)
            pictures[name if name not in pictures else f"{name} ({count})"] = image.picture
        count += 1
        sums = {name: sums.get(name, 0.0) + value for name, value in image.losses.items()}
    results = [metric.compute() for metric in metrics]
    values = {name: value for result in results for name, value in result.values.items()}
    values |= {name: total / count for name, total in sums.items()}
    return Evaluation(values, [note for result in results for note in result.notes], pictures, results)


def in_order(images: Iterable[EvaluatedImage]) -> list[EvaluatedImage]:
    """Return images of several processes in the data's order."""
    return sorted(images, key=lambda image: image.index)


def summarize_in_process(
    images: Sequence[EvaluatedImage], plan: EvaluationPlan, categories: Categories
) -> Future[Evaluation]:
    """Return the future evaluation of all images: metrics, notes and pictures, without curves.

    It is complete already if there are few images. If the other process fails, this one logs that and computes it.
    """
    images, future = in_order(images), Future[Evaluation]()
    if len(images) < WORTH_A_PROCESS:
        try:
            future.set_result(_without_curves(summarize(images, plan, categories)))
        except BoxwrightError as error:
            future.set_exception(error)
        return future
    question = pickle.dumps((images, plan, categories))
    # A daemon, so that the program's exit does not wait for it.
    threading.Thread(target=_answered, args=(future, question), name="metrics", daemon=True).start()
    return future


def _answered(future: Future[Evaluation], question: bytes) -> None:
    try:
        future.set_result(_ask_process(question))
    except BaseException as error:  # noqa: BLE001  # raised again by future.result()
        future.set_exception(error)


def _ask_process(question: bytes) -> Evaluation:
    # The child has this process's import path, whatever is in the working folder, and ignores Ctrl-C.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    command = [sys.executable or "python3", "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, env=environment, start_new_session=True, check=True
        )
        answer = pickle.loads(done.stdout)  # of our own child
    except (OSError, subprocess.CalledProcessError, pickle.UnpicklingError, EOFError) as error:
        lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else str(error)
        _LOG.warning("the metrics process failed (%s): metrics are computed in this process, which is slower", reason)
        return _without_curves(summarize(*pickle.loads(question)))  # our own
    if isinstance(answer, BoxwrightError):
        raise answer
    evaluation: Evaluation = answer
    return evaluation


def _without_curves(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation without the curves, which training does not use and which take long to send."""
    return replace(evaluation, results=[])


def _answer() -> None:
    """Read images from standard input, and write their evaluation to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print out of the answer
    answer: Evaluation | BoxwrightError
    try:
        answer = _without_curves(summarize(*pickle.load(sys.stdin.buffer)))  # of our own parent
    except BoxwrightError as error:
        answer = error
    with answers:
        pickle.dump(answer, answers)


if __name__ == "__main__":
    _answer()

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from boxwright.base.errors import CheckpointError
from boxwright.training.background_writer import BackgroundWriter, copied


def test_content_may_change_while_it_is_written_and_errors_come_once(tmp_path: Path) -> None:
    may_write, said, written = threading.Event(), [], []  # type: ignore[var-annotated]

    def save(content: dict[str, Any]) -> Path:
        assert may_write.wait(120)
        written.append(content)
        return tmp_path / "it"

    weights = torch.zeros(3)
    content = {"network": OrderedDict(a=weights, tied=weights), "slots": [{"m": weights[1:]}], "step": 3}
    with BackgroundWriter(said.append) as writer:
        writer.write(save, copied(content), "saved {path}")
        weights += 1
        content["step"] = 4
        writer.poll()
        assert not said
        may_write.set()
        writer.wait()
        assert said == [f"saved {tmp_path / 'it'}"]
        assert written[0]["step"] == 3
        network = written[0]["network"]
        assert network["a"].tolist() == [*written[0]["slots"][0]["m"].tolist(), 0.0] == [0.0] * 3
        assert network["a"].data_ptr() == network["tied"].data_ptr()

        def fail(_: dict[str, Any]) -> Path:
            raise CheckpointError("the disk is full")

        writer.write(fail, content)
        with pytest.raises(CheckpointError, match="full"):
            writer.write(save, content)
        writer.poll()
        writer.wait()
    assert len(written) == 1


def test_it_ends_when_all_is_written(tmp_path: Path) -> None:
    order = []
    may_write = threading.Event()

    def save(_: dict[str, Any]) -> Path:
        assert may_write.wait(120)
        order.append("written")
        return tmp_path

    with pytest.raises(KeyError), BackgroundWriter(order.append) as writer:
        writer.write(save, {}, "said")
        threading.Timer(0.05, may_write.set).start()
        raise KeyError
    assert order == ["written"]


def test_what_a_network_says_of_its_state_besides_tensors_stays() -> None:
    found = []

    def save(content: dict[str, Any]) -> Path:
        found.append(content)
        return Path()

    state = nn.BatchNorm2d(2).state_dict()
    with BackgroundWriter(print) as writer:
        writer.write(save, copied({"network": state}))
    assert found[0]["network"]._metadata == state._metadata  # type: ignore[attr-defined]
    assert found[0]["network"] is not state

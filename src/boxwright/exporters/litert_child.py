"""Convert a `torch.export` program to a .tflite of the same network; run by the interpreter that has litert-torch.

    python litert_child.py PROGRAM.pt2 NETWORK.tflite

It imports nothing of Boxwright: that interpreter has an older PyTorch, and need not have Boxwright.
"""

import sys

import torch


class Network(torch.nn.Module):
    """A program as the module that the converter expects: one that has a mode."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        """Take the program apart."""
        super().__init__()
        self.program = program.module()

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the program returns."""
        found: tuple[torch.Tensor, torch.Tensor] = self.program(images)
        return found


def main(source: str, target: str) -> None:
    """Write the network."""
    import litert_torch

    program = torch.export.load(source)
    network = Network(program)
    network.training = False  # eval() is refused by what is inside
    litert_torch.convert(network, program.example_inputs[0]).export(target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

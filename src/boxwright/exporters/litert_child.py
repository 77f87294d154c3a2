"""Convert a `torch.export` program to a .tflite of the same network; run by the interpreter that has litert-torch.

    python -c TEXT_OF_THIS_FILE PROGRAM.pt2 NETWORK.tflite

It does not import Boxwright: that interpreter has an older PyTorch, and may lack Boxwright.
"""

import sys

import torch


class Network(torch.nn.Module):
    """A program as a module with a mode, which the converter expects."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        """Wrap the program."""
        super().__init__()
        self.program = program.module()

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the program's outputs."""
        outputs: tuple[torch.Tensor, torch.Tensor] = self.program(images)
        return outputs


def main(source: str, target: str) -> None:
    """Convert the network."""
    import litert_torch

    program = torch.export.load(source)
    network = Network(program)
    network.training = False  # the inner module refuses eval()
    litert_torch.convert(network, program.example_inputs[0]).export(target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

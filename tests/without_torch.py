"""The commands in a process that has no PyTorch."""

WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torchvision", "timm"):
            raise ImportError(name + " is not to be imported")
sys.meta_path.insert(0, Refuse())
from boxwright.cli.main import main
main()
"""

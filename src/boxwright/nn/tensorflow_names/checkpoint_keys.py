"""Keys of TF2 checkpoints."""

ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"  # the end of a variable's key


def escaped(name: str) -> str:
    """Return an attribute's name as it stands in a key, where "/" separates names."""
    return name.replace(".", "..").replace("/", ".S")

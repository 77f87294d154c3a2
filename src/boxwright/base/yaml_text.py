"""Reading YAML within limits: a few lines of aliases (`*name`) could stand for gigabytes."""

from __future__ import annotations

import yaml

from boxwright.base.limits import CONFIG_VALUES

# A text counts as a value for each so many characters.
_CHARACTERS = 64


def compose_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> yaml.Node | None:
    """Return the tree of a YAML text, of which an alias's is part wherever it stands; None for an empty text.

    All YAML that others brought is read here.

    Raises:
        yaml.YAMLError: If it is not YAML, an alias contains itself, or there are more values than
            `limits.CONFIG_VALUES`, with those that aliases repeat.
        RecursionError: If it is nested too deeply.
    """
    node = yaml.compose(text, Loader=loader)
    if node is not None:
        _count_values(node, {})
    return node


def load_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> object:
    """Return the plain values of a YAML text; errors as of `compose_yaml`, and ValueError for a date that is none."""
    node = compose_yaml(text, loader)
    return None if node is None else loader("").construct_document(node)


def _count_values(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Return the number of values of a tree; those that an alias repeats count wherever it stands."""
    if id(node) in counts:
        known = counts[id(node)]
        if known is None:
            raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
        return known
    counts[id(node)] = None
    count = 1
    if isinstance(node, yaml.ScalarNode):
        count += len(node.value) // _CHARACTERS
    elif isinstance(node, yaml.SequenceNode):
        count += sum(_count_values(item, counts) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_count_values(part, counts) for pair in node.value for part in pair)
    if problem := CONFIG_VALUES.exceeded(count):
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    counts[id(node)] = count
    return count

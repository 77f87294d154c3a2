"""Count a package's lines of code, docstring and comment, by room.

    python benchmarks/code_size.py [src/boxwright]

Blank lines are not counted; a line with code and a comment counts as both.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def count(text: str) -> Counter[str]:
    """Return the lines of code, docstring and comment in a source."""
    lines = text.splitlines()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code, comments = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in _LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))

    def filled(numbers: set[int]) -> int:
        return sum(1 for number in numbers if lines[number - 1].strip())

    return Counter(code=filled(code - docstrings), docstring=filled(docstrings), comment=comments)


def main() -> None:
    """Print the counts of each room and of the whole package."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src/boxwright")
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(root.rglob("*.py")):
        room = path.relative_to(root).parts[0]
        rooms.setdefault(room, Counter()).update(count(path.read_text()))
    total = sum(rooms.values(), Counter[str]())
    for name, counts in [*rooms.items(), ("total", total)]:
        print(f"{name:20} {counts['code']:7} code {counts['docstring']:7} docstring {counts['comment']:5} comment")
    ratio, density = total["docstring"] / total["code"], 100 * total["comment"] / total["code"]
    print(f"docstring:code {ratio:.2f}, {density:.1f} comments a hundred lines of code")


if __name__ == "__main__":
    main()

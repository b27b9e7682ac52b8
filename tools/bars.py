"""How large the house is, against the bars it keeps: ``python tools/bars.py``; exit status 1 beyond one of them.

lines : physical lines of every Python file under src
longest, median : lines of a function, signature and docstring included; nested functions count for themselves and
    for the one around them
public : functions and classes without a leading underscore at the top level of a file
cycles : groups of files that import each other at run time
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

SRC = Path(__file__).resolve().parent.parent / "src"
#: What CI holds the house to: where it stands now. The goal was 28,000 lines and 600 names, missed by 2,700 and 120.
#: Since then it has grown, in lines and names, by what these needed:
#:   5,200, 85   never confidently wrong: 140 model types by kinds of layer (2,350), quantised checkpoints, memory by
#:               engine version, refusals with reasons, formats' own units, robust fits, bounds and fuzzed input
#:   1,000, 25   the GPU path: fused kernels, graphs with prompts, running out on a GPU, doctor
MOST = {"lines": 36_970, "longest function": 60, "median function": 8, "public names": 835, "cycles": 0}


class Function(NamedTuple):
    """One function: where it stands, and its lines."""

    place: str
    lines: int


def functions(path: Path, tree: ast.Module) -> list[Function]:
    """Every function of a file."""
    return [
        Function(f"{path.relative_to(SRC)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]


def public_names(tree: ast.Module) -> set[str]:
    """Functions and classes that a file defines at its top level for others."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return {name for name in found if not name.startswith("_")}


def imports(name: str, tree: ast.Module, files: dict[str, ast.Module]) -> set[str]:
    """The files that a file imports as it is loaded; what is for type checkers, or inside a function, is not."""
    found: set[str] = set()
    for node in [inner for each in tree.body for inner in _run_at_import(each)]:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {each for each in found if each in files and each != name}


def _run_at_import(node: ast.stmt) -> list[ast.stmt]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return []
    if isinstance(node, ast.If | ast.Try | ast.With):
        return [
            inner for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt) for inner in _run_at_import(each)
        ]
    return [node]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of files that import each other (strongly connected components of more than one, by Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def measured() -> tuple[dict[str, float], list[Function], list[list[str]]]:
    """The figures by the names in `MOST`, the functions with the longest first, and the cycles."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SRC.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    parts = {path: path.relative_to(SRC).with_suffix("").parts for path in trees}
    names = {path: ".".join(part[:-1] if part[-1] == "__init__" else part) for path, part in parts.items()}
    files = {names[path]: tree for path, tree in trees.items()}
    long = sorted((f for path, tree in trees.items() for f in functions(path, tree)), key=lambda f: -f.lines)
    circles = cycles({name: imports(name, tree, files) for name, tree in files.items()})
    figures = {
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        "longest function": long[0].lines,
        "median function": statistics.median(f.lines for f in long),
        "public names": sum(len(public_names(tree)) for tree in trees.values()),
        "cycles": len(circles),
    }
    return figures, long, circles


def main() -> int:
    """Print each figure beside its bar, and what is beyond it."""
    figures, long, circles = measured()
    for name, most in MOST.items():
        print(f"{name:18}{figures[name]:>10,.0f}   at most {most:,}{'' if figures[name] <= most else '   BEYOND'}")
    for function in [each for each in long if each.lines > MOST["longest function"]]:
        print(f"too long: {function.place}: {function.lines} lines")
    for circle in circles:
        print(f"cycle: {', '.join(circle)}")
    return int(any(figures[name] > most for name, most in MOST.items()))


if __name__ == "__main__":
    sys.exit(main())

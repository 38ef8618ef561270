"""The source tree, as the tidy tests look at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "comet": ROOT / "sdk",
    "pyspark_comet": ROOT / "sdk",
    "comet_broker": ROOT / "broker",
    "comet_gateway": ROOT / "gateway",
    "comet_web": ROOT / "web",
    "comet_demo": ROOT / "demo",
    "comet_testing": ROOT / "testing",
    "comet_bench": ROOT / "bench",
}
GENERATED = ROOT / "sdk/comet/v1"
SKIPPED = {".git", ".venv", "build", "dist", "node_modules", "__pycache__"}


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name. `lazy`: inside a function, or only for the type checker."""

    module: str
    lazy: bool
    line: int


@dataclass(frozen=True)
class Source:
    """A Python file of ours. `name` is the module's full name for packages, its path for the rest."""

    path: Path
    name: str

    @property
    def text(self) -> str:
        return self.path.read_text()

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    def within(self, *modules: str) -> bool:
        return any(self.name == module or self.name.startswith(module + ".") for module in modules)


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the packages, without the generated ones."""
    return tuple(
        Source(path, _module_name(path, root))
        for package, root in PACKAGES.items()
        for path in sorted((root / package).rglob("*.py"))
        if GENERATED not in path.parents
    )


@cache
def sources_of_tests() -> tuple[Source, ...]:
    return tuple(Source(path, _module_name(path, ROOT)) for path in sorted((ROOT / "tests").rglob("*.py")))


@cache
def files(pattern: str) -> tuple[Path, ...]:
    """Every file of the checkout with such a name."""
    return tuple(path for path in sorted(ROOT.rglob(pattern)) if not SKIPPED & set(path.relative_to(ROOT).parts))


@cache
def tree(source: Source) -> ast.Module:
    return ast.parse(source.text, str(source))


def imports(source: Source) -> Iterator[Import]:
    yield from _imports(tree(source), lazy=False)


def _imports(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, lazy, child.lineno)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "relative imports are banned"
            for alias in child.names:
                # `from package import module` names a module, `from module import name` does not; taking both for
                # modules is right for every rule here, which all look at prefixes.
                yield Import(f"{child.module}.{alias.name}", lazy, child.lineno)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, lazy=lazy or function or _only_for_types(child))


def _only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

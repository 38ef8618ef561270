"""The form of the code in figures: names, layout, import cycles, size of classes, words. `scripts/form` prints them."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.tidy.tree import GENERATED, PACKAGES, ROOT, Source, files, imports, sources, tree

METHODS_MAX: Final = 25
ATTRIBUTES_MAX: Final = 15
SUBJECT_MAX: Final = 72
# Words and phrases that hide what a sentence is about; see the rules for English in CONTRIBUTING.md.
VAGUE: Final = (
    "nobody", "somebody", "whoever", "whom", "whatever", "anew", "of late", "in vain", "that is meant",
    "has thought of",
)  # fmt: skip
# Names that the trade has a word for; see docs/glossary.md. A dead letter may be one.
HOME_MADE: Final = {
    "asked", "board", "broke", "came", "desk", "hear", "intake", "kept", "knife", "lane", "letter", "letters", "looks",
    "outlet", "place", "places", "said", "seat", "shelf", "standing", "taking", "thin", "told", "unfit",
}  # fmt: skip
PROSE: Final = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")

_CODE_BLOCK: Final = re.compile(r"```.*?```", re.DOTALL)
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
# Documents that show what not to write.
_RULES: Final = ("CONTRIBUTING.md", "docs/glossary.md")


class BigClass(NamedTuple):
    methods: int
    attributes: int


def classes() -> Iterator[tuple[Source, ast.ClassDef]]:
    """Every class at the top of a module."""
    for source in sources():
        for node in tree(source).body:
            if isinstance(node, ast.ClassDef):
                yield source, node


def ambiguous_classes() -> dict[tuple[str, str], list[str]]:
    """(package, class name) -> the modules that have one of that name, where there are several."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, node in classes():
        found[_package(source), node.name].append(source.name)
    return {key: modules for key, modules in found.items() if len(modules) > 1}


def classes_that_share_a_name() -> int:
    """Across all packages."""
    counts = Counter(node.name for _, node in classes())
    return sum(count for count in counts.values() if count > 1)


def loose_modules() -> dict[str, int]:
    """Modules directly in each package."""
    return {
        package: sum(1 for path in (root / package).glob("*.py") if not path.name.startswith("__"))
        for package, root in PACKAGES.items()
    }


def big_classes() -> dict[str, BigClass]:
    """Classes over the limit of methods or of attributes, by name."""
    found = {}
    for source, node in classes():
        methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
        big = BigClass(methods, len(_attributes(node)))
        if big.methods > METHODS_MAX or big.attributes > ATTRIBUTES_MAX:
            found[f"{source.name}.{node.name}"] = big
    return found


def _attributes(node: ast.ClassDef) -> set[str]:
    """What its methods assign to self. The fields of a record, such as a row of settings, are not counted."""
    return {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }


def home_made_names() -> dict[str, list[str]]:
    """Word -> where a class, function, argument, variable or module has it in its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for name, line in (*_names(tree(source)), (source.name.rpartition(".")[2], 1)):
            words = [word.lower() for word in _WORD.findall(name)]
            for before, word in zip(["", *words], words, strict=False):
                if word in HOME_MADE and not (before == "dead" and word.startswith("letter")):
                    found[word].append(f"{source}:{line} {name}")
    return found


def _names(module: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def import_cycles() -> list[list[str]]:
    """Groups of modules that import each other in a circle, lazily or not, the largest first."""
    names = {source.name for source in sources()}
    graph = {source.name: _imported(source, names) for source in sources()}
    return sorted((group for group in _components(graph) if len(group) > 1), key=len, reverse=True)


def _imported(source: Source, names: set[str]) -> set[str]:
    """The modules that it imports. The package that a module lies in is its facade, and no target."""
    found = set()
    for one in imports(source):
        target = one.module
        while target and target not in names:
            target = target.rpartition(".")[0]
        if target and target != source.name and not source.name.startswith(target + "."):
            found.add(target)
    return found


def _components(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Strongly connected components, as Tarjan finds them, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for start, first in graph.items():
        if start in index:
            continue
        index[start] = low[start] = len(index)
        stack.append(start)
        work = [(start, iter(sorted(first)))]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    yield sorted(stack[at:])
                    del stack[at:]


def words(document: str) -> int:
    """Without code blocks."""
    return len(_CODE_BLOCK.sub("", (ROOT / document).read_text()).split())


def vague_words() -> dict[str, list[str]]:
    """Word or phrase -> the files of the packages, the protocol and the documents that have it."""
    found: dict[str, list[str]] = defaultdict(list)
    written = [path for pattern in ("*.py", "*.js", "*.html", "*.css", "*.proto", "*.md") for path in files(pattern)]
    for path in written:
        name = str(path.relative_to(ROOT))
        if name in _RULES or name.startswith("tests/") or GENERATED in path.parents:
            continue
        text = " ".join(path.read_text().lower().split())
        for word in VAGUE:
            if re.search(rf"\b{word}\b", text):
                found[word].append(name)
    return found


def subjects(since: str = "") -> list[str]:
    """Of all commits, or of those since one."""
    revisions = f"{since}..HEAD" if since else "HEAD"
    done = subprocess.run(
        ["git", "log", "--format=%s", revisions], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def report(since: str = "") -> Iterator[str]:
    ambiguous = ambiguous_classes()
    yield f"{sum(1 for _ in classes()):6} classes in {len(sources())} modules"
    yield f"{sum(map(len, ambiguous.values())):6} share a name with another one of their package"
    yield f"{classes_that_share_a_name():6} share a name with another one"
    for name, big in big_classes().items():
        yield f"{big.methods:6} methods, {big.attributes} attributes: {name}"
    for package, count in loose_modules().items():
        yield f"{count:6} modules at the top of {package}"
    for cycle in import_cycles():
        yield f"{len(cycle):6} modules in an import cycle: {_some(cycle)}"
    yield f"{sum(map(len, home_made_names().values())):6} names with a home-made word"
    yield f"{sum(map(len, vague_words().values())):6} files with a vague word"
    for document in PROSE:
        yield f"{words(document):6} words in {document}"
    lengths = [len(subject) for subject in subjects(since)]
    if lengths:
        over = sum(length > SUBJECT_MAX for length in lengths)
        yield f"{len(lengths):6} commits, subjects of {statistics.median(lengths):.0f} characters (median)"
        yield f"{over:6} subjects over {SUBJECT_MAX} characters, the longest of {max(lengths)}"


def _some(names: Iterable[str]) -> str:
    first, *others = names
    return f"{first}, {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}"


def _package(source: Source) -> str:
    return source.name.partition(".")[0]

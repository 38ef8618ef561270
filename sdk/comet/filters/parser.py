r"""The parser of filters: recursive descent with a counted depth, in time linear in the text. Pure.

price > 100 && symbol = "ACME"        @key ^= "EUR" || @header.source = demo
side in (buy, sell)                   @timestamp > -15m && !exists(error)

filter    = all { ( "||" | "or" ) all }
all       = unary { ( "&&" | "and" ) unary }
unary     = [ "!" ] "(" filter ")"  |  [ "!" ] call  |  condition
call      = ( "exists" | "has" ) "(" operand ")"  |  operand "." method "(" quoted ")"
method    = "startsWith" | "endsWith" | "contains"
condition = operand operator literal  |  operand "in" "(" literal { "," literal } ")"  |  "@tombstone"
operand   = path  |  "@key" | "@header." name | "@timestamp" | "@offset" | "@partition" | "@schema" | "@size"
path      = name { "." name | "[" number "]" }        a name in "quotes" may hold anything; $ first is the value
operator  = "=" | "==" | "!=" | ">" | ">=" | "<" | "<=" | "~" | "!~" | "^=" | "$="
literal   = quoted  |  everything up to the end, to && || or the words and, or, or to the ) of the group
quoted    = "text", 'text', with JSON's escapes
"""

from __future__ import annotations

import re
from typing import Final

from comet.errors import InvalidArgument, MalformedFilter
from comet.filters import paths
from comet.filters.nodes import NUMBERS, ROOTS, WORDS, Comparison, JsonField, Literal, Node, Not, Root, joined
from comet.types import AtTime, position

CHARS_MAX: Final = 2_000
NODES_MAX: Final = 64
DEPTH_MAX: Final = 16
LITERALS_MAX: Final = 256

_OPERATOR: Final = re.compile(r"!=|!~|>=|<=|\^=|\$=|==|=|>|<|~")
_IN: Final = re.compile(r"in(?=[\s(\[])", re.IGNORECASE)
_EXISTS: Final = re.compile(r"(?:exists|has)\s*\(")
_ROOT: Final = re.compile(r"@([A-Za-z_]*)")
_ITEM: Final = re.compile(r"[^,()\[\]\"]*")
_AND: Final = re.compile(r"&&|and(?=[\s(]|$)", re.IGNORECASE)
_OR: Final = re.compile(r"\|\||or(?=[\s(]|$)", re.IGNORECASE)
_WORD: Final = re.compile(r"(?:and|or)(?=\s|$)", re.IGNORECASE)
_SHIELDED: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_METHODS: Final = {"startsWith": "^=", "endsWith": "$=", "contains": "~"}
_TEXT_OPERATORS: Final = ("~", "^=", "$=")
_BOOLEANS: Final = ("true", "false")


def parse_node(text: str, *, now_us: int) -> Node:
    """Parses a filter. Raises MalformedFilter."""
    if len(text) > CHARS_MAX:
        raise paths.malformed(f"more than {CHARS_MAX} characters", text, CHARS_MAX)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise paths.malformed("half of a surrogate pair is not a character", text, error.start) from None
    parser = _Parser(text, now_us)
    node = parser.any_of(0)
    if parser.at < len(text):
        raise paths.malformed("unexpected text after the condition", text, parser.at)
    return node


class _Parser:
    """Owned by one call. `at` is the next character; white space before a token is passed by its reader."""

    def __init__(self, text: str, now_us: int) -> None:
        self.text = text
        self.at = 0
        self._now_us = now_us
        self._nodes = 0

    def any_of(self, depth: int) -> Node:
        nodes = [self._all_of(depth)]
        while self._take(_OR):
            nodes.append(self._all_of(depth))
        return joined("or", nodes)

    def _all_of(self, depth: int) -> Node:
        nodes = [self._unary(depth)]
        while self._take(_AND):
            nodes.append(self._unary(depth))
        return joined("and", nodes)

    def _unary(self, depth: int) -> Node:
        self._space()
        self._count()
        match self._next():
            case "!":
                self._deeper(depth)
                self.at += 1
                self._space()
                if self._next() not in ("!", "(") and not self._is_call():
                    raise self._malformed("! stands before a ( or exists(…); for one comparison write != or !~")
                return Not(self._unary(depth + 1))
            case "(":
                self._deeper(depth)
                self.at += 1
                node = self.any_of(depth + 1)
                self._close(")")
                return node
        return self._condition(depth)

    def _is_call(self) -> bool:
        """Whether a call comes next, which is negated without parentheses."""
        if _EXISTS.match(self.text, self.at):
            return True
        before = self.at
        try:
            operand = self._operand()
        except MalformedFilter:
            return False
        finally:
            end, self.at = self.at, before
        if operand == Root("tombstone"):
            return _OPERATOR.match(self.text, paths.space(self.text, end)) is None
        if isinstance(operand, Root):
            return self.text[end : end + 1] == "."
        return self.text[end : end + 1] == "(" and bool(operand.path) and operand.path[-1] in _METHODS

    # ---- one condition

    def _condition(self, depth: int) -> Node:
        exists = _EXISTS.match(self.text, self.at)
        if exists is not None:
            self.at = paths.space(self.text, exists.end())
            begin = self.at
            operand = self._operand()
            self._close(")")
            if isinstance(operand, Root) and operand.name not in ("key", "header"):
                raise self._malformed(f"every record has {operand}", begin)
            return Comparison(operand, "exists")
        begin = self.at
        operand = self._operand()
        method = self._method(operand)
        if method is not None:
            return method
        self._space()
        if _IN.match(self.text, self.at):
            self.at += 2
            self._space()
            literals = tuple(self._typed(literal, "=", operand, begin) for literal in self._list())
            return self._checked(Comparison(operand, "in", literals), begin)
        operator = _OPERATOR.match(self.text, self.at)
        if operator is None:
            if operand == Root("tombstone"):
                return Comparison(operand, "=", (Literal("true", bare=True),))
            raise self._malformed("an operator is missing: = != > >= < <= ~ !~ ^= $= in")
        self.at = operator.end()
        negated = operator[0] in ("!=", "!~")
        sign = "=" if operator[0] in ("==", "!=") else "~" if operator[0] == "!~" else operator[0]
        self._space()
        test = self._checked(Comparison(operand, sign, (self._literal(sign, operand, depth),)), begin)
        return Not(test) if negated else test

    def _operand(self) -> JsonField | Root:
        root = _ROOT.match(self.text, self.at)
        if root is None:
            path, self.at = paths.path_at(self.text, self.at)
            return JsonField(path)
        if root[1] not in ROOTS:
            known = ", ".join(f"@{name}" for name in ROOTS)
            raise self._malformed(f'{known} are known; a field whose name begins with @ is written in "quotes"')
        self.at = root.end()
        if root[1] != "header":
            return Root(root[1])
        if self._next() != ".":
            raise self._malformed("the name of the header is missing: @header.NAME")
        name, self.at = paths.name_at(self.text, self.at + 1)
        return Root("header", name)

    def _method(self, operand: JsonField | Root) -> Node | None:
        """CEL's operand.startsWith("…") and its like."""
        if isinstance(operand, JsonField):
            if self._next() != "(" or len(operand.path) < 2 or operand.path[-1] not in _METHODS:
                return None
            name, operand = str(operand.path[-1]), JsonField(operand.path[:-1])
        else:
            if self._next() != ".":
                return None
            begin = self.at
            name, self.at = paths.name_at(self.text, self.at + 1)
            if self._next() != "(" or name not in _METHODS:
                hint = f'{operand} has no fields; a header with a dot in its name is written @header."a.b"'
                raise self._malformed(hint, begin)
        begin = self.at
        self.at += 1
        self._space()
        if self._next() not in ('"', "'"):
            raise self._malformed(f'{name} takes a text in "quotation marks"')
        literal = self._quoted()
        self._close(")")
        return self._checked(Comparison(operand, _METHODS[name], (literal,)), begin)

    # ---- literals

    def _literal(self, sign: str, operand: JsonField | Root, depth: int) -> Literal:
        begin = self.at
        if self._next() in ('"', "'"):
            literal = self._quoted()
            if self._is_end():
                return self._typed(literal, sign, operand, begin)
            raise self._malformed("unexpected text after the quoted text")
        text = self._bare(depth)
        if not text:
            raise self._malformed('the operand is missing; an empty text is ""', begin)
        if text[0] in "=!<>~":
            raise self._malformed('a second operator; a text that begins with one is written in "quotes"', begin)
        if _WORD.match(text):
            raise self._malformed('a condition is missing after the word; as a text it is written in "quotes"', begin)
        return self._typed(_bare_literal(text), sign, operand, begin)

    def _is_end(self) -> bool:
        """Whether a condition may end here."""
        self._space()
        text, at = self.text, self.at
        return at == len(text) or text[at] == ")" or bool(_AND.match(text, at) or _OR.match(text, at))

    def _bare(self, depth: int) -> str:
        """The text up to the end of the condition. What is in quotation marks inside of it ends nothing."""
        text, begin = self.text, self.at
        at, inner, shields = begin, 0, True
        while at < len(text):
            sign = text[at]
            if sign == '"' and shields:
                shielded = _SHIELDED.match(text, at)
                shields = shielded is not None  # one that does not close is plain, and so are those behind it
                at = at + 1 if shielded is None else shielded.end()
                continue
            if sign.isspace():
                behind = paths.space(text, at)
                if _WORD.match(text, behind) and at > begin:
                    break
                at = max(behind, at + 1)
                continue
            if sign in "&|" and text[at + 1 : at + 2] == sign:
                break
            if sign == "(":
                inner += 1
            elif sign == ")":
                if inner == 0 and depth > 0:
                    break
                inner = max(inner - 1, 0)
            at += 1
        self.at = at
        return text[begin:at].rstrip()

    def _list(self) -> tuple[Literal, ...]:
        """( literal, literal ), or the same in brackets."""
        closing = {"(": ")", "[": "]"}.get(self._next())
        if closing is None:
            raise self._malformed("a ( is missing: in (buy, sell)")
        found: list[Literal] = []
        while True:
            self.at += 1
            self._space()
            if len(found) == LITERALS_MAX:
                raise self._malformed(f"more than {LITERALS_MAX} literals in one list")
            if self._next() in ('"', "'"):
                found.append(self._quoted())
            else:
                item = _ITEM.match(self.text, self.at)
                text = "" if item is None else item[0].rstrip()
                if not text:
                    raise self._malformed('a literal is missing; an empty text is ""')
                self.at += len(text)
                found.append(_bare_literal(text))
            self._space()
            if self._next() == closing:
                self.at += 1
                return tuple(found)
            if self._next() != ",":
                raise self._malformed(f"a comma or the closing {closing} is missing")

    def _quoted(self) -> Literal:
        text, self.at = paths.quoted(self.text, self.at)
        return Literal(text)

    def _typed(self, literal: Literal, sign: str, operand: JsonField | Root, begin: int) -> Literal:
        """The literal as the operator and the operand take it."""
        if operand == Root("timestamp") and literal.number is None:
            try:
                at = position(literal.text, now_us=self._now_us)
            except (InvalidArgument, OverflowError):
                at = None
            if not isinstance(at, AtTime):
                message = (
                    "@timestamp is compared with a time (2026-01-31T12:00:00Z), a time ago (-15m), or microseconds"
                )
                raise self._malformed(message, begin)
            return Literal(str(at.timestamp_us), bare=True)
        texts = sign in _TEXT_OPERATORS or (sign != "=" and literal.number is None)
        return Literal(literal.text) if texts else literal

    def _checked(self, test: Comparison, begin: int) -> Comparison:
        """Raises for a comparison that a root does not have."""
        root = test.operand
        if isinstance(root, JsonField) or root.name in ("key", "header"):
            return test
        if root.name in NUMBERS:
            if test.operator in _TEXT_OPERATORS:
                raise self._malformed(f"{root} is a number: = != > >= < <= and in compare it", begin)
            for literal in test.literals:
                if not isinstance(literal.number, int):
                    raise self._malformed(f"{root} is a whole number, and {literal} is not", begin)
        elif test.operator != "=" or test.literals[0].text not in _BOOLEANS or not test.literals[0].bare:
            raise self._malformed("@tombstone stands alone, or is compared: = true, = false", begin)
        return test

    # ---- characters

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _space(self) -> None:
        self.at = paths.space(self.text, self.at)

    def _take(self, word: re.Pattern[str]) -> bool:
        self._space()
        found = word.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        return True

    def _close(self, sign: str) -> None:
        self._space()
        if self._next() != sign:
            raise self._malformed(f"a {sign} is missing")
        self.at += 1

    def _deeper(self, depth: int) -> None:
        if depth == DEPTH_MAX:
            raise self._malformed(f"more than {DEPTH_MAX} parentheses and negations inside of each other")

    def _count(self) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._malformed(f"more than {NODES_MAX} conditions, parentheses and negations")

    def _malformed(self, message: str, at: int | None = None) -> MalformedFilter:
        return paths.malformed(message, self.text, self.at if at is None else at)


def _bare_literal(text: str) -> Literal:
    return Literal(text, bare=text in WORDS or paths.number_of(text) is not None)

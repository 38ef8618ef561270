// JSON as text: where a mistake is, and where the parts of a list or an object are, so that every digit stays. Strict, and
// without recursion: depth costs no stack.

const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const WORD = /(?:true|false|null)(?![\w$])/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;
const DEPTH_MAX = 500;

class Fault extends Error {
  constructor(message, at) {
    super(message);
    this.at = at;
  }
}

// What is wrong with a text as one JSON value: {message, line, column}, both from 1; null: nothing.
export function faultOf(text) {
  try {
    JSON.parse(text); // fast; its own words differ between browsers
    return null;
  } catch {
    return located(text, () => {
      const { end } = scan(text, 0);
      const rest = space(text, end);
      if (rest < text.length) throw new Fault("there is more after the value", rest);
    });
  }
}

export const faultText = ({ message, line, column }) => `line ${line}, column ${column}: ${message}`;

function located(text, work) {
  try {
    work();
    return { message: "not JSON", ...place(text, 0) };
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    return { message: fault.message, ...place(text, fault.at) };
  }
}

function place(text, at) {
  const before = text.slice(0, at).split("\n");
  return { line: before.length, column: [...before.at(-1)].length + 1 };
}

// The parts of the value at `from`, a list or an object: [{from, end, name}]; `end`: behind the value. A fault is thrown
// with `at`. With `partial` a list that breaks off, or has a mistake, keeps the parts before it, and `fault` says where.
export function partsOf(text, from = 0, { partial = false } = {}) {
  const parts = [];
  try {
    return { parts, end: scan(text, from, parts).end, fault: null };
  } catch (fault) {
    if (!partial || !(fault instanceof Fault)) throw fault;
    return { parts, end: text.length, fault: { message: fault.message, ...place(text, fault.at) } };
  }
}

// Where the value that begins at `from` ends. `parts` gets those of the outermost list or object.
function scan(text, from, parts = null) {
  const stack = []; // of { and [
  let expect = "value"; // or "first" (a value, or the end of an empty list), "name", "first name", "after"
  let at = from;
  let begin = 0; // of the part
  let name;
  for (;;) {
    at = space(text, at);
    const letter = text[at];
    const top = stack.at(-1);
    if (expect === "after") {
      if (stack.length === 1 && parts) parts.push({ from: begin, end: lastEnd(text, at), name });
      if (letter === ",") expect = top === "{" ? "name" : "value";
      else if (letter === (top === "{" ? "}" : "]")) stack.pop();
      else throw new Fault(letter === undefined ? `the text ends, and a ${top === "{" ? "}" : "]"} is missing` : `a comma or ${top === "{" ? "}" : "]"} is missing`, at);
      at += 1;
      if (!stack.length) return { end: at };
      continue;
    }
    if (expect === "first" && letter === "]") {
      stack.pop();
      at += 1;
    } else if (expect === "first name" && letter === "}") {
      stack.pop();
      at += 1;
    } else if (expect === "name" || expect === "first name") {
      if (letter !== '"') throw new Fault(nameFault(letter, expect), at);
      const end = string(text, at);
      if (stack.length === 1) name = JSON.parse(text.slice(at, end));
      at = space(text, end);
      if (text[at] !== ":") throw new Fault("a colon is missing after the name", at);
      at += 1;
      expect = "value";
      if (stack.length === 1) begin = space(text, at);
      continue;
    } else {
      if (stack.length === 1 && top === "[") begin = at;
      if (letter === "{" || letter === "[") {
        if (stack.length >= DEPTH_MAX) throw new Fault(`more than ${DEPTH_MAX} levels`, at);
        stack.push(letter);
        expect = letter === "{" ? "first name" : "first";
        at += 1;
        continue;
      }
      at = scalar(text, at, letter, expect);
    }
    if (!stack.length) return { end: at };
    expect = "after";
  }
}

// The end of the text before `at`, without the spaces behind it.
function lastEnd(text, at) {
  let end = at;
  while (end > 0 && isSpace(text.charCodeAt(end - 1))) end -= 1;
  return end;
}

function scalar(text, at, letter, expect) {
  if (letter === '"') return string(text, at);
  for (const pattern of [NUMBER, WORD]) {
    pattern.lastIndex = at;
    if (pattern.test(text)) return pattern.lastIndex;
  }
  throw new Fault(valueFault(letter, expect), at);
}

function valueFault(letter, expect) {
  if (letter === undefined) return "the text ends, and a value is missing";
  if (letter === "'") return "strings are in double quotes";
  if (letter === "]" || letter === "}") return expect === "value" ? "a value is missing: is there a comma too many?" : `a ${letter} without its beginning`;
  return "a value is missing: strings are in double quotes, other words are true, false and null";
}

function nameFault(letter, expect) {
  if (letter === undefined) return "the text ends, and a } is missing";
  if (letter === "}" && expect === "name") return "a name is missing: is there a comma too many?";
  return "a name in double quotes is missing";
}

function string(text, from) {
  let at = from + 1;
  for (;;) {
    const code = text.charCodeAt(at);
    if (code === 34) return at + 1;
    if (Number.isNaN(code)) throw new Fault("a string has no closing quote", from);
    if (code < 32) throw new Fault(code === 10 ? "a string ends with its line: a closing quote is missing, or \\n for a line break" : "a control character in a string: write it as \\u00..", at);
    if (code === 92) {
      ESCAPE.lastIndex = at;
      if (!ESCAPE.test(text)) throw new Fault("an unknown escape after \\", at);
      at = ESCAPE.lastIndex;
    } else at += 1;
  }
}

const isSpace = (code) => code === 32 || code === 10 || code === 13 || code === 9;

function space(text, from) {
  let at = from;
  while (isSpace(text.charCodeAt(at))) at += 1;
  return at;
}

// The same JSON with a member a line; null: it is not JSON.
export function formatted(text) {
  if (faultOf(text) !== null) return null;
  const at = space(text, 0);
  return laid(text.slice(at, scan(text, at).end), "");
}

function laid(source, indent) {
  const [open, close] = source[0] === "{" ? "{}" : source[0] === "[" ? "[]" : "";
  if (!open) return source;
  const { parts } = partsOf(source);
  if (!parts.length) return open + close;
  const inner = `${indent}  `;
  const shown = parts.map(({ from, end, name }) => `${inner}${name === undefined ? "" : `${JSON.stringify(name)}: `}${laid(source.slice(from, end), inner)}`);
  return `${open}\n${shown.join(",\n")}\n${indent}${close}`;
}

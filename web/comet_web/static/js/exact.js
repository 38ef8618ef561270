// JSON whose numbers keep every digit, if the browser gives their source text.

// A number that loses digits as a double.
export class Exact {
  constructor(source) {
    this.source = source;
  }
}

// The value; undefined if it is not JSON, or too deep for the browser.
export function decode(text) {
  try {
    return JSON.parse(text, (key, value, context) => {
      const other = typeof value === "number" && context?.source !== undefined && String(value) !== context.source;
      return other ? new Exact(context.source) : value;
    });
  } catch {
    return undefined;
  }
}

// JSON whose numbers keep every digit, where the browser tells what they were written as.

// A number that is not the same once it is read.
export class Exact {
  constructor(source) {
    this.source = source;
  }
}

// The value; undefined where it is no JSON, or too deep for the browser.
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

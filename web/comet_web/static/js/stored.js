// Preferences stored in this browser: theme, keys, columns. Nothing secret, and nothing that a page needs.

const prefix = "comet.";

export function stored(name, otherwise = null) {
  try {
    const found = localStorage.getItem(prefix + name);
    return found === null ? otherwise : JSON.parse(found);
  } catch {
    return otherwise;
  }
}

export function store(name, value) {
  try {
    if (value === null) localStorage.removeItem(prefix + name);
    else localStorage.setItem(prefix + name, JSON.stringify(value));
  } catch {
    // Full or forbidden: it lasts as long as the page.
  }
}

// The action that the next page of this tab begins with, chosen in the command palette. Of the tab alone: another page
// cannot set it.
export function wanted(action) {
  try {
    if (action) sessionStorage.setItem(`${prefix}act`, action);
    return sessionStorage.getItem(`${prefix}act`);
  } catch {
    return null;
  }
}

export function done() {
  try {
    sessionStorage.removeItem(`${prefix}act`);
  } catch {
    // Nothing is there.
  }
}

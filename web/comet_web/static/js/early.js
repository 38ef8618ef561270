// Before the first paint: sets the theme and marks that scripts run. Not a module, so that it runs early.
(() => {
  const root = document.documentElement;
  root.dataset.scripts = "";
  try {
    const theme = localStorage.getItem("comet.theme");
    if (theme === '"light"' || theme === '"dark"') root.dataset.theme = JSON.parse(theme);
  } catch {
    // No storage, no choice.
  }
})();

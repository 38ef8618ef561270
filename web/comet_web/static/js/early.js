// Before the first paint: the chosen theme, and that scripts run. The one script that is no module, so that it is early.
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

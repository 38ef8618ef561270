// Before the first paint: sets the theme and marks that scripts run. Not a module, so that it runs early.
(() => {
  const root = document.documentElement;
  root.dataset.scripts = "";
  try {
    const theme = localStorage.getItem("comet.theme");
    // The columns that were chosen for a topic's records, unless the address has its own.
    const [, topic] = location.pathname.match(/\/topics\/([^/]+)\/records$/) ?? [];
    const fields = topic && JSON.parse(localStorage.getItem(`comet.fields.${decodeURIComponent(topic)}`));
    if (fields && !/[?&]fields=/.test(location.search)) {
      location.replace(`${location.pathname}${location.search}${location.search ? "&" : "?"}fields=${encodeURIComponent(fields)}`);
    }
    if (theme === '"light"' || theme === '"dark"') root.dataset.theme = JSON.parse(theme);
  } catch {
    // No storage, no choice.
  }
})();

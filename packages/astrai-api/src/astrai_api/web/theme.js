// Runs before the first paint, so that a chosen theme never flashes. Not a module for that reason.
(() => {
  const KEY = "astrai.theme";
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const current = () => localStorage.getItem(KEY) ?? (system.matches ? "dark" : "light");
  const apply = () => {
    root.dataset.theme = current();
    root.dispatchEvent(new CustomEvent("themechange"));
  };
  system.addEventListener("change", apply);
  apply();
  window.toggleTheme = () => {
    localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
    apply();
  };
})();

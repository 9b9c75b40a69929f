// The button for the dark theme; the system decides until it is used.

function listenToTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const show = () => button.setAttribute("aria-pressed", String(chosen ?? system.matches));
  button.addEventListener("click", () => {
    chosen = !(chosen ?? system.matches);
    document.documentElement.dataset.theme = chosen ? "dark" : "light";
    show();
  });
  system.addEventListener("change", show);
  show();
}

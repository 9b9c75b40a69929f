// The button for the dark theme; the system decides until it is used.

function listenToTheme() {
  const button = byId("theme");
  button.hidden = false;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let dark = null;
  const show = () => button.setAttribute("aria-pressed", String(dark ?? system.matches));
  button.addEventListener("click", () => {
    dark = !(dark ?? system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    show();
  });
  system.addEventListener("change", show);
  show();
}

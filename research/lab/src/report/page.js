"use strict";
const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
const buttons = document.querySelectorAll("button[data-show]");
for (const button of buttons) {
  button.addEventListener("click", () => {
    const show = button.dataset.show;
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    for (const claim of document.querySelectorAll(".claim")) {
      claim.hidden = show !== "all" && claim.dataset.verdict !== show;
    }
    for (const figure of document.querySelectorAll(".paper-section .figure")) {
      const claims = [...figure.querySelectorAll(".claim")];
      figure.hidden = show !== "all" && claims.every((claim) => claim.hidden);
    }
  });
}

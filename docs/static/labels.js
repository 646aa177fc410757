// The theme has two landmarks of one kind; a screen reader tells them apart by these names.
document.addEventListener("DOMContentLoaded", () => {
  for (const [kind, name] of [["sidebar", "All pages"], ["toc", "This page"]]) {
    document.querySelector(`.${kind}-drawer`)?.setAttribute("aria-label", name);
  }
});

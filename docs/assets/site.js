// What the theme lacks for readers who use a keyboard or a screen reader: names, and a stop at what scrolls.

const mend = () => {
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code").forEach((box) => {
    box.tabIndex = 0;
  });
  document.querySelectorAll(".md-code__nav").forEach((buttons, index) => {
    buttons.setAttribute("aria-label", `Code block ${index + 1}`);
  });
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
};

mend();
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });

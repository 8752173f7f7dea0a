// Code and tables that are wider than the page can be scrolled with the keyboard too.
function reachWithKeyboard() {
  for (const box of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

addEventListener("DOMContentLoaded", reachWithKeyboard);
addEventListener("load", reachWithKeyboard);
addEventListener("resize", reachWithKeyboard);

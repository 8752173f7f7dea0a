// Asks for the live part of a page again every few seconds, and not while the tab is hidden or the operator has paused it.
"use strict";
(() => {
  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const seconds = Number(live?.dataset.every || 0);
  if (!live || !seconds) return;
  let asked = Date.now();

  const ask = () => {
    asked = Date.now();
    htmx.trigger(live, "poll");
  };
  // A form that is open in the live part is not replaced while somebody fills it in.
  const isFilledIn = () => live.querySelector("details[open]") !== null;
  const mayAsk = () => !document.hidden && !isFilledIn() && pause?.getAttribute("aria-pressed") !== "true";

  setInterval(() => { if (mayAsk()) ask(); }, seconds * 1000);
  document.addEventListener("visibilitychange", () => {
    if (mayAsk() && Date.now() - asked > seconds * 1000) ask();
  });
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      const paused = pause.getAttribute("aria-pressed") === "true";
      pause.setAttribute("aria-pressed", String(!paused));
    });
  }
})();

// Asks for the live part of a page again every few seconds, and not while the tab is hidden or the operator has paused
// it. Says so if there is no answer. Sends a form once, although its button is pressed again before the answer is there.
"use strict";
(() => {
  const AGAIN_MILLISECONDS = 10_000; // the browser was stopped, or the answer was lost: the button works again
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (Date.now() - Number(form.dataset.sent || 0) < AGAIN_MILLISECONDS) event.preventDefault();
    else form.dataset.sent = String(Date.now());
  });
  addEventListener("pageshow", () => { // also the page as it was left, with the Back button
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  const live = document.getElementById("live");
  const pause = document.getElementById("pause");
  const stale = document.getElementById("stale");
  const seconds = Number(live?.dataset.every || 0);
  if (!live || !seconds) return;
  let asked = Date.now();
  let answered = asked;
  let waits = false;

  const showStale = () => {
    stale.querySelector("time").textContent = new Date(answered).toISOString().slice(11, 19);
    stale.hidden = false;
  };
  const ask = () => {
    if (waits) showStale(); // the last time, too, nobody answered
    asked = Date.now();
    waits = true;
    htmx.trigger(live, "poll");
  };
  live.addEventListener("htmx:after:request", () => {
    answered = Date.now();
    waits = false;
    stale.hidden = true;
  });
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

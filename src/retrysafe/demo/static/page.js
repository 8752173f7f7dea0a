// The page: it clicks, listens to the events, and plays the story.

import { Caption } from "./caption.js";
import { mark, pay, sleep } from "./client.js";
import { Lanes } from "./lanes.js";
import { fillKeyPanel, showSource } from "./panels.js";
import { describe, isRoutine, logLine, Purchase } from "./purchase.js";
import { playScene, SCENES, TITLES } from "./story.js";

const STORES = { postgres: "PostgreSQL", redis: "Redis", sqlite: "SQLite", mysql: "MySQL", mongodb: "MongoDB" };
const at = (id) => document.getElementById(id);
const lanes = new Lanes(at("lanes"));
const still = matchMedia("(prefers-reduced-motion: reduce)");

let clockOffset = 0;
const now = () => Date.now() + clockOffset;
const speed = () => Number(at("speed").value);

let purchase = null;
let keyed = true;
let lastKeyed = null;
let results = {};
let stop = new AbortController();
let playing = false;
let nextScene = 0;
let drawn = false;

// What is shown ------------------------------------------------------------------------------------

const caption = new Caption(at("caption"), speed);
const say = (text) => caption.say(text);

function log(text) {
  const line = document.createElement("li");
  line.textContent = text;
  at("log").prepend(line);
}

function show() {
  drawn = false;
  for (const [name, number] of [["clicks", purchase.clicks], ["charges", purchase.charged]]) {
    at(name).textContent = number;
    at(`${name}-word`).textContent = number === 1 ? name.slice(0, -1) : name;
  }
  at("charges-box").className = `number ${purchase.charged > 1 ? "twice" : purchase.charged ? "once" : ""}`;
  at("key").textContent = purchase.key ?? "none";
  at("with-keys").setAttribute("aria-pressed", String(keyed));
  at("without-keys").setAttribute("aria-pressed", String(!keyed));
  if (still.matches) lanes.draw(purchase, now());
}

function drawFrame() {
  if (!still.matches && (purchase.pending || !drawn)) {
    lanes.draw(purchase, now());
    drawn = !purchase.pending;
  }
  requestAnimationFrame(drawFrame);
}

function showPaid(answer) {
  const paid = answer.status === 201;
  at("pay-state").textContent = paid ? `Paid. Thank you! ${answer.fields.id}` : `Not paid: ${answer.fields.title ?? answer.status}`;
  at("pay-state").classList.toggle("paid", paid);
}

function showResults() {
  at("results").replaceChildren(...SCENES.map((scene) => {
    const row = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = scene.title;
    row.append(head, ...[true, false].map((mode) => {
      const cell = document.createElement("td");
      const charges = results[`${scene.id} ${mode}`];
      cell.textContent = charges ?? "–";
      cell.className = charges === undefined ? "" : charges > 1 ? "twice" : "once";
      return cell;
    }));
    return row;
  }));
}

function showControls() {
  for (const button of document.querySelectorAll("#pay, #pay-cut, #pay-kill, #new-purchase, #with-keys, #without-keys, #step, .scenes button")) {
    if (playing) button.setAttribute("aria-disabled", "true");
    else button.removeAttribute("aria-disabled");
  }
  at("play").textContent = playing ? "Stop" : "Play all";
  at("step").textContent = `Next step: ${nextScene + 1}`;
}

// What the page does -------------------------------------------------------------------------------

function begin(withKey) {
  keyed = withKey;
  purchase = new Purchase(withKey, now());
  at("pay-state").textContent = "Not paid yet.";
  at("pay-state").classList.remove("paid");
  show();
}

async function click({ fault } = {}) {
  const mine = purchase;
  mine.begin(now());
  const tell = (event) => {
    mine.hearPage(event, now());
    hear(event, mine);
  };
  const patience = fault === "cut" ? 500 + 800 / speed() : 20000;
  try {
    const answer = await pay({ order: mine.order, key: mine.key, fault, patience, tell, signal: stop.signal });
    if (mine === purchase) showPaid(answer);
    for (let waits = 0; waits < 100 && !mine.isSettled(); waits += 1) await sleep(20); // the last events are on their way
  } finally {
    mine.finish(now());
    if (mine.keyed && mine.record) lastKeyed = mine.record;
    if (mine === purchase) show();
  }
}

// An event of the page or of the network, for the purchase that is shown.
function hear(event, mine = purchase) {
  if (mine !== purchase) return;
  const text = logLine(event, mine);
  const words = describe(event, mine);
  if (text) log(text);
  if (event.what === "charged" || event.what === "recognised") mark("the provider", event.takes);
  if (words) caption.tell(words, isRoutine(event, mine));
  show();
}

const shop = {
  say, click, begin, speed,
  pause: (ms, why = "between clicks") => sleep(ms, stop.signal, why),
  async finish(id, withKey) {
    const mine = purchase;
    const all = await (await fetch("/provider/charges")).json();
    const charges = all.filter((charge) => charge.order === mine.order).length; // the provider has the last word
    results[`${id} ${withKey}`] = charges;
    at("charges").textContent = charges;
    showResults();
    return charges;
  },
  totals: () => [true, false].map((mode) => {
    const found = SCENES.map((scene) => results[`${scene.id} ${mode}`]).filter((charges) => charges !== undefined);
    return { purchases: found.length, charges: found.reduce((sum, one) => sum + one, 0) };
  }),
  async openKey() {
    if (!lastKeyed) return say("Pay with a key first; then this opens it.");
    const found = await fetch(`/demo/records/${lastKeyed}`);
    if (!found.ok) return say("The store has no such key any more.");
    fillKeyPanel(at("key-panel"), await found.json());
    return say("This is the record of the last key: what the store knows, why, and what the next retry would get.");
  },
};

// Plays these scenes, one after the other, until Stop or Reset.
async function play(numbers) {
  if (playing) return;
  playing = true;
  stop = new AbortController();
  const mine = stop;
  at("key-panel").hidden = true;
  try {
    for (const number of numbers) {
      nextScene = number;
      showControls();
      markScene(number);
      const reading = await playScene(shop, number);
      nextScene = (number + 1) % TITLES.length;
      if (number !== numbers.at(-1)) await shop.pause(reading, "reading");
    }
  } catch (error) {
    if (!mine.signal.aborted) throw error;
  } finally {
    if (mine === stop) {
      playing = false;
      markScene(-1);
      showControls();
    }
  }
}

function markScene(number) {
  document.querySelectorAll(".scenes button").forEach((button, index) => {
    if (index === number) button.setAttribute("aria-current", "step");
    else button.removeAttribute("aria-current");
  });
}

function halt() {
  stop.abort(new DOMException("stopped", "AbortError"));
  stop = new AbortController();
  playing = false;
  caption.clear();
  markScene(-1);
  showControls();
}

function reset() {
  halt();
  results = {};
  nextScene = 0;
  lastKeyed = null;
  at("log").replaceChildren();
  at("key-panel").hidden = true;
  begin(true);
  showResults();
  showControls();
  say("Press “Play all”, or click Pay as often as you like.");
}

// Wiring -------------------------------------------------------------------------------------------

const whenFree = (id, action) => at(id).addEventListener("click", () => { if (!playing) action(); });
const start = (promise) => promise.catch((error) => { if (error?.name !== "AbortError") throw error; });

whenFree("pay", () => start(click()));
whenFree("pay-cut", () => start(click({ fault: "cut" })));
whenFree("pay-kill", () => start(click({ fault: "kill" })));
whenFree("new-purchase", () => { begin(keyed); say("A new purchase. It counts for itself."); });
whenFree("with-keys", () => { begin(true); say("With keys: every retry of a purchase carries the same Idempotency-Key."); });
whenFree("without-keys", () => { begin(false); say("Without keys: the server cannot know a retry from a new payment."); });
whenFree("step", () => start(play([nextScene])));
at("play").addEventListener("click", () => {
  if (playing) return halt();
  reset();
  return start(play(TITLES.map((_, index) => index)));
});
at("reset").addEventListener("click", reset);
at("speed").addEventListener("change", () => {
  fetch("/demo/speed", { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify({ speed: speed() }) });
});

at("scenes").append(...TITLES.map((title, index) => {
  const item = document.createElement("li");
  const button = document.createElement("button");
  const number = document.createElement("b");
  number.textContent = index + 1;
  button.type = "button";
  button.append(number, title);
  button.addEventListener("click", () => start(play([index])));
  item.append(button);
  return item;
}));

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("select, input:not([type=checkbox]), textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !at("shortcuts").checked) return;
  if (/^[1-5]$/.test(event.key)) start(play([Number(event.key) - 1]));
});

const events = new EventSource("/demo/events");
events.addEventListener("message", (message) => {
  const event = JSON.parse(message.data);
  if (event.what === "hello") clockOffset = event.at - Date.now();
  else if (event.what === "shop.listening") at("pid").textContent = event.pid;
  if (purchase.hear(event)) hear(event);
});
events.addEventListener("error", () => { if (!playing) say("The demo does not answer. Is it still running?"); });
new ResizeObserver(() => { drawn = false; if (still.matches) lanes.draw(purchase, now()); }).observe(at("lanes"));

fetch("/demo/status").then((answer) => answer.json()).then((status) => {
  at("store").textContent = STORES[status.store] ?? status.store;
  at("pid").textContent = status.shop;
});
start(showSource(at("source"), at("source-lines")));
at("speed").dispatchEvent(new Event("change"));
reset();
drawFrame();

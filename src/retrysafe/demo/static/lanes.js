// Draws one purchase as three lanes: browser, server, provider. Time runs to the right. Only presentation attributes and
// classes: the page's Content-Security-Policy allows no inline style.

const SVG = "http://www.w3.org/2000/svg";
const LEAST_MS = 4000; // so much time is shown at least
const SLANT = 5; // an arrow leans this much: a message needs a moment
const GUTTER = 70; // for the names of the lanes
const TOP = 12; // a label needs so much room above its baseline,
const BOTTOM = 5; // and so much below
const HALO = 2; // the paper-coloured edge around a label

const make = (name, attributes, text) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

// How wide a label is in the page's own font: measured once for each text, as fonts differ from machine to machine.
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();
const measure = (text) => {
  if (!widths.has(text)) {
    pen.font = `700 13px ${getComputedStyle(document.body).fontFamily}`;
    widths.set(text, pen.measureText(text).width);
  }
  return widths.get(text);
};

export class Lanes {
  constructor(svg) { this.svg = svg; }

  draw(purchase, now) {
    const { width, height } = this.svg.getBoundingClientRect();
    if (!width) return;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.shapes = [];
    this.labels = [];
    this.width = width;
    this.height = height;
    this.y = { browser: height * 0.2, server: height * 0.53, provider: height * 0.82 };
    const start = purchase?.started ?? now;
    const end = purchase?.ended ?? now;
    const span = Math.max(LEAST_MS, (end - start) * 1.06);
    this.x = (at) => GUTTER + 8 + ((at - start) / span) * (width - GUTTER - 36);
    for (const [name, y] of Object.entries(this.y)) {
      this.add("line", { class: "lane", x1: GUTTER, x2: width - 8, y1: y, y2: y });
      this.add("text", { class: "name", x: 4, y: y + 5 }, name);
    }
    if (purchase) this.drawPurchase(purchase, end);
    this.svg.replaceChildren(...this.shapes, ...this.labels.map((one) => one.text));
    this.svg.setAttribute("aria-label", summarize(purchase));
  }

  drawPurchase(purchase, end) {
    for (const gap of purchase.downs) this.drawDown(gap, end);
    for (const run of purchase.runs) this.drawRun(run, end);
    for (const request of purchase.requests.values()) this.drawRequest(request);
    for (const charge of purchase.charges) this.drawCharge(charge, end, purchase);
  }

  drawDown(gap, end) {
    const y = this.y.server, from = this.x(gap.from), to = this.x(gap.to ?? end);
    this.add("rect", { class: "down", x: from, y: y - 11, width: Math.max(2, to - from), height: 22, rx: 3 });
    this.label(from, y - 15, `killed (SIGKILL)`, "bad", "server");
    if (gap.to) this.label(to, y - 15, "up again", "", "server");
  }

  drawRun(run, end) {
    const y = this.y.server, from = this.x(run.from), to = this.x(run.to ?? end);
    this.add("rect", { class: run.dead ? "run dead" : "run", x: from, y: y - 8, width: Math.max(3, to - from), height: 16, rx: 3 });
    if (run.heldUntil !== undefined) {
      const until = this.x(run.heldUntil ?? end);
      this.add("line", { class: "held", x1: to, x2: until, y1: y + 14, y2: y + 14 });
      this.label(to + 6, y + 31, "key held until its lease lapses", "busy", "held");
    }
    if (run.resumed) this.label(from, y - 15, "resumes", "good", "server");
  }

  drawRequest(request) {
    const x = this.x(request.at), { browser, server } = this.y;
    this.arrow(x, browser, x + SLANT, server - 9, "");
    this.add("circle", { class: request.again ? "again" : "click", cx: x, cy: browser, r: 5 });
    if (request.lostAt) {
      const at = this.x(request.lostAt), middle = (browser + server) / 2;
      this.add("line", { class: "arrow bad", x1: at, y1: server - 9, x2: at + SLANT, y2: middle });
      this.cross(at + SLANT, middle);
      this.label(at + SLANT + 10, middle + 4, "answer lost", "bad", "network");
    } else if (request.brokenAt) {
      const at = this.x(request.brokenAt), middle = (browser + server) / 2;
      this.cross(at + SLANT, middle);
    } else if (request.answeredAt) {
      const kind = request.status === 409 ? "busy" : request.replayed ? "replay" : request.status < 300 ? "good" : "bad";
      const at = Math.max(this.x(request.answeredAt), x + SLANT + 3);
      this.arrow(at, server - 9, at + SLANT, browser + 6, kind);
      const text = request.status === 409 ? "409" : request.replayed ? "replay" : String(request.status);
      this.label(at + SLANT - 6, browser - 10, text, kind, "browser");
    }
  }

  drawCharge(charge, end, purchase) {
    const x = this.x(charge.at), { server, provider } = this.y, to = this.x(charge.answeredAt ?? end);
    this.arrow(x - SLANT, server + 9, x, provider - 11, "");
    this.add("rect", { class: "working", x, y: provider - 5, width: Math.max(0, to - x), height: 10 });
    if (charge.answeredAt && !charge.unheard) this.arrow(to, provider - 6, to + SLANT, server + 9, "");
    if (charge.unheard) this.cross(x + 14, (server + provider) / 2 + 6);
    const more = charge.isNew && purchase.charges.filter((one) => one.isNew).indexOf(charge) > 0;
    const kind = charge.isNew ? (more ? "more" : "") : "known";
    this.add("circle", { class: `coin ${kind}`, cx: x, cy: provider, r: 10 });
    this.add("text", { class: `coin-text ${kind}`, x, y: provider + 4 }, charge.isNew ? "$" : "=");
    const text = charge.isNew ? (more ? "charged again" : "charged") : "same key: no new charge";
    this.label(x - 10, provider + 26, text, charge.isNew ? (more ? "bad" : "good") : "replay", "provider", 15);
  }

  // Shapes -----------------------------------------------------------------------------------------

  add(name, attributes, text) { this.shapes.push(make(name, attributes, text)); }

  arrow(x1, y1, x2, y2, kind) {
    this.add("line", { class: `arrow ${kind}`, x1, y1, x2, y2 });
    const tip = y2 > y1 ? -7 : 7;
    this.add("path", { class: `head ${kind}`, d: `M${x2},${y2} l-4,${tip} h8 z` });
  }

  cross(x, y) {
    this.add("path", { class: "cross", d: `M${x - 5},${y - 5} l10,10 M${x - 5},${y + 5} l10,-10` });
  }

  // A label that would cover another one of its lane goes one row further, or is left out if four rows are full.
  label(x, y, text, kind, lane, step = -15) {
    const wide = measure(text) + 2 * HALO;
    const left = Math.max(GUTTER, Math.min(x, this.width - wide));
    for (const row of [0, 1, 2, 3]) {
      const place = { left, right: left + wide, y: y + row * step, lane };
      if (place.y < TOP || place.y > this.height - BOTTOM) return;
      if (this.labels.some((one) => one.lane === lane && one.y === place.y && one.left < place.right && place.left < one.right)) continue;
      place.text = make("text", { class: kind, x: left, y: place.y }, text);
      this.labels.push(place);
      return;
    }
  }
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// The picture in words.
export function summarize(purchase) {
  if (!purchase || !purchase.requests.size) return "Nothing has happened yet.";
  const requests = [...purchase.requests.values()];
  const parts = [count(requests.length, "request") + " from the browser", count(purchase.runs.length, "execution") + " on the server",
    count(purchase.charges.filter((charge) => charge.isNew).length, "charge") + " at the provider"];
  if (purchase.downs.length) parts.push(`the server was killed ${count(purchase.downs.length, "time")}`);
  return parts.join(", ") + ".";
}

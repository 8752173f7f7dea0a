// One purchase: its numbers, and what happened to it, from the page's own tries and from the events of the network.

export class Purchase {
  constructor(keyed, now) {
    const digits = crypto.getRandomValues(new Uint32Array(2));
    this.order = `order-${digits[0].toString(16)}`;
    this.key = keyed ? `${this.order}-${digits[1].toString(16)}` : null;
    this.keyed = keyed;
    this.started = now;
    this.ended = null; // nothing is under way since then
    this.clicks = 0;
    this.pending = 0;
    this.requests = new Map();
    this.runs = []; // executions on the server
    this.downs = []; // times at which the server did not run
    this.charges = []; // what the provider was asked for: new charges, and keys that it knew
    this.record = null;
  }

  get charged() { return this.charges.filter((charge) => charge.isNew).length; }

  begin(now) {
    if (!this.requests.size) this.started = now;
    this.clicks += 1;
    this.pending += 1;
    this.ended = null;
  }

  finish(now) {
    this.pending -= 1;
    if (!this.pending) this.ended = now;
  }

  // A try of the page itself.
  hearPage(event, now) {
    if (event.what === "click" || event.what === "again") this.requests.set(event.request, { at: now, again: event.what === "again" });
  }

  // An event of the network, the server or the supervisor. True if it belongs to this purchase.
  hear(event) {
    if (event.what === "shop.listening") return this.hearUp(event);
    const mine = event.order === this.order || this.requests.has(event.request) || (event.record && event.record === this.record)
      || this.charges.some((charge) => event.charge && charge.id === event.charge);
    if (!mine) return false;
    if (!this.pending) return AFTERWARDS.has(event.what);
    HANDLERS[event.what]?.(this, event, this.requests.get(event.request));
    return true;
  }

  hearUp(event) {
    const open = this.downs.filter((gap) => !gap.to);
    for (const gap of open) gap.to = event.at;
    return open.length > 0;
  }

  isSettled() {
    return [...this.requests.values()].every((request) => request.answeredAt || request.lostAt || request.brokenAt);
  }
}

// A webhook may arrive after the answer. It is logged, and the picture stays.
const AFTERWARDS = new Set(["webhook", "parcel"]);

const HANDLERS = {
  "shop.new": (purchase, event) => {
    const dead = purchase.runs.find((run) => run.dead && run.record === event.record);
    if (dead) dead.heldUntil = event.at;
    purchase.runs.push({ from: event.at, record: event.record, resumed: Boolean(dead) });
    if (purchase.keyed) purchase.record = event.record;
  },
  "shop.completed": (purchase, event) => {
    for (const run of purchase.runs) if (run.record === event.record && !run.to) run.to = event.at;
  },
  "shop.killed": (purchase, event) => {
    purchase.downs.push({ from: event.at });
    for (const run of purchase.runs) {
      if (!run.to) Object.assign(run, { to: event.at, dead: true }, purchase.keyed ? { heldUntil: null } : {});
    }
    const charge = purchase.charges.at(-1);
    if (charge) charge.unheard = true;
  },
  answered: (purchase, event, request) => {
    if (request) Object.assign(request, { answeredAt: event.at, status: event.status, replayed: event.replayed });
  },
  lost: (purchase, event, request) => { if (request) request.lostAt = event.at; },
  broken: (purchase, event, request) => { if (request) request.brokenAt = event.at; },
  charged: (purchase, event) => { purchase.charges.push({ id: event.charge, at: event.at, isNew: true }); },
  recognised: (purchase, event) => { purchase.charges.push({ id: event.charge, at: event.at, isNew: false }); },
  charge_answered: (purchase, event) => {
    for (const charge of purchase.charges) if (charge.id === event.charge && !charge.answeredAt) charge.answeredAt = event.at;
  },
};

// What an event means, in words. Null: it needs none.
export function describe(event, purchase) {
  const { keyed } = purchase;
  switch (event.what) {
    case "shop.new":
      if (purchase.runs.at(-1)?.resumed) return "The lease has lapsed. The retry resumes the payment: it sends the charge again, with the same key for the provider.";
      if (purchase.runs.length > 1) return "Another request without a key: for the server it is another payment.";
      return keyed ? "The server claims the key and asks the provider to charge the card." : "The server asks the provider to charge the card.";
    case "answered":
      if (event.status === 409 && purchase.downs.length) return "The key is still held for the dead process. The page asks again until its lease of 7 seconds lapses.";
      if (event.status === 409) return "A payment with this key is running: the server answers 409, and the page asks again.";
      if (event.replayed) return "The payment is done: the server replays the stored answer. Nothing runs.";
      return null;
    case "charged":
      return purchase.charged > 1 ? "The provider charges the card again." : null;
    case "recognised": return "The provider knows this key. It answers with the first charge, and charges nothing.";
    case "lost": return "The card is charged, and the payment is stored. The answer is lost on its way back.";
    case "silence": return `No answer came. The page sends the payment again, ${keyed ? "with the same key" : "without a key"}.`;
    case "shop.killed": return `The provider has charged the card. The server is killed (SIGKILL, process ${event.pid}) before it gets the answer.`;
    case "shop.listening": return `The supervisor has started the server again (process ${event.pid}). The page asks again.`;
    default: return null;
  }
}

// A payment that begins is no news beside what goes wrong.
export const isRoutine = (event, purchase) => event.what === "shop.new" && !purchase.runs.at(-1)?.resumed;

const LOGGED = {
  click: () => "browser: click, sends the payment",
  again: () => "browser: sends the payment again",
  silence: () => "browser: no answer, gives up waiting",
  lost: () => "network: the answer is lost on its way back",
  broken: () => "network: the server does not answer (502)",
  answered: (event) => `server: answers ${event.status}${event.replayed ? ", a replay of the first answer" : event.status === 409 ? ", a payment with this key is running" : ""}`,
  "shop.new": (event, purchase) => (purchase.runs.at(-1)?.resumed ? "server: takes over the key and resumes the payment" : "server: begins a payment"),
  "shop.completed": () => "server: stores the answer",
  "shop.killed": (event) => `supervisor: kills the server (SIGKILL, process ${event.pid})`,
  "shop.listening": (event) => `supervisor: the server is up again (process ${event.pid})`,
  charged: () => "provider: charges $100.00",
  recognised: () => "provider: knows this key, charges nothing",
  receipt: () => "provider: mails the receipt",
  webhook: (event) => `provider: reports the charge by webhook, the server answers ${event.status}`,
  parcel: () => "warehouse: ships the parcel",
};

export const logLine = (event, purchase) => LOGGED[event.what]?.(event, purchase) ?? null;

// What a checkout page does: send the payment, and send it again when no answer comes. Nothing here knows of the story.

const LATER_MS = 20000; // how long a later try waits
const PAUSE_MS = 500; // before the second try, when the server does not say how long to wait
const LONGEST_PAUSE_MS = 1000; // each further pause is twice as long, up to this

// Every wait is marked with its reason, for the browser's performance panel: what a story waits for on purpose can be
// told from what the machine takes.
const mark = (why, ms, start = performance.now()) => performance.measure(`wait: ${why}`, { start, duration: ms });

const sleep = (ms, signal, why = "events") =>
  new Promise((resolve, reject) => {
    mark(why, ms);
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });

// Pays, and retries until there is a final answer. `patience`: milliseconds that the first try waits for one.
// `tell(event)` hears of each try. `signal` ends it.
export async function pay({ order, key, fault, patience, tell, signal }) {
  for (let attempt = 1; ; attempt += 1) {
    const request = `${order}-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`;
    tell({ what: attempt === 1 ? "click" : "again", request });
    const headers = { "content-type": "application/json", "x-demo-request": request };
    if (key) headers["idempotency-key"] = key;
    if (fault && attempt === 1) headers["x-demo-fault"] = fault;
    let pause = Math.min(PAUSE_MS * 2 ** (attempt - 1), LONGEST_PAUSE_MS);
    let why = "the server does not answer";
    const longest = attempt === 1 ? patience : LATER_MS;
    const sent = performance.now();
    try {
      const impatient = AbortSignal.any([signal, AbortSignal.timeout(longest)]);
      const body = JSON.stringify({ amount: 10000, currency: "usd", order });
      const answer = await fetch("/payments", { method: "POST", headers, body, signal: impatient });
      const fields = await answer.json();
      const replayed = answer.headers.get("idempotent-replayed") === "true";
      tell({ what: "answer", request, status: answer.status, replayed, fields });
      if (answer.status < 500 && answer.status !== 409) return { status: answer.status, replayed, fields };
      if (answer.headers.has("retry-after")) {
        pause = 1000 * Number(answer.headers.get("retry-after"));
        why = "Retry-After";
      }
    } catch (error) {
      if (signal.aborted) throw signal.reason;
      if (error.name === "TimeoutError") mark("patience", longest, sent);
      tell({ what: "silence", request });
      why = "after silence";
    }
    await sleep(pause, signal, why);
  }
}

export { mark, sleep };

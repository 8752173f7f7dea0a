// The key as the store has it, and the source of the server.

const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};

export function fillKeyPanel(panel, record) {
  const rows = [
    ["key", record.key], ["state", `${record.state}, after ${record.attempt === 1 ? "one attempt" : `${record.attempt} attempts`}`],
    ["why", record.because], ["the next retry gets", record.next_retry], ["by itself", record.by_itself],
    ["steps", record.steps.map((step) => `${step.step}: ${step.state}`).join(", ") || "–"],
    ["first claimed", record.created], ["completed", record.completed || "–"],
    ["stored answer", record.answer ? `${record.answer.status} ${record.answer.body}` : "–"],
    ["record", record.id],
  ];
  const list = element("dl");
  for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
  const link = element("a", "Open this key in the console");
  link.href = record.console;
  panel.replaceChildren(element("h2", "This key, as the store has it"), list, link);
  panel.hidden = false;
  panel.focus();
  panel.scrollIntoView({ block: "nearest" });
}

const OURS = /retrysafe|\bsafe\b|\bWorker\b|worker\.|idempotent|checkout|respond\(|Answer\(|protected|-> Answer|webhooks|from_provider|derive\(/;

export async function showSource(pre, summary) {
  const text = (await (await fetch("/demo/shop.py")).text()).trimEnd();
  const lines = text.split("\n");
  pre.replaceChildren(...lines.map((line) => element("span", line, OURS.test(line) ? "ours" : "")));
  summary.textContent = `${lines.length} lines`;
}

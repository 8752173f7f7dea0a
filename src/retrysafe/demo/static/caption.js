// The sentence below the lanes. Events come faster than anybody reads, so a sentence of an event waits until the one
// before it was there for a second. The first and the last sentence of a scene do not wait.

const LEAST_SHOWN_MS = 1000;
const MOST_WAITING = 3; // what is older is left out: it would be told long after it happened

export class Caption {
  constructor(element, speed) {
    this.element = element;
    this.speed = speed;
    this.waiting = [];
    this.timer = 0;
  }

  // At once.
  say(text) {
    this.clear();
    this.show(text);
  }

  // When the sentence before it could be read. One that is `routine` is left out if it would have to wait.
  tell(text, routine) {
    if (routine && this.timer) return;
    if (text === this.element.textContent || this.waiting.includes(text)) return;
    this.waiting.push(text);
    if (this.waiting.length > MOST_WAITING) this.waiting.shift();
    if (!this.timer) this.showNext();
  }

  clear() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.waiting = [];
  }

  show(text) {
    if (this.element.textContent !== text) this.element.textContent = text;
    this.timer = setTimeout(() => this.showNext(), LEAST_SHOWN_MS / this.speed());
  }

  showNext() {
    this.timer = 0;
    if (this.waiting.length) this.show(this.waiting.shift());
  }
}

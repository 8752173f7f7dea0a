// The five scenes. Each plays on real processes and returns when everything it started has an answer.

const CLICKS = 5;
const CLICK_MS = 130;
const LEAST_READING_MS = 1000;
const MOST_READING_MS = 2600;

const times = (number) => (number === 1 ? "once" : number === 2 ? "twice" : `${number} times`);

export const SCENES = [
  {
    id: "clicks", title: "Five clicks", lasts: { keyed: 4000, bare: 2300 },
    async play(shop, keyed) {
      shop.say(keyed ? "An impatient customer clicks Pay five times." : "Five clicks again, now without a key.");
      const all = [];
      for (let number = 0; number < CLICKS; number += 1) {
        all.push(shop.click());
        await shop.pause(CLICK_MS);
      }
      await Promise.all(all);
    },
    end: (charges) => charges === 1
      ? "Five clicks, one charge. The other four asked again, and got the first answer, byte for byte."
      : `Five clicks, ${charges} charges. For the server they were ${charges} purchases.`,
  },
  {
    id: "network", title: "Cut the network", lasts: { keyed: 4000, bare: 3500 },
    async play(shop, keyed) {
      shop.say(keyed ? "One click. The server will charge the card, and its answer will be lost." : "One click without a key, and the answer is lost again.");
      await shop.click({ fault: "cut" });
    },
    end: (charges) => charges === 1
      ? "The page sent the same key again, and got the stored answer. One charge."
      : `The page sent the payment again. For the server it was another one: ${charges} charges.`,
  },
  {
    id: "kill", title: "Kill the server", lasts: { keyed: 10200, bare: 4000 },
    async play(shop, keyed) {
      shop.say(keyed ? "One click. The server will be killed in the middle of the charge." : "One click without a key, and the server is killed again.");
      await shop.click({ fault: "kill" });
    },
    end: (charges) => charges === 1
      ? "The server died in the middle of the charge. The retry resumed the payment, with the same key at the provider. One charge."
      : `The server died in the middle of the charge. The retry was a new payment: the customer paid ${times(charges)}.`,
  },
];

export const TITLES = [...SCENES.map((scene) => scene.title), "The same without keys", "Open this key"];

// `shop` is the page: say, click, pause, speed, begin, finish, totals, openKey.
// Returns for how many milliseconds the last sentence should stay, if something follows.
export async function playScene(shop, number) {
  if (number < SCENES.length) return playOne(shop, SCENES[number], true);
  if (number > SCENES.length) return shop.openKey();
  let reading = 0;
  for (const scene of SCENES) {
    if (reading) await shop.pause(reading, "reading");
    reading = await playOne(shop, scene, false);
  }
  const [kept, lost] = shop.totals();
  const all = SCENES.length;
  if (kept.purchases === all) {
    shop.say(`${all} purchases with keys: ${kept.charges} charges. The same ${all} without keys: ${lost.charges} charges.`);
  }
  return reading;
}

async function playOne(shop, scene, keyed) {
  const began = performance.now();
  shop.begin(keyed);
  await scene.play(shop, keyed);
  const charges = await shop.finish(scene.id, keyed);
  shop.say(scene.end(charges));
  return computeReading(keyed ? scene.lasts.keyed : scene.lasts.bare, performance.now() - began, shop.speed());
}

// How long the last sentence of a scene stays. `lasts`: what the scene takes together with it, at normal speed. What the
// machine takes longer for the scene comes off the reading.
function computeReading(lasts, took, speed) {
  return Math.min(Math.max(LEAST_READING_MS / speed, lasts / speed - took), MOST_READING_MS / speed);
}

// The five scenes. Each plays on real processes and returns when everything it started has an answer.

const CLICKS = 5;
const CLICK_MS = 130;

const times = (number) => (number === 1 ? "once" : number === 2 ? "twice" : `${number} times`);

export const SCENES = [
  {
    id: "clicks", title: "Five clicks",
    async play(shop, keyed) {
      shop.say(keyed ? "An impatient customer clicks Pay five times." : "Five clicks again, now without a key.");
      const all = [];
      for (let number = 0; number < CLICKS; number += 1) {
        all.push(shop.click());
        await shop.pause(CLICK_MS, true);
      }
      await Promise.all(all);
    },
    end: (charges) => charges === 1
      ? "Five clicks, one charge. The other four got 409 while the first was running, asked again, and received the first answer, byte for byte."
      : `Five clicks, ${charges} charges. Nothing told the server that the five requests were one purchase.`,
  },
  {
    id: "network", title: "Cut the network",
    async play(shop, keyed) {
      shop.say(keyed ? "One click. The server will charge the card, and its answer will be lost." : "One click without a key, and the answer is lost again.");
      await shop.click({ fault: "cut" });
    },
    end: (charges) => charges === 1
      ? "The page heard nothing and sent the same key again. The server replayed the stored answer. One charge."
      : `The page heard nothing and sent the payment again. The server could not know that it was the same one: ${charges} charges.`,
  },
  {
    id: "kill", title: "Kill the server",
    async play(shop, keyed) {
      shop.say(keyed ? "One click. The server will be killed in the middle of the charge." : "One click without a key, and the server is killed again.");
      await shop.click({ fault: "kill" });
    },
    end: (charges) => charges === 1
      ? "The server died after the card was charged, and before it knew. The retry resumed the payment with the same key at the provider. One charge."
      : `The server died after the card was charged. The retry was a new payment: the customer paid ${times(charges)}.`,
  },
];

export const TITLES = [...SCENES.map((scene) => scene.title), "The same without keys", "Open this key"];

// `shop` is the page: say, click, pause, begin, finish, openKey.
export async function playScene(shop, number) {
  if (number < SCENES.length) {
    await playOne(shop, SCENES[number], true);
  } else if (number === SCENES.length) {
    for (const scene of SCENES) {
      await playOne(shop, scene, false);
      if (scene !== SCENES.at(-1)) await shop.pause(1800);
    }
    const [kept, lost] = shop.totals();
    if (kept.purchases === SCENES.length) {
      shop.say(`${SCENES.length} purchases with keys: ${kept.charges} charges. The same ${SCENES.length} without keys: ${lost.charges} charges.`);
    }
  } else {
    await shop.openKey();
  }
}

async function playOne(shop, scene, keyed) {
  shop.begin(keyed);
  await scene.play(shop, keyed);
  const charges = await shop.finish(scene.id, keyed);
  shop.say(scene.end(charges));
}

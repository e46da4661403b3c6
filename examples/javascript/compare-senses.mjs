// Which occurrences of "bank" are alike? Run it where the package is installed: node compare-senses.mjs

import { Elmo, NeighborIndex, tokenize } from "elmokit";

const texts = [
  "The bank raised its interest rate last week.",
  "She opened an account at the bank near the station.",
  "They sat on the bank of the river and watched the boats.",
  "The river broke its bank after three days of rain.",
];
const elmo = await Elmo.load(); // the small English model inside the package
const index = new NeighborIndex(elmo, texts.map(tokenize));

const query = tokenize("A heron stood on the muddy bank and waited for fish.");
const position = query.indexOf("bank");
const { layers } = index.neighbors(query, position, { n: 2, among: "same" });
for (const [layer, occurrences] of Object.entries(layers)) {
  for (const { similarity, words } of occurrences) console.log(`layer ${layer}  ${similarity.toFixed(2)}  ${words.join(" ")}`);
}

const [{ tokens, nats }] = elmo.surprisal([query]);
const [forward] = nats; // -ln p(token | all tokens before it)
console.log("surprisal", tokens.slice(1).map((token, at) => `${token} ${forward[at + 1].toFixed(1)}`).join(", "));
console.log("expected", elmo.substitutes(query, position, { n: 5 }).map(({ word }) => word).join(", "));

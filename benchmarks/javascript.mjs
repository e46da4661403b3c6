// The speed of the npm package in Node: medians of processor time, which a busy machine hardly changes.
//
//   node benchmarks/javascript.mjs [MODEL]

import { fileURLToPath } from "node:url";

import { Elmo } from "../packages/js/src/index.js";

const model = process.argv[2] ?? fileURLToPath(new URL("../elmokit/models/en-mini", import.meta.url));
const SENTENCE = "In the old house by the river , nobody had lived for many years , and its windows were broken .".split(" ");
const N_TIMES = 21;

function processorMilliseconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

for (const precision of ["int8", "float32"]) {
  const start = processorMilliseconds();
  const elmo = await Elmo.load(model, { precision });
  const rows = { "open the model": processorMilliseconds() - start };
  const parts = {
    [`vectors of ${SENTENCE.length} tokens`]: () => elmo.embed([SENTENCE]),
    "and their surprisal": () => elmo.surprisal([SENTENCE]),
    "and 8 expected words for each": () => elmo.surprisal([SENTENCE], { nExpected: 8 }),
    "vectors of 10 tokens": () => elmo.embed([SENTENCE.slice(-10)]),
    "and their surprisal ": () => elmo.surprisal([SENTENCE.slice(-10)]),
    "and 8 expected words for each ": () => elmo.surprisal([SENTENCE.slice(-10)], { nExpected: 8 }),
  };
  for (const [name, compute] of Object.entries(parts)) {
    const times = Array.from({ length: N_TIMES }, () => {
      const before = processorMilliseconds();
      compute();
      return processorMilliseconds() - before;
    });
    rows[name] = median(times);
  }
  const memory = process.memoryUsage().rss / 2 ** 20;
  console.log(`${precision}: ${Object.entries(rows).map(([name, time]) => `${name.trim()} ${time.toFixed(1)} ms`).join(", ")}; ${memory.toFixed(0)} MiB`);
}

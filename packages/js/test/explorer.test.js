// What takes the place of the explorer's server in the documentation site.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

test("a question after the worker has failed is answered with the failure", async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), "elmokit-")); // as the site has them, next to each other
  t.after(() => rmSync(folder, { recursive: true }));
  for (const file of ["../explorer/server.js", "../../../elmokit/serve/page/questions.js"]) {
    cpSync(fileURLToPath(new URL(file, import.meta.url)), path.join(folder, path.basename(file)));
  }
  writeFileSync(path.join(folder, "package.json"), '{"type": "module"}');
  let worker;
  globalThis.Worker = class extends EventTarget {
    constructor() {
      super();
      worker = this;
    }
    postMessage() {} // and no answer
  };
  globalThis.navigator ??= {}; // Node 20 has none
  const { ask } = await import(pathToFileURL(path.join(folder, "server.js")));
  const before = assert.rejects(ask("v1/models"), /The engine cannot run here: no memory/);
  worker.dispatchEvent(Object.assign(new Event("error"), { message: "no memory" }));
  await before;
  await assert.rejects(ask("v1/surprisal", { input: ["a"] }), /The engine cannot run here: no memory/);
});

test("the sentences of a text are computed by themselves", async (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), "elmokit-")); // as the site has them
  t.after(() => rmSync(folder, { recursive: true }));
  const own = (file) => fileURLToPath(new URL(file, import.meta.url));
  cpSync(own("../explorer/answers.js"), path.join(folder, "answers.js"));
  cpSync(own("../src"), path.join(folder, "elmokit"), { recursive: true });
  writeFileSync(path.join(folder, "package.json"), '{"type": "module"}');
  const { Answers } = await import(pathToFileURL(path.join(folder, "answers.js")));
  const { Elmo } = await import(pathToFileURL(path.join(folder, "elmokit/index.js")));
  const elmo = await Elmo.load(own("../../../elmokit/models/en-mini"));
  const answers = new Answers(elmo, "en-mini", { listed: {}, indexed: ["The bank was muddy .", "She paid the bank ."] });
  const input = ["The bank raised its rate. Prices fell.", ["The", "bank", "raised", "its", "rate", "."], ["Prices", "fell", "."]];

  const [both, first, second] = answers.answer("v1/surprisal", { input, n_expected: 2 }).data;
  assert.deepEqual(both.tokens, [...first.tokens, ...second.tokens]);
  assert.deepEqual(both.sentence_lengths, [6, 3]);
  assert.deepEqual(both.forward, [...first.forward, ...second.forward]);
  assert.equal(both.total.backward, first.total.backward + second.total.backward);
  assert.deepEqual(both.expected.both, [...first.expected.both, ...second.expected.both]);

  const [joined, one, two] = answers.answer("v1/tokens", { input }).data;
  assert.deepEqual(joined.shape, [3, 9, 384]);
  const row = ({ vectors, shape }, layer, token) => vectors.slice((layer * shape[1] + token) * 384, (layer * shape[1] + token + 1) * 384);
  assert.deepEqual(row(joined, 2, 1), row(one, 2, 1));
  assert.deepEqual(row(joined, 1, 7), row(two, 1, 1));

  const { tokens, position, ...whole } = answers.answer("v1/neighbors", { sentence: input[0], position: 7 });
  const { tokens: ownTokens, position: inner, ...alone } = answers.answer("v1/neighbors", { sentence: input[2], position: 1 });
  assert.deepEqual([tokens, position, ownTokens, inner], [both.tokens, 7, input[2], 1]);
  assert.deepEqual(whole, alone);
  assert.throws(() => answers.answer("v1/neighbors", { sentence: "A bank.", position: 3 }), /the text has 3 tokens/);

  const document = { documents: true, input: input.slice(0, 1) };
  const [read] = answers.answer("v1/surprisal", { ...document, words: true, n_expected: 2 }).data;
  assert.deepEqual(read.forward.slice(0, 6), first.forward);
  assert.notDeepEqual(read.forward.slice(6), second.forward);
  assert.deepEqual(read.words.map(({ word }) => word), ["The", "bank", "raised", "its", "rate.", "Prices", "fell."]);
  assert.equal(read.words.at(-1).forward_nats, read.forward[7] + read.forward[8]);
  assert.equal(read.expected.both.length, 9);
  const [vectors] = answers.answer("v1/tokens", document).data;
  assert.deepEqual(row(vectors, 2, 1), row(one, 2, 1));
  assert.notDeepEqual(row(vectors, 1, 7), row(two, 1, 1));
  const near = answers.answer("v1/neighbors", { sentence: input[0], position: 7, documents: true });
  assert.deepEqual(near.context_free, whole.context_free);
  assert.notDeepEqual(near.layers, whole.layers);
});

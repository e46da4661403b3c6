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

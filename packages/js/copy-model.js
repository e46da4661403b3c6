// Copy the included model, and the license, into the package. `npm pack` runs this first; git ignores the copies.

import { cp, mkdir, readdir } from "node:fs/promises";

const root = new URL("../../", import.meta.url);
const model = new URL("elmokit/models/en-mini/", root);
const target = new URL("./models/en-mini/", import.meta.url);
await mkdir(target, { recursive: true });
for (const name of await readdir(model)) await cp(new URL(name, model), new URL(name, target));
await cp(new URL("LICENSE", root), new URL("./LICENSE", import.meta.url));

// Run the search of a built site on queries, and print as JSON which pages each finds: node check_search.mjs SITE QUERY...
// The code is the worker that a browser runs, with the two functions of workers that it needs.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const workers = path.join(site, "assets/javascripts/workers");
const name = fs.readdirSync(workers).find((file) => /^search\..*\.js$/.test(file));
const [SETUP, QUERY] = [0, 2]; // types of messages

let receive;
let answer;
globalThis.self = globalThis;
globalThis.addEventListener = (type, listener) => { receive = listener; };
globalThis.postMessage = (message) => answer(message);
vm.runInThisContext(fs.readFileSync(path.join(workers, name), "utf8"));

function ask(type, data) {
  return new Promise((resolve) => {
    answer = resolve;
    receive({ data: { type, data } });
  });
}

const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
await ask(SETUP, { ...index, options: { suggest: false } });
const found = {};
for (const query of queries) {
  const { data } = await ask(QUERY, query);
  // Results are grouped by page; the page itself is the part of the location before "#".
  found[query] = data.items.map((sections) => sections[0].location.split("#")[0]);
}
console.log(JSON.stringify(found));

// Stores the page, the engine and the model for offline use. `docs/make_try.py` prepends a line with the constant PAGE: the
// list of all files, and a version that changes with their content.

const PREFIX = "elmokit-try-";
const CACHE = PREFIX + PAGE.version;

addEventListener("install", (event) => {
  // "no-cache" checks with the server whether the browser's copy is current, so old and new files are not mixed.
  const requests = ["./", ...PAGE.files].map((file) => new Request(file, { cache: "no-cache" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(requests)));
});

addEventListener("activate", (event) => {
  const clean = async () => {
    const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
    await Promise.all(old.map((name) => caches.delete(name)));
    await clients.claim();
  };
  event.waitUntil(clean());
});

addEventListener("fetch", (event) => {
  const answer = async () => {
    const cache = await caches.open(CACHE);
    return (await cache.match(event.request, { ignoreSearch: true })) ?? fetch(event.request);
  };
  if (event.request.method === "GET") event.respondWith(answer());
});

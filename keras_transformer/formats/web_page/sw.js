// Stores all files of the page, so that it works without a network. The export adds two constants.
const PREFIX = `${registration.scope} `, NAME = PREFIX + VERSION;
async function install() {
  const cache = await caches.open(NAME);
  await cache.addAll(FILES.map((file) => new Request(file, { cache: "no-cache" })));
  await skipWaiting();
}
async function activate() {
  for (const name of await caches.keys()) if (name.startsWith(PREFIX) && name !== NAME) await caches.delete(name);
  await clients.claim();
}
const answer = async (request) =>
  (await caches.match(request.mode === "navigate" ? "./" : request, { cacheName: NAME })) ?? fetch(request);
addEventListener("install", (event) => event.waitUntil(install()));
addEventListener("activate", (event) => event.waitUntil(activate()));
addEventListener("fetch", (event) => event.respondWith(answer(event.request)));

// Stores all files of the page, so that it works without a network. The export adds two constants.

const PREFIX = `${registration.scope} `, NAME = PREFIX + VERSION;

async function install() {
  const cache = await caches.open(NAME);
  await cache.addAll(FILES.map((file) => new Request(file, { cache: "no-cache" })));
  await skipWaiting();
}

async function activate() {
  const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== NAME);
  await Promise.all(old.map((name) => caches.delete(name)));
  await clients.claim();
}

async function answer(request) {
  const cache = await caches.open(NAME);
  return (await cache.match(request.mode === "navigate" ? "./" : request)) ?? fetch(request);
}

addEventListener("install", (event) => event.waitUntil(install()));
addEventListener("activate", (event) => event.waitUntil(activate()));
addEventListener("fetch", (event) => event.request.method === "GET" && event.respondWith(answer(event.request)));

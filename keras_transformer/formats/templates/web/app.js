// The page: it shows what the worker translates.

const byId = (id) => document.getElementById(id);
const [source, target, state] = ["source", "target", "state"].map(byId);
const IDLE = "Nothing you type leaves this device.";
let worker, newest = 0, timer;

/** Waits until the service worker has stored all files, so that each of them is loaded once. */
async function store() {
  const container = navigator.serviceWorker;
  if (container.controller) container.addEventListener("controllerchange", () => location.reload());
  const { installing } = await container.register("sw.js");
  await new Promise((done) => {
    if (!installing) done();
    else installing.onstatechange = () => ["activated", "redundant"].includes(installing.state) && done();
  });
}

function describe(languages) {
  const names = new Intl.DisplayNames(navigator.language, { type: "language" });
  languages.forEach(({ code, direction }, i) => {
    Object.assign([source, target][i], { lang: code, dir: direction });
    byId(["from", "to"][i]).textContent = names.of(code);
  });
  document.title = `${byId("from").textContent} – ${byId("to").textContent}`;
}

function show({ data: { languages, error, number, text, isDone } }) {
  if (languages) describe(languages);
  if (languages || (isDone && number === newest)) state.textContent = IDLE;
  if (error) state.textContent = `The model cannot be opened: ${error}`;
  if (number === newest) target.textContent = text;
}

function translate() {
  if (worker) state.textContent = "Translating…";
  worker?.postMessage({ number: ++newest, text: source.value });
}

source.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(translate, 200);
});
state.textContent = "Loading the model…";
await store().catch(() => {}); // Without a service worker, the page needs the network each time.
worker = new Worker("worker.js", { type: "module" });
worker.onmessage = show;
if (source.value) translate();

// Shows what the worker translates.
const [source, target, state, from, to] = ["source", "target", "state", "from", "to"].map((id) => document.getElementById(id));
let worker, timer, newest = 0;
/** Waits until the service worker has stored all files, so that each of them is loaded once. */
async function store({ serviceWorker }) {
  if (serviceWorker.controller) serviceWorker.addEventListener("controllerchange", () => location.reload());
  const { installing } = await serviceWorker.register("sw.js");
  const watch = (done) => { installing.onstatechange = () => /activated|redundant/.test(installing.state) && done(); };
  if (installing) await new Promise(watch);
}
function show({ data: { languages, error, number, text, isDone } }) {
  languages?.forEach((language, i) => {
    Object.assign([source, target][i], language);
    if (language) [from, to][i].textContent = new Intl.DisplayNames(undefined, { type: "language" }).of(language.lang);
    document.title = `${from.textContent} – ${to.textContent}`;
  });
  if ((languages && !newest) || (isDone && number === newest)) state.textContent = "Ready. Nothing you type leaves this device.";
  if (error) state.textContent = `The page cannot translate: ${error}`;
  if (number === newest) target.textContent = text;
}
function translate() {
  if (worker) state.textContent = "Translating…";
  worker?.postMessage({ number: ++newest, text: source.value });
}
source.oninput = () => { clearTimeout(timer); timer = setTimeout(translate, 200); };
state.textContent = "Loading the model…";
await store(navigator).catch(() => {}); // Without a service worker, the page needs the network each time.
worker = new Worker("worker.js", { type: "module" });
Object.assign(worker, { onmessage: show, onerror: ({ message }) => show({ data: { error: message } }) });
if (source.value) translate();

"use strict";

const KINDS = {
  encoder: ["Encoder self-attention", "Each source token (row) attends to source tokens."],
  decoder: ["Decoder self-attention", "Each token that the decoder reads (row) attends to itself and the tokens before it."],
  cross: ["Cross-attention", "Each target token (row), while it is predicted, attends to source tokens."],
};
const FONT = 'Helvetica, Arial, "Liberation Sans", "Noto Sans", "DejaVu Sans", sans-serif';
const STYLE = `text { font-size: 13px; font-family: ${FONT}; fill: #1a1a1a; unicode-bidi: plaintext; }
.small { font-size: 11px; fill: #666; } .special { font-style: italic; fill: #777; } .mark { fill: #b5b5b5; }
.line { stroke: #08519c; stroke-width: 2; } .frame { fill: none; stroke: #bbb; }
.chosen { fill: none; stroke: #e6850e; stroke-width: 1.5; } .shade { fill: #08519c; }
.strong text { font-weight: bold; } image { image-rendering: pixelated; }`;
const COLOURS = [[255, 255, 255], [158, 202, 225], [49, 130, 189], [8, 48, 107]];

const page = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const kinds = page.maps.map((x) => x.kind);
const kind = kinds.at(-1); // of a decoder, its cross-attention
const last = kinds.filter((x) => x === kind).length - 1;
const state = { kind, layer: last, head: "mean", view: "lines", kept: null };
let headsInRow; // in the drawing of one layer, else 0
const groups = {}; // the layers of each kind, with their weights
let tokenNodes = {}; // the drawn tokens, "query 0" and so on

// --- Weights --------------------------------------------------------------------------------

/** Gives each map its weights, and fills `groups`. A weight is stored as a multiple of 1 / 65535. */
async function readWeights() {
  const packed = Uint8Array.from(atob(byId("weights").textContent), (x) => x.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const integers = new Uint16Array(await new Response(stream).arrayBuffer());
  let next = 0;
  for (const map of page.maps) {
    const [rows, columns] = page.tokens[map.kind].map((x) => x.length);
    map.weights = Array.from({ length: map.heads }, () => {
      const stored = integers.subarray(next, (next += rows * columns));
      return Float64Array.from(stored, (x) => x / 65535);
    });
    (groups[map.kind] ??= []).push(map);
  }
}

function meanOfHeads({ weights }) {
  return weights[0].map((_, i) => weights.reduce((sum, x) => sum + x[i], 0) / weights.length);
}

/** Abnar and Zuidema 2020: each layer averaged with the identity, multiplied over the layers. */
function rollout(layers, size) {
  const identity = new Float64Array(size * size).map((_, i) => Number(i % (size + 1) === 0));
  return layers.map(meanOfHeads).reduce((before, mean) => {
    const after = new Float64Array(size * size);
    for (let row = 0; row < size; row++) {
      for (let middle = 0; middle < size; middle++) {
        const weight = (mean[row * size + middle] + identity[row * size + middle]) / 2;
        for (let i = 0; i < size; i++) after[row * size + i] += weight * before[middle * size + i];
      }
    }
    return after;
  }, identity);
}

function shownMatrix() {
  const layers = groups[state.kind];
  if (state.layer === "rollout") return rollout(layers, page.tokens[state.kind][0].length);
  return state.head === "mean" ? meanOfHeads(layers[state.layer]) : layers[state.layer].weights[state.head];
}

/** Mean entropy of the rows in nats. */
function entropy(matrix, rows) {
  return -matrix.reduce((sum, x) => sum + (x > 0 ? x * Math.log(x) : 0), 0) / rows;
}

const tokensOf = (side) => page.tokens[state.kind][side === "query" ? 0 : 1];
const otherOf = (side) => (side === "query" ? "key" : "query");
const asShown = (weight) => Math.round(255 * weight) / 255;

// --- Drawing --------------------------------------------------------------------------------

function element(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const ruler = document.createElement("canvas").getContext("2d");

/** Replaces the characters that XML does not allow. */
function cleaned(token) {
  return token.replace(/[\0-\x1f\ufffe\uffff]/g, "\ufffd");
}

/** At most 24 characters. */
function shortened(token) {
  const characters = [...cleaned(token)];
  return characters.length > 24 ? characters.slice(0, 23).join("") + "…" : characters.join("");
}

function widest(tokens) {
  ruler.font = `bold 13px ${FONT}`;
  return Math.max(...tokens.map((x) => ruler.measureText(shortened(x)).width));
}

/** Draws a token. The mark "▁" before a word is grey, and special tokens are in italics. */
function drawToken(parent, token, attributes) {
  const special = page.special.includes(token);
  const text = element("text", { ...attributes, ...(special && { class: "special" }) }, parent);
  const begins = token.startsWith("▁");
  if (begins) element("tspan", { class: "mark" }, text, "▁");
  element("tspan", {}, text, shortened(token.slice(begins ? 1 : 0)));
  if ([...token].length > 24) element("title", {}, text, cleaned(token));
}

/** The place of a text that is read from below. */
const upwards = (x, y) => ({ x, y, transform: `rotate(-90 ${x} ${y})` });

/** A token that the pointer and the keyboard can select. `side` is "query" or "key". */
function selectableToken(svg, side, index, box, textAttributes) {
  const token = tokensOf(side)[index];
  const group = element("g", { tabindex: -1, role: "button", "data-side": side, "data-index": index }, svg);
  group.setAttribute("aria-label", `${side} ${index + 1}: ${cleaned(token)}`);
  element("rect", { class: "shade", rx: 2, ...box, "fill-opacity": 0 }, group);
  drawToken(group, token, textAttributes);
  makeReachable(group, `${side} ${index}`, () => select({ side, index }), () => keep({ side, index }));
}

/** Lets the pointer and the keyboard reach a token or head. */
function makeReachable(group, name, show, choose) {
  tokenNodes[name] = group;
  group.onpointerenter = show;
  group.onfocus = () => {
    makeTabStop(group);
    show();
  };
  group.onclick = choose;
}

function newDrawing(width, height, label) {
  [width, height] = [Math.ceil(width), Math.ceil(height)];
  const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-label": label });
  element("style", {}, svg, STYLE);
  element("rect", { width, height, fill: "#fff" }, svg);
  return svg;
}

function drawLines(matrix, [queries, keys], available, label) {
  const step = 22;
  const [left, right] = [queries, keys].map((x) => Math.min(widest(x) + 12, available * 0.4));
  const width = Math.min(available, left + right + 360);
  const svg = newDrawing(width, 24 + step * Math.max(queries.length, keys.length), label);
  const middle = (index) => 24 + step * index + step / 2;
  element("text", { x: left - 6, y: 13, "text-anchor": "end", class: "small" }, svg, "query");
  element("text", { x: width - right + 6, y: 13, class: "small" }, svg, "key");
  const lines = element("g", {}, svg);
  for (let row = 0; row < queries.length; row++) {
    for (let column = 0; column < keys.length; column++) {
      const opacity = asShown(matrix[row * keys.length + column]);
      if (opacity === 0) continue;
      const places = { x1: left, y1: middle(row), x2: width - right, y2: middle(column) };
      element("line", { class: "line", ...places, "stroke-opacity": opacity, "data-row": row, "data-column": column }, lines);
    }
  }
  const sides = [["query", queries, 0, left, left - 6, "end"], ["key", keys, width - right, right, width - right + 6, "start"]];
  for (const [side, tokens, x, boxWidth, textX, anchor] of sides) {
    tokens.forEach((_, i) => {
      const box = { x, y: middle(i) - step / 2 + 1, width: boxWidth, height: step - 2 };
      selectableToken(svg, side, i, box, { x: textX, y: middle(i) + 4.5, "text-anchor": anchor });
    });
  }
  return svg;
}

function colour(weight) {
  const place = Math.min(weight, 1) * (COLOURS.length - 1);
  const below = Math.min(Math.floor(place), COLOURS.length - 2);
  return COLOURS[below].map((x, i) => Math.round(x + (place - below) * (COLOURS[below + 1][i] - x)));
}

const COLOUR_OF = Array.from({ length: 256 }, (_, i) => colour(i / 255));

function imageOf(matrix, columns) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, matrix.length / columns];
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  matrix.forEach((weight, i) => image.data.set([...COLOUR_OF[Math.round(255 * weight)], 255], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function drawMap(parent, matrix, columns, box) {
  element("image", { ...box, preserveAspectRatio: "none", href: imageOf(matrix, columns) }, parent);
  element("rect", { ...box, class: "frame" }, parent);
}

function drawLegend(svg, x, y) {
  drawMap(svg, Float64Array.from({ length: 64 }, (_, i) => i / 63), 64, { x, y, width: 120, height: 8 });
  [0, 0.5, 1].forEach((value) =>
    element("text", { x: x + 120 * value, y: y + 21, "text-anchor": "middle", class: "small" }, svg, value));
  element("text", { x: x + 132, y: y + 8, class: "small" }, svg, "weight");
}

function drawHeat(matrix, [queries, keys], available, label) {
  const [left, top] = [widest(queries) + 12, widest(keys) + 14];
  const size = Math.max(16, Math.min(30, Math.floor((available - left - 2) / keys.length)));
  const [width, height] = [size * keys.length, size * queries.length];
  const svg = newDrawing(Math.max(left + width + 2, left + 190), top + height + 44, label);
  drawMap(svg, matrix, keys.length, { x: left, y: top, width, height });
  queries.forEach((_, i) => {
    const box = { x: 0, y: top + size * i, width: left - 2, height: size };
    selectableToken(svg, "query", i, box, { x: left - 8, y: top + size * (i + 0.5) + 4.5, "text-anchor": "end" });
  });
  keys.forEach((_, i) => {
    const box = { x: left + size * i, y: 0, width: size, height: top - 2 };
    selectableToken(svg, "key", i, box, upwards(left + size * (i + 0.5) + 4.5, top - 8));
  });
  element("rect", { class: "chosen", id: "chosen", x: left, y: top, width, height, visibility: "hidden" }, svg);
  const surface = element("rect", { x: left, y: top, width, height, fill: "transparent", id: "cells" }, svg);
  const cellAt = (event) => {
    const box = surface.getBoundingClientRect();
    const place = (distance, whole, count) => Math.max(0, Math.min(count - 1, Math.floor((distance / whole) * count)));
    const column = place(event.clientX - box.left, box.width, keys.length);
    return { side: "query", index: place(event.clientY - box.top, box.height, queries.length), column };
  };
  surface.onpointermove = (event) => select(cellAt(event));
  surface.onclick = (event) => keep(cellAt(event));
  drawLegend(svg, left + 4, top + height + 14);
  return svg;
}

/** The heat map of one head, which opens larger. */
function drawHead(svg, layer, head, [queries, keys], box) {
  const matrix = groups[state.kind][layer].weights[head];
  const group = element("g", { tabindex: -1, role: "button", "data-layer": layer, "data-head": head }, svg);
  const value = entropy(matrix, queries.length).toFixed(2);
  const text = `layer ${layer + 1}, head ${head + 1}: entropy ${value} nats`;
  group.setAttribute("aria-label", text);
  drawMap(group, matrix, keys.length, box);
  if (box.width >= 40) { // Narrow maps have no room for the entropy.
    const place = { x: box.x + box.width / 2, y: box.y + box.height + 12 };
    element("text", { ...place, "text-anchor": "middle", class: "small" }, group, value);
  }
  makeReachable(group, `head ${layer} ${head}`, () => say([text]), () => openHead(layer, head));
  return group;
}

/** All heads of one layer, each with its tokens. */
function drawLayer(tokens, available, label) {
  const [queries, keys] = tokens;
  const { weights } = groups[state.kind][state.layer];
  const [left, top, size] = [widest(queries) + 12, widest(keys) + 30, 15];
  const [width, height] = [size * keys.length, size * queries.length];
  const [across, down] = [left + width + 16, top + height + 30];
  headsInRow = Math.max(1, Math.min(weights.length, Math.floor(available / across)));
  const svg = newDrawing(headsInRow * across, Math.ceil(weights.length / headsInRow) * down, label);
  weights.forEach((_, head) => {
    const x = left + across * (head % headsInRow);
    const y = top + down * Math.floor(head / headsInRow);
    const group = drawHead(svg, state.layer, head, tokens, { x, y, width, height });
    element("text", { x: x - left, y: y - top + 14, class: "small" }, group, `head ${head + 1}`);
    queries.forEach((token, i) =>
      drawToken(group, token, { x: x - 6, y: y + size * (i + 0.5) + 4.5, "text-anchor": "end" }));
    keys.forEach((token, i) => drawToken(group, token, upwards(x + size * (i + 0.5) + 4.5, y - 6)));
  });
  return svg;
}

function drawAll(tokens, available, label) {
  const [queries, keys] = tokens;
  const layers = groups[state.kind];
  const heads = Math.max(...layers.map((x) => x.weights.length));
  const [left, top, gap] = [24, 34, 6];
  const width = Math.max(24, Math.min(150, (available - left) / heads - gap));
  const height = (width * queries.length) / keys.length;
  const below = width < 40 ? gap : 18;
  const svg = newDrawing(left + heads * (width + gap), top + layers.length * (height + below), label);
  element("text", { x: left + (heads * (width + gap) - gap) / 2, y: 12, "text-anchor": "middle", class: "small" }, svg, "head");
  const middle = upwards(9, top + (layers.length * (height + below)) / 2);
  element("text", { ...middle, "text-anchor": "middle", class: "small" }, svg, "layer");
  for (let head = 0; head < heads; head++) {
    element("text", { x: left + head * (width + gap) + width / 2, y: 28, "text-anchor": "middle", class: "small" }, svg, head + 1);
  }
  layers.forEach(({ weights }, layer) => {
    const boxY = top + layer * (height + below);
    element("text", { x: left - 5, y: boxY + height / 2 + 4, "text-anchor": "end", class: "small" }, svg, layer + 1);
    weights.forEach((_, head) =>
      drawHead(svg, layer, head, tokens, { x: left + head * (width + gap), y: boxY, width, height }));
  });
  return svg;
}

function draw() {
  const tokens = page.tokens[state.kind];
  const available = Math.max(byId("drawing").clientWidth - 4, 240);
  const [title, explanation] = KINDS[state.kind];
  const where = state.layer === "rollout" ? "roll-out of all layers"
    : `layer ${state.layer + 1}, ${state.head === "mean" ? "mean of all heads" : `head ${state.head + 1}`}`;
  tokenNodes = {};
  headsInRow = 0;
  if (state.view === "all") {
    const shown = state.layer === "every" ? "all layers and heads" : `layer ${state.layer + 1}, all heads`;
    const drawing = state.layer === "every" ? drawAll : drawLayer;
    byId("drawing").replaceChildren(drawing(tokens, available, `${title}, ${shown}`));
    const note = byId("drawing").querySelector("[data-head] text") ? " Below each head: its mean entropy in nats." : "";
    byId("caption").textContent = `${title}, ${shown}. ${explanation}${note}`;
  } else {
    const matrix = shownMatrix();
    const drawing = state.view === "lines" ? drawLines : drawHeat;
    byId("drawing").replaceChildren(drawing(matrix, tokens, available, `${title}, ${where}`));
    const value = entropy(matrix, tokens[0].length).toFixed(2);
    byId("caption").textContent = `${title}, ${where}. ${explanation} Mean entropy: ${value} nats.`;
  }
  makeTabStop(Object.values(tokenNodes)[0]);
  select(state.view === "all" ? null : state.kept);
}

// --- Selection ------------------------------------------------------------------------------

/** Shows texts and tokens below the drawing. Tokens are in <bdi>, for right-to-left text. */
function say(parts) {
  byId("status").replaceChildren(...parts.map((part) => {
    if (typeof part === "string") return part;
    const isolated = document.createElement("bdi");
    isolated.textContent = part.token;
    return isolated;
  }));
}

/** The weights between a token and each token of the other side. */
function weightsOf({ side, index }, matrix) {
  const columns = tokensOf("key").length;
  return tokensOf(otherOf(side)).map((token, i) => {
    const place = side === "query" ? index * columns + i : i * columns + index;
    return { token, weight: matrix[place] };
  });
}

function select(selected) {
  if (state.view === "all") return selected || say([]);
  const matrix = shownMatrix();
  const found = selected ? weightsOf(selected, matrix) : [];
  const other = otherOf(selected?.side);
  for (const [name, node] of Object.entries(tokenNodes)) {
    const [side, index] = name.split(" ");
    const isSelected = selected && side === selected.side && Number(index) === selected.index;
    node.classList.toggle("strong", Boolean(isSelected));
    node.firstChild.setAttribute("fill-opacity", side === other && selected ? asShown(found[index].weight) * 0.45 : 0);
  }
  for (const line of byId("drawing").querySelectorAll(".line")) {
    const end = selected?.side === "query" ? line.dataset.row : line.dataset.column;
    line.setAttribute("visibility", selected && Number(end) !== selected.index ? "hidden" : "visible");
  }
  frame(selected);
  if (!selected) return say([]);
  const token = tokensOf(selected.side)[selected.index];
  const best = [...found].sort((a, b) => b.weight - a.weight).slice(0, 5).filter((x) => x.weight >= 0.0005);
  const list = best.flatMap((x, i) => [i ? ", " : "", x, ` ${x.weight.toFixed(3)}`]);
  const cell = selected.column === undefined ? [] : [" (weight of ", { token: tokensOf("key")[selected.column] },
    `: ${found[selected.column].weight.toFixed(3)})`];
  say([{ token }, selected.side === "query" ? " attends to " : " is attended to by ", ...list, ...cell]);
}

/** In the heat map, frames the row or column of the selected token. */
function frame(selected) {
  const [chosen, cells] = [byId("chosen"), byId("cells")];
  if (!chosen) return;
  chosen.setAttribute("visibility", selected ? "visible" : "hidden");
  if (!selected) return;
  const [start, size] = selected.side === "query" ? ["y", "height"] : ["x", "width"];
  for (const name of ["x", "y", "width", "height"]) chosen.setAttribute(name, cells.getAttribute(name));
  const extent = cells.getAttribute(size) / tokensOf(selected.side).length;
  chosen.setAttribute(size, extent);
  chosen.setAttribute(start, Number(cells.getAttribute(start)) + extent * selected.index);
}

function keep(selected) {
  const isSame = state.kept?.side === selected.side && state.kept.index === selected.index;
  state.kept = isSame ? null : selected;
  select(state.kept ?? selected);
}

function openHead(layer, head) {
  Object.assign(state, { layer, head, view: "heat" });
  fillControls();
  draw();
  Object.values(tokenNodes)[0].focus();
}

/** The Tab key reaches one token or head of a drawing. The arrow keys reach the others. */
function makeTabStop(node) {
  byId("drawing").querySelector('[tabindex="0"]')?.setAttribute("tabindex", -1);
  node.setAttribute("tabindex", 0);
}

/** The arrow keys move the focus between tokens or heads. */
function moveFocus(event) {
  const now = event.target.closest("[tabindex]");
  if (!now) return;
  const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (event.key === "Enter" || event.key === " ") now.onclick();
  else if (event.key === "Escape") { state.kept = null; select(null); }
  else if (down === undefined) return;
  else neighbour(now.dataset, down, right)?.focus();
  event.preventDefault();
}

function neighbour({ side, index, layer, head }, down, right) {
  if (side === undefined) {
    const [row, column] = [Number(layer) + (headsInRow ? 0 : down), Number(head) + right + headsInRow * down];
    return tokenNodes[`head ${row} ${column}`];
  }
  const alongKeys = state.view === "heat" && side === "key";
  const step = alongKeys ? right : down;
  if (step) return tokenNodes[`${side} ${Number(index) + step}`];
  return tokenNodes[`${otherOf(side)} ${index}`] ?? tokenNodes[`${otherOf(side)} 0`];
}

// --- Controls and files ---------------------------------------------------------------------

function fillSelect(id, options) {
  byId(id).replaceChildren(...options.map(([value, text]) => new Option(text, value, false, String(state[id]) === String(value))));
}

function fillControls() {
  const layers = groups[state.kind];
  const several = state.view === "all" ? [["every", "All"]]
    : state.kind !== "cross" && layers.length > 1 ? [["rollout", "Roll-out"]] : [];
  if (!(state.layer < layers.length || state.layer === several[0]?.[0])) state.layer = layers.length - 1;
  const heads = layers[state.layer]?.weights ?? [];
  if (heads.length === 1) state.head = 0;
  else if (!(state.head < heads.length)) state.head = "mean";
  fillSelect("kind", Object.keys(groups).map((x) => [x, KINDS[x][0]]));
  fillSelect("layer", [...layers.map((_, i) => [i, i + 1]), ...several]);
  fillSelect("head", [...heads.map((_, i) => [i, i + 1]), ...(heads.length === 1 ? [] : [["mean", "Mean"]])]);
  document.querySelector(`[name=view][value=${state.view}]`).checked = true;
  byId("head").disabled = state.view === "all";
}

function readControls() {
  const number = (x) => (Number.isNaN(Number(x)) ? x : Number(x));
  if (byId("kind").value !== state.kind) state.kept = null;
  state.kind = byId("kind").value;
  state.layer = number(byId("layer").value);
  state.head = number(byId("head").value);
  state.view = document.querySelector("[name=view]:checked").value;
  fillControls();
  draw();
}

function save(name, content, type) {
  const link = document.createElement("a");
  Object.assign(link, { download: name, href: URL.createObjectURL(new Blob([content], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function viewName() {
  if (state.layer === "every") return `attention-${state.kind}`;
  if (state.view === "all") return `attention-${state.kind}-layer-${state.layer + 1}`;
  if (state.layer === "rollout") return `attention-${state.kind}-rollout`;
  return `attention-${state.kind}-layer-${state.layer + 1}-head-${state.head === "mean" ? "mean" : state.head + 1}`;
}

function svgText() {
  return new XMLSerializer().serializeToString(byId("drawing").firstChild);
}

async function savePng() {
  const scale = 3;
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText());
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width * scale, image.height * scale];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(`${viewName()}.png`, blob, blob.type));
}

/** The weights with 6 decimals: they differ from the model's by less than 1e-5. */
function weightsJson() {
  const maps = page.maps.map(({ name, kind, weights }) => {
    const columns = page.tokens[kind][1].length;
    const rowsOf = (matrix) => Array.from({ length: matrix.length / columns }, (_, row) =>
      Array.from(matrix.subarray(row * columns, (row + 1) * columns), (x) => Number(x.toFixed(6))));
    return { name, kind, weights: weights.map(rowsOf) };
  });
  const { texts, alignment, wordScores, tokens } = page;
  return JSON.stringify({ texts, alignment, wordScores, tokens, maps });
}

/** A word of the translation. The less probable it is, the clearer is the line below it. */
function scored(word, score) {
  const span = document.createElement("span");
  span.textContent = word;
  span.title = `${(100 * Math.exp(score)).toFixed(0)} %: mean probability of the word's tokens`;
  span.style.setProperty("--doubt", (1 - Math.exp(score)).toFixed(2));
  return span;
}

async function start() {
  await readWeights();
  byId("texts").append(...page.texts.map((text, number) => {
    const paragraph = document.createElement("p");
    paragraph.dir = "auto";
    const scores = number === page.texts.length - 1 ? [...page.wordScores] : [];
    paragraph.append(...text.split(/(\s+)/).map((word) => scores.length && word.trim() ? scored(word, scores.shift()) : word));
    return paragraph;
  }));
  fillControls();
  draw();
  byId("controls").onchange = readControls;
  byId("controls").onsubmit = (event) => event.preventDefault();
  byId("drawing").onkeydown = moveFocus;
  byId("drawing").onpointerleave = () => select(state.kept);
  byId("save-svg").onclick = () => save(`${viewName()}.svg`, svgText(), "image/svg+xml");
  byId("save-png").onclick = savePng;
  byId("save-json").onclick = () => save("attention.json", weightsJson(), "application/json");
  let width = byId("drawing").clientWidth;
  onresize = () => {
    if (width !== byId("drawing").clientWidth) draw();
    width = byId("drawing").clientWidth;
  };
  document.body.dataset.ready = "true";
}

start();

// Encodes and decodes text with a SentencePiece model: unigram, BPE, words or characters.
const SPACE = "▁", UNKNOWN_PENALTY = 10;
const UNIGRAM = 1, BPE = 2, WORDS = 3; // types of models
const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6; // kinds of pieces
const encoder = new TextEncoder(), decoder = new TextDecoder("utf-8", { ignoreBOM: true });
// A character in bytes, or a byte that belongs to none.
const UTF8 = /[\0-\x7f]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|[^]/g;
const decodeBytes = (x) => x.replace(UTF8, (y) => decoder.decode(Uint8Array.from(y, (z) => z.charCodeAt())));
const characterAt = (text, at) => String.fromCodePoint(text.codePointAt(at));
const childOf = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);

/** Yields number and value of each field of a protocol buffer. */
function* fields(buffer) {
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  let at = 0;
  const integer = () => (buffer[at] < 128 ? buffer[at++] : buffer[at++] - 128 + 128 * integer());
  const bytes = (size) => buffer.subarray(at, (at += size));
  const read = { 0: integer, 2: () => bytes(integer()), 5: () => view.getFloat32((at += 4) - 4, true) };
  for (let key; at < buffer.length; yield [key >> 3, read[key % 8]()]) key = integer();
}
const message = (buffer) => Object.fromEntries(fields(buffer));

export class SentencePiece {
  pieces = []; ids = new Map(); bytes = []; // ids of pieces of text, and of the pieces of single bytes
  /** Reads the bytes of a file such as source.model. */
  constructor(model) {
    for (const [number, value] of fields(model)) if (number === 1) this.#add(message(value));
    const none = new Uint8Array(), { 2: trainerSpec = none, 3: normalizerSpec = none } = message(model);
    const { 3: type = UNIGRAM, 24: isSuffix, 35: hasBytes, 44: unknownText = encoder.encode(" ⁇ ") } = message(trainerSpec);
    const { 2: rules = none, 3: addsSpace = 1, 4: trims = 1, 5: escapes = 1 } = message(normalizerSpec);
    Object.assign(this, { type, isSuffix, hasBytes, unknownText, addsSpace, trims, escapes });
    const used = this.pieces.filter((x) => this.ids.has(x.text)), normal = used.filter((x) => x.kind === NORMAL);
    this.users = used.filter((x) => x.kind === USER).map((x) => x.text).sort((a, b) => b.length - a.length);
    this.longest = used.reduce((most, x) => Math.max(most, x.text.length), 1);
    this.unknownScore = Math.fround(normal.reduce((least, x) => Math.min(least, x.score), Infinity) - UNKNOWN_PENALTY);
    // The rules of normalization are a trie (Darts-clone), then strings that end with a zero.
    const size = rules.length && new DataView(rules.buffer, rules.byteOffset).getUint32(0, true);
    this.trie = new Uint32Array(rules.slice(4, 4 + size).buffer);
    this.replacements = rules.subarray(4 + size);
  }
  #add({ 1: name, 2: score = 0, 3: kind = NORMAL }) {
    const text = decoder.decode(name), id = this.pieces.push({ text, score, kind }) - 1;
    if (kind === UNKNOWN) this.unknownId = id;
    else if (kind === BYTE) this.bytes[Number(text.slice(1, -1))] = id;
    else if (kind !== CONTROL) this.ids.set(text, id);
  }
  #pieceOf(text) { return this.pieces[this.ids.get(text)]; }
  #userAt(text, at) { return this.users.find((x) => text.startsWith(x, at)); }
  /** Returns the longest text at a place that a rule replaces, or a character, and its replacement. */
  #replacedAt(text, at) {
    let found = this.#userAt(text, at) ?? characterAt(text, at), replacement = found;
    if (!this.trie.length || this.users.includes(found)) return [found, found];
    for (let node = childOf(this.trie[0]), end = at, unit; end < text.length; ) {
      for (const byte of encoder.encode(characterAt(text, end))) {
        unit = this.trie[(node ^= byte)];
        if ((unit & 0x800000ff) !== byte) return [found, replacement];
        node ^= childOf(unit);
      }
      end += characterAt(text, end).length;
      if (!(unit & 256)) continue;
      const start = this.trie[node] & 0x7fffffff;
      found = text.slice(at, end);
      replacement = decoder.decode(this.replacements.subarray(start, this.replacements.indexOf(0, start)));
    }
    return [found, replacement];
  }
  normalize(text) {
    const space = this.escapes ? SPACE : " ";
    let out = this.addsSpace && !this.isSuffix && text ? " " : "", isSpaced = this.trims;
    for (let at = 0; at < text.length; ) {
      const [found, replacement] = this.#replacedAt(text, at);
      out += isSpaced ? replacement.replace(/^ +/, "") : replacement;
      isSpaced = this.trims && (out.endsWith(" ") || out === "");
      at += found.length;
    }
    if (this.escapes) out = out.replaceAll(" ", SPACE);
    while (this.trims && out.endsWith(space)) out = out.slice(0, -1);
    return this.addsSpace && this.isSuffix && out ? out + space : out;
  }
  encode(text) {
    const normalized = this.normalize(text), ids = [];
    let pieces = normalized.split(/(?=▁)/), wasUnknown = false;
    if (this.type !== WORDS) pieces = this.type === UNIGRAM ? this.#mostProbable(normalized) : this.#merged(normalized);
    for (const piece of normalized ? pieces : []) { // Unknown neighbours are one unknown piece.
      const isUnknown = (this.#pieceOf(piece)?.kind ?? UNUSED) === UNUSED;
      if (!isUnknown) ids.push(this.ids.get(piece));
      else if (this.hasBytes) encoder.encode(piece).forEach((byte) => ids.push(this.bytes[byte]));
      else if (!wasUnknown) ids.push(this.unknownId);
      wasUnknown = isUnknown;
    }
    return ids;
  }
  /** Returns the pieces with the highest sum of scores, in float32 as SentencePiece has it. */
  #mostProbable(text) {
    const best = new Float32Array(text.length + 1).fill(-Infinity, 1), begins = [], pieces = [];
    for (let begin = 0, next; begin < text.length; begin = next) {
      next = begin + characterAt(text, begin).length;
      for (let end = next; end <= Math.min(text.length, begin + this.longest); end++) {
        const { kind = UNUSED, score } = this.#pieceOf(text.slice(begin, end)) ?? {};
        if (kind === UNUSED && end > next) continue;
        const total = best[begin] + (kind === UNUSED ? this.unknownScore : kind === USER ? -0.1 : score);
        if (total > best[end]) [best[end], begins[end]] = [total, begin];
      }
    }
    for (let end = text.length; end > 0; end = begins[end]) pieces.unshift(text.slice(begins[end], end));
    return pieces;
  }
  /** Merges the neighbours with the highest score, of equal ones the first, until none is left. */
  #merged(text) {
    const parts = [], origins = new Map(); // of unused pieces, which are split again
    for (let at = 0; at < text.length; at += parts.at(-1).length) parts.push(this.#userAt(text, at) ?? characterAt(text, at));
    const isUser = parts.map((x) => this.users.includes(x));
    const scoreOf = (i) => {
      const piece = isUser[i] || (isUser[i + 1] ?? true) ? undefined : this.#pieceOf(parts[i] + parts[i + 1]);
      if (piece?.kind === UNUSED) origins.set(piece.text, [parts[i], parts[i + 1]]);
      return piece?.score ?? -Infinity;
    };
    const scores = this.type === BPE ? parts.map((_, i) => scoreOf(i)) : [];
    for (;;) {
      const best = scores.reduce((a, x, i) => (x > (scores[a] ?? -Infinity) ? i : a), -1);
      if (best < 0) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      for (const list of [isUser, scores]) list.splice(best, 1);
      for (const i of [best, best - 1]) if (i >= 0) scores[i] = scoreOf(i);
    }
    const split = (piece) => origins.get(piece)?.flatMap(split) ?? [piece];
    return parts.flatMap(split);
  }
  decode(ids) {
    let text = "", bytes = "", isFirst = true; // until a piece shows, or keeps the space before it
    for (const { kind, text: name } of ids.map((id) => this.pieces[id])) {
      const piece = kind === UNKNOWN ? decoder.decode(this.unknownText) : kind === CONTROL ? "" : name;
      if (kind === BYTE) { bytes += String.fromCharCode(name.slice(1, -1)); continue; }
      text += decodeBytes(bytes);
      [bytes, isFirst] = ["", isFirst && !text];
      const isCut = isFirst && piece.startsWith(SPACE) && (this.addsSpace || this.trims);
      if (isCut && !this.trims) isFirst = false;
      text += piece.slice(isCut ? 1 : 0).replaceAll(SPACE, " ");
    }
    return text + decodeBytes(bytes);
  }
}

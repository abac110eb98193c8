// Encodes and decodes text with a SentencePiece model: unigram, BPE, words or characters.

const SPACE = "▁";
const UNIGRAM = 1, BPE = 2, WORDS = 3; // types of models
const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6; // kinds of pieces
const UNKNOWN_PENALTY = 10;
const encoder = new TextEncoder(), decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

// The names of the fields that are read in the messages `trainer_spec` and `normalizer_spec`.
const SETTINGS = {
  2: { 3: "type", 24: "isSuffix", 35: "hasBytes", 44: "unknownText" },
  3: { 2: "rules", 3: "addsSpace", 4: "trims", 5: "escapes" },
};

/** Yields number and value of each field of a protocol buffer. */
function* fields(buffer) {
  const view = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  let at = 0;
  const integer = () => {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const byte = buffer[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < buffer.length) {
    const key = integer(), number = Math.floor(key / 8), type = key % 8;
    if (type === 0) yield [number, integer()];
    else if (type === 5) yield [number, view.getFloat32((at += 4) - 4, true)];
    else if (type === 1) at += 8;
    else {
      const size = integer();
      yield [number, buffer.subarray(at, (at += size))];
    }
  }
}

export class SentencePiece {
  pieces = []; scores = []; kinds = []; // by id
  ids = new Map(); // of the pieces that text can have
  bytes = []; // ids of the pieces for single bytes
  type = UNIGRAM; addsSpace = 1; trims = 1; escapes = 1; isSuffix = 0; hasBytes = 0;
  unknownText = encoder.encode(" ⁇ ");

  /** Reads the bytes of a file such as source.model. */
  constructor(model) {
    for (const [number, value] of fields(model)) {
      if (number === 1) this.#add(Object.fromEntries(fields(value)));
      else for (const [n, x] of SETTINGS[number] ? fields(value) : []) this[SETTINGS[number][n]] = x;
    }
    const texts = [...this.ids.keys()], scores = this.scores.filter((_, id) => this.kinds[id] === NORMAL);
    this.users = texts.filter((x) => this.#kind(x) === USER).sort((a, b) => b.length - a.length);
    this.longest = Math.max(...texts.map((x) => x.length));
    this.unknownScore = Math.fround(Math.min(...scores) - UNKNOWN_PENALTY);
    if (this.type === UNIGRAM) for (const x of texts) if (this.#kind(x) === UNUSED) this.ids.delete(x);
    if (this.rules?.length) { // a trie (Darts-clone), and strings that end with a zero
      const size = new DataView(this.rules.buffer, this.rules.byteOffset).getUint32(0, true);
      this.trie = new Uint32Array(this.rules.slice(4, 4 + size).buffer);
      this.replacements = this.rules.subarray(4 + size);
    }
  }

  #add({ 1: text, 2: score = 0, 3: kind = NORMAL }) {
    const id = this.pieces.length, piece = decoder.decode(text);
    if (kind === UNKNOWN) this.unknownId = id;
    else if (kind === BYTE) this.bytes[parseInt(piece.slice(3, 5), 16)] = id;
    else if (kind !== CONTROL) this.ids.set(piece, id);
    this.pieces.push(piece); this.scores.push(score); this.kinds.push(kind);
  }

  #kind(piece) { return this.kinds[this.ids.get(piece)]; }

  #user(text, at) { return this.users.find((x) => text.startsWith(x, at)); }

  /** Returns the longest text at a place that a rule replaces, or a character, and its replacement. */
  #replaced(text, at) {
    const user = this.#user(text, at);
    if (user) return [user, user];
    let found = String.fromCodePoint(text.codePointAt(at)), replacement = found;
    if (!this.trie) return [found, replacement];
    const child = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = child(this.trie[0]), end = at, unit;
    while (end < text.length) {
      const character = String.fromCodePoint(text.codePointAt(end));
      for (const byte of encoder.encode(character)) {
        unit = this.trie[(node ^= byte)];
        if ((unit & 0x800000ff) !== byte) return [found, replacement];
        node ^= child(unit);
      }
      end += character.length;
      if (unit & 256) {
        const start = this.trie[node] & 0x7fffffff;
        found = text.slice(at, end);
        replacement = decoder.decode(this.replacements.subarray(start, this.replacements.indexOf(0, start)));
      }
    }
    return [found, replacement];
  }

  normalize(text) {
    const space = this.escapes ? SPACE : " ";
    let out = "", afterSpace = this.trims;
    for (let at = 0; at < text.length; ) {
      let [found, part] = this.#replaced(text, at);
      at += found.length;
      if (afterSpace) part = part.replace(/^ +/, "");
      if (part) afterSpace = this.trims && part.endsWith(" ");
      out += part;
    }
    if (this.addsSpace && !this.isSuffix && text) out = ` ${out}`;
    if (this.escapes) out = out.replaceAll(" ", SPACE);
    while (this.trims && out.endsWith(space)) out = out.slice(0, -1);
    return this.addsSpace && this.isSuffix && out ? out + space : out;
  }

  encode(text) {
    const ids = [];
    let wasUnknown = false; // Unknown neighbours are one unknown piece.
    for (const piece of this.#split(this.normalize(text))) {
      const id = this.ids.get(piece), isUnknown = id === undefined || this.kinds[id] === UNUSED;
      if (!isUnknown) ids.push(id);
      else if (this.hasBytes) for (const byte of encoder.encode(piece)) ids.push(this.bytes[byte]);
      else if (!wasUnknown) ids.push(this.unknownId);
      wasUnknown = isUnknown;
    }
    return ids;
  }

  #split(text) {
    if (this.type === UNIGRAM) return this.#mostProbable(text);
    if (this.type === WORDS) return text ? text.split(this.isSuffix ? /(?<=▁)/ : /(?=▁)/) : [];
    return this.#merged(text);
  }

  /** Returns the pieces with the highest sum of scores, in float32 as SentencePiece has it. */
  #mostProbable(text) {
    const best = new Float32Array(text.length + 1).fill(-Infinity), begins = [];
    best[0] = 0;
    const reach = (begin, end, score) => {
      if (!(best[begin] + score > best[end])) return;
      best[end] = best[begin] + score;
      begins[end] = begin;
    };
    for (let begin = 0, next; begin < text.length; begin = next) {
      next = begin + String.fromCodePoint(text.codePointAt(begin)).length;
      for (let end = next; end <= Math.min(text.length, begin + this.longest); end++) {
        const id = this.ids.get(text.slice(begin, end));
        if (id !== undefined) reach(begin, end, this.kinds[id] === USER ? -0.1 : this.scores[id]);
        else if (end === next) reach(begin, end, this.unknownScore);
      }
    }
    const pieces = [];
    for (let end = text.length; end > 0; end = begins[end]) pieces.push(text.slice(begins[end], end));
    return pieces.reverse();
  }

  /** Merges the neighbours with the highest score, of equal ones the first, until none is left. */
  #merged(text) {
    const parts = [], isUser = [], origins = new Map(); // of unused pieces, which are split again
    for (let at = 0; at < text.length; at += parts.at(-1).length) {
      const user = this.#user(text, at);
      parts.push(user ?? String.fromCodePoint(text.codePointAt(at))); isUser.push(!!user);
    }
    const scoreOf = (i) => {
      const id = i + 1 < parts.length && !isUser[i] && !isUser[i + 1] ? this.ids.get(parts[i] + parts[i + 1]) : undefined;
      if (this.kinds[id] === UNUSED) origins.set(this.pieces[id], [parts[i], parts[i + 1]]);
      return id === undefined ? -Infinity : this.scores[id];
    };
    const scores = this.type === BPE ? parts.map((_, i) => scoreOf(i)) : [];
    for (;;) {
      const best = scores.reduce((a, x, i) => (x > (scores[a] ?? -Infinity) ? i : a), -1);
      if (best < 0) break;
      parts.splice(best, 2, parts[best] + parts[best + 1]); isUser.splice(best, 1); scores.splice(best, 1);
      scores[best] = scoreOf(best);
      if (best > 0) scores[best - 1] = scoreOf(best - 1);
    }
    const split = (piece) => origins.get(piece)?.flatMap(split) ?? [piece];
    return parts.flatMap(split);
  }

  decode(ids) {
    let text = "", bytes = [];
    const flush = () => {
      while (bytes.length) { // An invalid byte becomes one replacement character.
        const size = bytes[0] < 128 ? 1 : bytes[0] < 224 ? 2 : bytes[0] < 240 ? 3 : 4;
        try { text += decoder.decode(Uint8Array.from(bytes.slice(0, size))); bytes.splice(0, size); }
        catch { text += "\ufffd"; bytes.shift(); }
      }
    };
    let isFirst = true; // until the first piece that shows, or has the space that was added
    for (const id of ids) {
      const kind = this.kinds[id];
      let piece = this.pieces[id], isSpaced = false;
      if (kind === BYTE) { bytes.push(parseInt(piece.slice(3, 5), 16)); continue; }
      flush();
      isFirst &&= !text;
      if (kind === CONTROL) continue;
      if (kind === UNKNOWN) piece = decoder.decode(this.unknownText);
      else if (isFirst && !this.isSuffix && (this.addsSpace || this.trims) && piece.startsWith(SPACE)) {
        piece = piece.slice(1);
        isSpaced = !this.trims;
      }
      if (isSpaced) isFirst = false;
      text += piece.replaceAll(SPACE, " ");
    }
    flush();
    return text;
  }
}

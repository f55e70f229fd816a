/** The parts of a line of Markdown: code, emphasis, links. Gives nodes and strings, never HTML. */

import { h } from "./dom.js";

const MAX_DEPTH = 8;

/** In the order in which they are tried at a position. */
const RULES = [
  { pattern: /^\\([\\`*_{}[\]()#+\-.!|~<>])/, node: ([, char]) => char },
  { pattern: /^(`+)(.+?)(?<!`)\1(?!`)/s, node: ([, , code]) => h("code", {}, code.replace(/^ (.*) $/s, "$1")) },
  { pattern: /^!?\[((?:[^[\]\\]|\\.)*)\]\(\s*<?([^\s()<>]+(?:\([^\s()<>]*\)[^\s()<>]*)?)>?(?:\s+"[^"]*")?\s*\)/s, node: link },
  { pattern: /^<(https?:\/\/[^\s<>]+)>/, node: ([, url]) => anchor(url, [url]) },
  { pattern: /^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_]/, startsWord: true, node: ([url]) => anchor(url, [url]) },
  { pattern: /^\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\*)/s, node: ([, text], depth) => h("strong", {}, ...inline(text, depth)) },
  { pattern: /^__(?=\S)(.+?)(?<=\S)__(?!\w)/s, startsWord: true, node: ([, text], depth) => h("strong", {}, ...inline(text, depth)) },
  { pattern: /^~~(?=\S)(.+?)(?<=\S)~~/s, node: ([, text], depth) => h("del", {}, ...inline(text, depth)) },
  { pattern: /^\*(?=[^\s*])((?:[^*]|\*\*[^*]+\*\*)+?)(?<=\S)\*(?!\*)/s, node: ([, text], depth) => h("em", {}, ...inline(text, depth)) },
  { pattern: /^_(?=\S)([^_]+?)(?<=\S)_(?!\w)/s, startsWord: true, node: ([, text], depth) => h("em", {}, ...inline(text, depth)) },
  { pattern: /^ *(?: {2}|\\)\n/, node: () => h("br") },
  { pattern: /^\n/, node: () => h("br") },
];
const SPECIAL = /[\\`!<*_~[\n ]|https?:/g;

/** Nodes and strings of a piece of text. */
export function inline(text, depth = 0) {
  if (depth >= MAX_DEPTH) return [text];
  const parts = [];
  let plain = "";
  let at = 0;
  while (at < text.length) {
    const found = match(text, at, depth);
    if (found) {
      if (typeof found.node === "string") plain += found.node;
      else {
        if (plain) parts.push(plain);
        plain = "";
        parts.push(found.node);
      }
      at += found.length;
      continue;
    }
    SPECIAL.lastIndex = at + 1;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
  }
  if (plain) parts.push(plain);
  return parts;
}

function match(text, at, depth) {
  const rest = text.slice(at);
  const followsWord = at > 0 && /\w/.test(text[at - 1]);
  for (const { pattern, startsWord, node } of RULES) {
    if (startsWord && followsWord) continue;
    const found = pattern.exec(rest);
    if (found) return { node: node(found, depth + 1), length: found[0].length };
  }
  return null;
}

/** A link, or an image's text: nothing is fetched from elsewhere. */
function link([source, label, url], depth) {
  return /^(https?:|mailto:)/i.test(url) ? anchor(url, inline(label || url, depth)) : source;
}

const anchor = (url, children) => h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);

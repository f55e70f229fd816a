/**
 * Markdown as DOM nodes, for text that nobody vouches for: every piece of it ends up in a text node,
 * and HTML in it is shown as it is written.
 */

import { copyButton, h } from "./dom.js";
import { inline } from "./markdown_inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const MAX_DEPTH = 12;
const TABLE_RULE = /^ *\|?(?: *:?-+:? *\|)+ *(?::?-+:?)? *$/;

/**
 * Shows a text in an element, and keeps the blocks that have not changed since the last time: a
 * streamed answer only ever changes at its end.
 */
export function renderMarkdown(element, text) {
  const blocks = split(text);
  const shown = element.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < shown.length && blocks[same] === shown[same]) same += 1;
  while (element.childNodes.length > same) element.lastChild.remove();
  element.append(...renderBlocks(blocks.slice(same), 0));
  element.shownBlocks = blocks;
}

/** The sources of the blocks of a text. */
export function split(text) {
  const lines = text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const end = blockEnd(lines, at);
    blocks.push(lines.slice(at, end).join("\n"));
    at = end;
  }
  return blocks;
}

function blockEnd(lines, start) {
  const fence = FENCE.exec(lines[start]);
  if (fence) return fenceEnd(lines, start, fence[1]);
  if (HEADING.test(lines[start]) || RULE.test(lines[start])) return start + 1;
  if (QUOTE.test(lines[start])) return endWhere(lines, start, (line) => !line.trim());
  if (ITEM.test(lines[start])) return listEnd(lines, start);
  return endWhere(lines, start, (line) => !line.trim() || opensBlock(line));
}

const opensBlock = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || /^ {0,3}(?:[-*+]|1[.)]) /.test(line);

function endWhere(lines, start, isEnd) {
  let at = start + 1;
  while (at < lines.length && !isEnd(lines[at])) at += 1;
  return at;
}

/** Behind the closing fence; an open one, as in an answer that still grows, goes on to the end. */
function fenceEnd(lines, start, mark) {
  const closing = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const end = endWhere(lines, start, (line) => closing.test(line));
  return Math.min(end + 1, lines.length);
}

function listEnd(lines, start) {
  let at = start + 1;
  while (at < lines.length) {
    const fence = /^ +/.test(lines[at]) && FENCE.exec(lines[at].trimStart());
    if (fence) {
      at = fenceEnd(lines.map((line) => line.trimStart()), at, fence[1]);
      continue;
    }
    const isBlank = !lines[at].trim();
    const next = isBlank ? lines.slice(at).find((line) => line.trim()) : lines[at];
    if (next === undefined) return at;
    const goesOn = ITEM.test(next) || /^ {2,}/.test(next) || (!isBlank && !opensBlock(next));
    if (!goesOn || RULE.test(next)) return at;
    at += 1;
  }
  return at;
}

/** Quotes and lists may be nested as deep as people do it; what is deeper is plain text. */
const renderBlocks = (blocks, depth) => (depth > MAX_DEPTH ? blocks : blocks.map((block) => renderBlock(block, depth + 1)));

function renderBlock(source, depth) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return codeBlock(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) return h(`h${Math.min(heading[1].length + 2, 6)}`, {}, ...inline(heading[2]));
  if (RULE.test(source)) return h("hr");
  if (QUOTE.test(lines[0])) {
    const inner = lines.map((line) => QUOTE.exec(line)?.[1] ?? line).join("\n");
    return h("blockquote", {}, ...renderBlocks(split(inner), depth));
  }
  if (ITEM.test(lines[0])) return list(lines, depth);
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return table(lines);
  return h("p", {}, ...inline(source));
}

function codeBlock(lines, fence) {
  const isClosed = lines.length > 1 && lines.at(-1).trim().startsWith(fence[1]);
  const code = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const head = h("figcaption", {}, h("span", {}, fence[2]), copyButton(() => code));
  return h("figure", { class: "code" }, head, h("pre", { tabIndex: 0 }, h("code", {}, code)));
}

function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(marker);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[3]]);
    else items.at(-1).push(line.replace(/^ {1,4}/, ""));
  }
  const isLoose = lines.some((line) => !line.trim());
  const element = h(isOrdered ? "ol" : "ul", {}, ...items.map((item) => listItem(item, isLoose, depth)));
  if (isOrdered && parseInt(marker, 10) !== 1) element.start = parseInt(marker, 10);
  return element;
}

function listItem(lines, isLoose, depth) {
  const nodes = renderBlocks(split(lines.join("\n")), depth);
  const isTight = (node) => node.tagName === "P" && !isLoose;
  return h("li", {}, ...nodes.flatMap((node) => (isTight(node) ? [...node.childNodes] : [node])));
}

function table(lines) {
  const aligns = cells(lines[1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : "left"));
  const row = (line, tag) =>
    h("tr", {}, ...cells(line).map((cell, i) => h(tag, { class: `to-${aligns[i] ?? "left"}` }, ...inline(cell))));
  const body = lines.slice(2).map((line) => row(line, "td"));
  return h("div", { class: "table" }, h("table", {}, h("thead", {}, row(lines[0], "th")), h("tbody", {}, ...body)));
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||(?<!\\)\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

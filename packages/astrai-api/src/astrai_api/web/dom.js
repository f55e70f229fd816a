/** Builds elements. Text always goes in as text: nothing here, or anywhere, parses HTML. */

/**
 * An element with properties and children.
 * @param {string} tag
 * @param {Object} [properties] `on*` are listeners, `class` and `aria-*` attributes, others set as they are.
 * @param {...(Node|string|null|undefined|false)} children
 */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG, where everything is an attribute. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child || child === 0));
  return element;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class" || name === "for" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child || child === 0));
  return element;
}

/** The element of an id that the page has. */
export const byId = (id) => document.getElementById(id);

/** Copies text, also where the clipboard API is kept from plain HTTP. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", { value: text, class: "offscreen" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies and says so for a moment. */
export function copyButton(getText, label = "Copy") {
  const button = h("button", { type: "button", class: "link", onclick: copy }, label);
  async function copy() {
    await copyText(getText());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}

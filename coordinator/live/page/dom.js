// Elements. Text goes in as text nodes only: whatever a prompt or a token holds, it stays text.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for drawings. */
export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** Sets text only where it changed, so that nothing is announced or laid out for nothing. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows what went wrong; an empty text hides it. */
export function complain(text) {
  say($("alert"), text);
  $("alert").hidden = !text;
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/**
 * Makes elements.
 *
 * No function takes HTML. A text from an object is always a text node, so it never becomes markup.
 */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | EventListener>} Attributes */

/**
 * Return a new element. An attribute `on…` is a listener. An attribute that is null, undefined or
 * false is left out. The policy of the page forbids the attribute `style`.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes} attributes
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * Return a new element of SVG.
 *
 * @param {string} tag
 * @param {Attributes} attributes
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...present(children));
  return element;
}

/**
 * Replace the children of an element.
 *
 * @param {Element} element
 * @param {...Child} children
 */
export function replace(element, ...children) {
  element.replaceChildren(...present(children));
}

/**
 * Put the elements in this order below *parent*, and remove all others. An element that is in its
 * place already is not moved, so that it keeps the focus.
 *
 * @param {Element} parent
 * @param {Element[]} elements
 */
export function arrange(parent, elements) {
  const kept = new Set(elements);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  elements.forEach((element, index) => {
    if (parent.children[index] !== element) {
      parent.insertBefore(element, parent.children[index] ?? null);
    }
  });
}

function present(children) {
  return children.filter((child) => child !== null && child !== undefined && child !== false);
}

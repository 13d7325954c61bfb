/** Shows a dialog, and returns what the user answers. */

import { h } from "./dom.js";

/**
 * Return a labelled field for `ask`.
 * @param attributes `name` names the answer
 */
export function field(label, attributes) {
  return h("label", {}, h("span", {}, label), h("input", attributes));
}

/**
 * Ask a question.
 * @param [question.content] fields, and what else the dialog shows
 * @param question.button the button that agrees
 * @param [question.isReady] whether the values of the fields allow the button
 */
export function ask({ title, text = "", content = [], button, isDestructive, isReady }) {
  const agree = h("button", { type: "submit", class: isDestructive ? "danger" : "primary" }, button);
  const form = h("form", {}, text && h("p", {}, text), ...content);
  const values = () => Object.fromEntries(new FormData(form));
  const update = () => { agree.disabled = isReady !== undefined && !isReady(values()); };
  return opened(title, form, [agree], (close) => {
    form.addEventListener("input", update);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!agree.disabled) close(values());
    });
    update();
  });
}

/** Show something until the user closes it. */
export function show({ title, content }) {
  return opened(title, h("form", {}, content), [], () => {});
}

function opened(title, form, buttons, prepare) {
  const focused = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, heading, form);
  return new Promise((resolve) => {
    const close = (value) => {
      resolve(value);
      dialog.close();
    };
    const label = buttons.length ? "Cancel" : "Close";
    const cancel = h("button", { type: "button", onclick: () => close(null) }, label);
    form.append(h("p", { class: "buttons" }, cancel, ...buttons));
    prepare(close);
    dialog.addEventListener("close", () => {
      resolve(null); // Esc; a value that was given before stays
      dialog.remove();
      if (focused instanceof HTMLElement && focused.isConnected) focused.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

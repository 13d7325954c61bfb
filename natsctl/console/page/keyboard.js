/** Decides what a pressed key does. */

export const SHORTCUTS = [
  ["/", "search"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["Space", "select the row"],
  ["r", "resync the selected keys, or the key of the page"],
  ["?", "show this help"],
  ["Esc", "close a dialog, or leave the search"],
];

/**
 * Call the method of *commands* for each shortcut that is pressed outside of a field and a dialog.
 *
 * @param {{search: () => void, move: (step: number) => void, resync: () => void,
 *   help: () => void}} commands
 */
export function listen(commands) {
  const actions = {
    "/": () => commands.search(),
    j: () => commands.move(1),
    k: () => commands.move(-1),
    r: () => commands.resync(),
    "?": () => commands.help(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isField(event.target)) event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) {
      return;
    }
    const action = isField(event.target) ? undefined : actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
}

function isField(element) {
  const isBox = element instanceof HTMLInputElement && element.type === "checkbox";
  return !isBox && element instanceof Element && element.matches("input, textarea, select");
}

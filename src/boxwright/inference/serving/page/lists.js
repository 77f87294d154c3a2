// Lists that arrows move in, of which Tab reaches one entry.

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

// Make the options of a listbox reachable: one by Tab, the others by arrows, Home and End. `reached` is called with each.
export function roving(list, reached) {
  list.addEventListener("keydown", (event) => {
    const all = [...list.querySelectorAll("[role=option]")];
    const now = all.indexOf(document.activeElement);
    const wanted = { Home: 0, End: all.length - 1 }[event.key] ?? (event.key in STEPS ? now + STEPS[event.key] : -1);
    if (now < 0 || wanted < 0 || wanted >= all.length) return;
    event.preventDefault();
    reach(list, all[wanted]);
    all[wanted].focus();
  });
  list.addEventListener("focusin", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) reached(option);
  });
}

export function reach(list, option) {
  for (const one of list.querySelectorAll("[role=option]")) one.tabIndex = one === option ? 0 : -1;
}

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function swatch(color) {
  const made = element("span", { className: "swatch", ariaHidden: "true" });
  made.style.background = color;
  return made;
}

export const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

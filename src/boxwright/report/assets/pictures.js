"use strict";
// Pictures with boxes: cards in pages, and the viewer of one image.
function box(kind, [x, y, width, height]) {
  return shape("rect", { class: `box ${kind}`, x, y, width, height });
}

// An image's copy, or a plain area where there is none.
function picture({ width, height, file }) {
  if (!file) return shape("rect", { width, height, fill: "var(--line)" });
  return shape("image", { width, height, href: file, preserveAspectRatio: "none" });
}

// The square around some boxes, larger by a factor, as an SVG's viewBox.
function around(boxes, larger) {
  const x0 = Math.min(...boxes.map((one) => one[0])), y0 = Math.min(...boxes.map((one) => one[1]));
  const x1 = Math.max(...boxes.map((one) => one[0] + one[2])), y1 = Math.max(...boxes.map((one) => one[1] + one[3]));
  const side = Math.max(larger * Math.max(x1 - x0, y1 - y0), 24);
  return [(x0 + x1 - side) / 2, (y0 + y1 - side) / 2, side, side].join(" ");
}

function card(svg, texts, open) {
  return element("button", { type: "button", class: "card", onclick: open }, svg, ...texts.map((text) => element("span", {}, text)));
}

// A list of cards in pages of at most so many; `draw` makes one item's card.
function pager(names, most, draw) {
  let items = [], page = 0;
  const pages = () => Math.max(Math.ceil(items.length / most), 1);
  function show() {
    const start = page * most;
    $(names.host).replaceChildren(...items.slice(start, start + most).map((item, n) => draw(item, start + n)));
    $(names.page).textContent = `page ${page + 1} of ${pages()}`;
    $(names.before).disabled = page === 0;
    $(names.after).disabled = page + 1 >= pages();
  }
  const turn = (by) => { page = Math.min(Math.max(page + by, 0), pages() - 1); show(); };
  $(names.before).addEventListener("click", () => turn(-1));
  $(names.after).addEventListener("click", () => turn(1));
  return { set(next) { items = next; page = 0; show(); }, get items() { return items; } };
}

const viewer = $("viewer");
function openViewer(svg, caption) {
  viewer.querySelector(".stage").replaceChildren(svg);
  viewer.querySelector(".caption").textContent = caption;
  if (!viewer.open) viewer.showModal();
}

// Arrow keys in the viewer: `next` takes -1 or 1, and returns whether there is something to show there.
function onArrows(next) {
  viewer.addEventListener("keydown", (key) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[key.key];
    if (by && next(by)) key.preventDefault();
  });
}

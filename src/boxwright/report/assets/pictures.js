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

// Call a function once an element is near what is seen of the page.
function whenSeen(element, call) {
  const watching = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watching.disconnect();
    call();
  }, { rootMargin: "200px" });
  watching.observe(element);
}

// Texts beside the boxes of a drawing, of one size on the screen whatever the drawing's; none covers another. One that
// has no place is left out: the box's tooltip has it.
const LETTERS = 12;
function placeLabels(svg) {
  svg.querySelectorAll(".label").forEach((one) => one.remove());
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const scale = svg.getScreenCTM()?.a;
  if (!scale) return;
  const size = LETTERS / scale, pad = size * 0.25, tall = size * 1.3, taken = [];
  for (const { text, box: [x, y, w, h], kind } of svg.labels || []) {
    const written = shape("text", { "font-size": size }, text);
    const label = shape("g", { class: `label ${kind}` }, shape("rect", {}), written);
    svg.append(label);
    const wide = written.getComputedTextLength() + 2 * pad;
    const inside = (left) => Math.min(Math.max(left, 0), Math.max(width - wide, 0));
    const places = [x, x + w - wide].flatMap((left) => [y - tall, y, y + h, y + h - tall].map((top) => [inside(left), top]));
    const free = places.find(([left, top]) => top >= 0 && top + tall <= height && !taken.some(([l, t, r, b]) => left < r && left + wide > l && top < b && top + tall > t));
    if (!free) { label.remove(); continue; }
    const [left, top] = free;
    taken.push([left, top, left + wide, top + tall]);
    for (const [name, value] of Object.entries({ x: left, y: top, width: wide, height: tall, rx: pad })) label.firstChild.setAttribute(name, value);
    written.setAttribute("x", left + pad);
    written.setAttribute("y", top + size);
  }
}
addEventListener("resize", () => document.querySelectorAll("svg").forEach((svg) => svg.labels && placeLabels(svg)));

// A list of cards in pages of at most so many; `draw` makes one item's card. Without items there is nothing to turn.
function pager(names, most, draw) {
  let items = [], page = 0;
  const pages = () => Math.max(Math.ceil(items.length / most), 1);
  function show() {
    const start = page * most;
    $(names.host).replaceChildren(...items.slice(start, start + most).map((item, n) => draw(item, start + n)));
    $(names.page).textContent = items.length ? `page ${page + 1} of ${pages()}` : "nothing to show";
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
  placeLabels(svg);
}

// Arrow keys in the viewer: `next` takes -1 or 1, and returns whether there is something to show there.
function onArrows(next) {
  viewer.addEventListener("keydown", (key) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[key.key];
    if (by && next(by)) key.preventDefault();
  });
}

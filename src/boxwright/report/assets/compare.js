"use strict";
// Curves of two evaluations, and the objects that only one of them finds.
const MOST = 60;
const { comparison } = report.data;
const names = ["first", "second"];
const recalls = [...Array(101).keys()].map((n) => n / 100);
lineChart($("pr"), names.map((name, n) => ({ name, x: recalls, y: comparison.mean[n][0] || [] })), { x: "recall", y: "precision" });
lineChart($("scores"), names.map((name, n) => ({ name, x: comparison.grid, y: comparison.f1[n] })), { x: "score", y: "F1" });

function picture(image) {
  const [, width, height, file] = comparison.images[image];
  return file ? shape("image", { href: file, width, height, preserveAspectRatio: "none" }) : shape("rect", { width, height, fill: "var(--line)" });
}
const rect = (kind, [x, y, width, height]) => shape("rect", { class: `box ${kind}`, x, y, width, height });

function card(columns, n) {
  const object = columns.object.slice(4 * n, 4 * n + 4), box = columns.box.slice(4 * n, 4 * n + 4);
  const image = columns.image[n], text = `${comparison.classes[columns.truth[n]]} ${columns.score[n]}`;
  const side = Math.max(1.6 * Math.max(object[2], object[3]), 24);
  const view = [object[0] + (object[2] - side) / 2, object[1] + (object[3] - side) / 2, side, side];
  const svg = shape("svg", { viewBox: view.join(" ") }, picture(image), rect("truth", object), rect("right", box));
  const open = () => {
    const [name, width, height] = comparison.images[image];
    const whole = shape("svg", { viewBox: `0 0 ${width} ${height}` }, picture(image), rect("truth", object), rect("right", box));
    $("viewer").querySelector(".stage").replaceChildren(whole);
    $("viewer").querySelector(".caption").textContent = `${text} in ${name}`;
    $("viewer").showModal();
  };
  return element("button", { type: "button", class: "card", onclick: open }, svg, element("span", {}, text));
}

let page = 0;
function show() {
  const columns = comparison.events[$("which").value], pages = Math.max(Math.ceil(columns.id.length / MOST), 1);
  page = Math.min(Math.max(page, 0), pages - 1);
  const shown = columns.id.map((_, n) => n).slice(page * MOST, (page + 1) * MOST);
  $("gallery").replaceChildren(...shown.map((n) => card(columns, n)));
  $("page").textContent = `page ${page + 1} of ${pages}`;
  $("before").disabled = page === 0;
  $("after").disabled = page + 1 >= pages;
}
$("which").addEventListener("change", () => { page = 0; show(); });
$("before").addEventListener("click", () => { page -= 1; show(); });
$("after").addEventListener("click", () => { page += 1; show(); });
show();

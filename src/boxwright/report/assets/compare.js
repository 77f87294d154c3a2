"use strict";
// Curves of two evaluations, and the objects that only one of them finds.
const { comparison } = report.data;
const names = ["first", "second"];
const recalls = [...Array(101).keys()].map((n) => n / 100);
lineChart($("pr"), names.map((name, n) => ({ name, x: recalls, y: comparison.mean[n][0] || [] })), { x: "recall", y: "precision" });
lineChart($("scores"), names.map((name, n) => ({ name, x: comparison.grid, y: comparison.f1[n] })), { x: "confidence threshold", y: "F1" });

function drawing(event, viewBox) {
  const [, width, height, file] = comparison.images[event.image];
  return shape("svg", { viewBox: viewBox || `0 0 ${width} ${height}` }, picture({ width, height, file }), box("truth", event.object), box("right", event.box));
}

const text = (event) => `${comparison.classes[event.truth]} ${event.score}`;
let current = null;
function look(place) {
  const event = objects.items[place];
  if (event === undefined) return false;
  current = place;
  openViewer(drawing(event), `${text(event)} in ${comparison.images[event.image][0]}`);
  return true;
}
onArrows((by) => look(current + by));

const objects = pager({ host: "gallery", page: "page", before: "before", after: "after" }, 60, (event, place) => card(drawing(event, around([event.object], 1.6)), [text(event)], () => look(place)));
function show() {
  const columns = comparison.events[$("which").value];
  objects.set(columns.id.map((_, n) => ({
    image: columns.image[n],
    truth: columns.truth[n],
    score: columns.score[n],
    object: columns.object.slice(4 * n, 4 * n + 4),
    box: columns.box.slice(4 * n, 4 * n + 4),
  })));
}
$("which").addEventListener("change", show);
show();

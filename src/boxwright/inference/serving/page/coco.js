// Detections as a COCO file, which annotation tools and `boxwright` read as a data set; each has its score beside.

import { LEAST_POINT } from "./draw.js";
import { area } from "./masks.js";

// `pictures` have a name, a size and the objects to write.
export function coco(classes, pictures) {
  const images = pictures.map((one, number) => ({ id: number + 1, file_name: one.name, width: one.width, height: one.height }));
  const annotations = pictures.flatMap((one, number) => one.objects.map((object) => annotation(object, number + 1)));
  annotations.forEach((one, number) => { one.id = number + 1; });
  const known = new Map(classes.map((one) => [one.id, category(one)]));
  // A model whose classes are unknown has numbers alone.
  for (const one of pictures.flatMap((picture) => picture.objects)) {
    if (!known.has(one.class_id)) known.set(one.class_id, { id: one.class_id, name: one.class });
  }
  return { images, annotations, categories: [...known.values()] };
}

function category(one) {
  return { id: one.id, name: one.name, ...(one.keypoints.length ? { keypoints: one.keypoints, skeleton: [] } : {}) };
}

function annotation(one, image) {
  const [left, top, right, bottom] = one.box;
  const size = [right - left, bottom - top].map((side) => Number(side.toFixed(2)));
  const row = {
    id: 0, image_id: image, category_id: one.class_id, bbox: [left, top, ...size],
    area: one.segmentation ? area(one.segmentation) : Number((size[0] * size[1]).toFixed(2)), iscrowd: 0, score: one.score,
  };
  if (one.segmentation) row.segmentation = one.segmentation;
  if (one.keypoints) {
    const points = one.keypoints.map(([x, y, score]) => (score === undefined || score >= LEAST_POINT ? [x, y, 2] : [0, 0, 0]));
    row.keypoints = points.flat();
    row.num_keypoints = points.filter((point) => point[2]).length;
  }
  return row;
}

export function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Not at once: some browsers read it only after this.
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

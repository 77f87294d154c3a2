// COCO's run lengths.

// The lengths of an object's runs, of 0 and 1 in turn, down the columns; from COCO's text or from a list.
export function runs(counts) {
  if (typeof counts !== "string") return counts;
  const lengths = [];
  for (let place = 0; place < counts.length; ) {
    let value = 0, shift = 0, more = true;
    while (more) {
      const code = counts.charCodeAt(place++) - 48;
      // Five bits each, the lowest first; 32 says that more follow, and 16 in the last one that it is negative.
      value += (code & 31) * 2 ** shift;
      shift += 5;
      more = (code & 32) !== 0;
      if (!more && code & 16) value -= 2 ** shift;
    }
    // From the fourth on, the difference to the length before the last is stored.
    if (lengths.length > 2) value += lengths[lengths.length - 2];
    lengths.push(value);
  }
  return lengths;
}

// Tint an object's pixels in RGBA pixels of `width` columns, which show the mask at `scale`.
export function tint(pixels, width, mask, scale, color, share) {
  const height = mask.size[0], rows = pixels.length / 4 / width;
  let at = 0, inside = false;
  for (const length of runs(mask.counts)) {
    for (let place = at; inside && place < at + length; ) {
      const column = Math.floor(place / height), first = place % height;
      const last = Math.min(first + at + length - place, height);
      paint(pixels, width, rows, [column, column + 1, first, last].map((side) => Math.round(side * scale)), color, share);
      place += last - first;
    }
    at += length;
    inside = !inside;
  }
}

function paint(pixels, width, rows, [left, right, top, bottom], color, share) {
  for (let y = top; y < Math.min(bottom, rows); y++) {
    for (let x = left; x < Math.min(right, width); x++) {
      const place = 4 * (y * width + x);
      for (let channel = 0; channel < 3; channel++) {
        pixels[place + channel] = pixels[place + channel] * (1 - share) + color[channel] * share;
      }
    }
  }
}

// How many pixels a mask has.
export function area(mask) {
  return runs(mask.counts).reduce((sum, length, number) => sum + (number % 2 ? length : 0), 0);
}

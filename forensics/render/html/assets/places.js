"use strict";
// What a zoom shows of the places: one for each pixel at most. A pixel keeps the lowest and the highest
// value of its places, and draws the median of their middles. Around a finding each row has a place of its
// own: drawn one over the other, such rows would look like a burst of noise beside the medians of many.
const Places = (() => {
  const { placeOf } = Axes;

  class View {
    // The places of `step` from one step to another, over `width` pixels; one beside each end, for the lines.
    constructor(step, from, to, width) {
      this.starts = [];
      const last = Math.min(placeOf(step, to) + 1, step.length - 1);
      let column = null;
      for (let i = Math.max(placeOf(step, from) - 1, 0); i <= last; i++) {
        const at = Math.floor(((step[i] - from) / (to - from || 1)) * width);
        if (at !== column) this.starts.push(i);
        column = at;
      }
      this.end = last + 1;
      this.step = this.starts.map((i) => step[i]);
    }

    // The places of one pixel: the first, and the one after its last.
    range(idx) {
      return [this.starts[idx], idx + 1 < this.starts.length ? this.starts[idx + 1] : this.end];
    }

    // A column of all places as one of this view.
    gather(values, pick) {
      return this.starts.map((_, idx) => pick(values, ...this.range(idx)));
    }

    // The first place of the pixel beside the one that holds a place; the next place where the view ends.
    beside(place, sideways) {
      const idx = placeOf(this.starts, place) + sideways;
      const inside = place >= this.starts[0] && place < this.end && idx >= 0 && idx < this.starts.length;
      return inside ? this.starts[idx] : place + sideways;
    }
  }

  const pickBy = (better) => (values, first, end) => {
    let found = null;
    for (let i = first; i < end; i++) {
      if (values[i] != null && (found == null || better(values[i], found))) found = values[i];
    }
    return found;
  };

  function median(values, first, end) {
    if (end - first === 1) return values[first];
    const there = values.slice(first, end).filter((value) => value != null).sort((a, b) => a - b);
    return there.length ? there[there.length >> 1] : null;
  }

  return { View, lowest: pickBy((a, b) => a < b), highest: pickBy((a, b) => a > b), median };
})();

"use strict";
// One chart: lines, marks and limits, drawn by uPlot, and a legend that tells the values.
const Panel = (() => {
  const PICKS = { high: Places.highest, low: Places.lowest, middle: Places.median };
  const { whole, written, scaleWritten, powerWritten, tickWritten, tidy, layoutOf, heightOf, placeOf } = Axes;
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 4], [1, 4]];
  const GLYPHS = { growth: "▲", backoff: "▼", skip: "┃", "not-positive": "○", routine: "╵" };
  const WORDS = { growth: "growth", backoff: "backoff", skip: "skipped", "not-positive": "0 or less" };
  const COLOURS = { growth: "--c3", backoff: "--c2", skip: "--critical", "not-positive": "--quiet", routine: "--quiet" };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  class Panel {
    constructor(run, chart, figure) {
      this.run = run;
      this.chart = chart;
      this.layout = layoutOf(chart);
      this.written = chart.layout === "log2" ? scaleWritten : written;
      this.ticked = chart.layout === "log2" ? powerWritten : (h) => tickWritten(tidy(this.layout.down(h)));
      this.box = figure.querySelector(".plot");
      this.events = eventsOf(run.data.step, chart.marks);
      this.columns = this.makeColumns();
      this.flat = chart.series.every((one) => flatIn(one.middle) && flatIn(one.high || []));
      this.makeLegend(figure);
      this.plot = new uPlot(this.options(), this.viewed(), this.box);
      this.listen();
    }

    get height() {
      const small = this.chart.name === "skips" || this.chart.name === "lr";
      const tall = this.flat ? 90 : small ? 140 : 190;
      return this.box.clientWidth < 560 ? Math.round(tall * 0.9) : tall;
    }

    get margin() {
      return window.matchMedia("(max-width:40rem)").matches ? 52 : 64;
    }

    // The heights of all places: of each series its highest, lowest and middle values.
    makeColumns() {
      const columns = [];
      for (const series of this.chart.series) {
        if (series.high) {
          for (const part of ["high", "low"]) series[part] = series[part].map((v, i) => v ?? series.middle[i]);
        } else if (this.run.crowded && !series.sparse) series.high = series.low = series.middle;
        for (const part of ["high", "low", "middle"]) {
          if (series[part]) columns.push([series[part].map((v) => heightOf(this.layout, v)), PICKS[part]]);
        }
      }
      return columns;
    }

    // What is drawn of them: a place a pixel.
    viewed() {
      const { view } = this.run;
      return [view.step, ...this.columns.map(([heights, pick]) => view.gather(heights, pick))];
    }

    options() {
      const series = [{}];
      const bands = [];
      this.chart.series.forEach((one, place) => {
        const stroke = () => colour(`--c${place + 1}`);
        const faint = { stroke: () => colour(`--c${place + 1}`) + "59", width: 1, points: { show: false } };
        if (one.high) {
          bands.push({ series: [series.length, series.length + 1], fill: () => colour(`--c${place + 1}`) + "2e" });
          series.push({ ...faint }, { ...faint });
        }
        series.push(
          one.sparse
            ? { stroke, paths: () => null, points: { show: true, size: 7, fill: stroke } }
            : { stroke, width: 1.6, dash: DASHES[place], points: { size: 5, fill: stroke } },
        );
      });
      const axis = {
        stroke: () => colour("--quiet"),
        font: "12px system-ui, sans-serif",
        grid: { stroke: () => colour("--grid"), width: 1 },
        ticks: { stroke: () => colour("--grid"), width: 1, size: 5 },
      };
      return {
        width: this.box.clientWidth,
        height: this.height,
        padding: [10, 12, 0, 0],
        legend: { show: false },
        cursor: {
          sync: { key: this.run.key },
          drag: { x: true, y: false, setScale: true },
          focus: { prox: -1 },
          points: { size: 8, fill: (u, i) => u.series[i].stroke(u, i) },
        },
        scales: { x: { time: false }, y: { range: (u, low, high) => this.range(low, high) } },
        series,
        bands,
        axes: [
          {
            ...axis,
            size: 30,
            space: 60,
            incrs: [1, 2, 5].flatMap((m) => [...Array(14).keys()].map((k) => m * 10 ** k)).sort((a, b) => a - b),
            values: (u, splits) => splits.map(whole),
          },
          {
            ...axis,
            size: () => this.margin,
            splits: (u, i, low, high) => (this.only == null ? this.layout.ticks(low, high) : [this.only]),
            values: (u, splits) => splits.map(this.ticked),
          },
        ],
        hooks: {
          drawClear: [(u) => this.drawNonfinite(u)],
          draw: [(u) => this.drawLimits(u), (u) => this.drawMarks(u)],
          setCursor: [(u) => this.tell(u.cursor.idx)],
          setScale: [(u, key) => key === "x" && this.run.follow(u.scales.x.min, u.scales.x.max)],
        },
      };
    }

    range(low, high) {
      this.only = low != null && low === high ? low : null;
      if (low == null || high == null) return [0, 1];
      const wide = high - low;
      for (const limit of this.chart.limits) {
        const height = heightOf(this.layout, limit.value);
        if (height < low && low - height <= 0.6 * wide) low = height;
        if (height > high && height - high <= 0.6 * wide) high = height;
      }
      const flat = this.chart.layout === "linear" ? Math.abs(low) * 0.1 || 1 : 0.3;
      const more = high > low ? (high - low) * 0.06 : flat;
      const zero = this.chart.name === "skips" && low >= 0;
      return [zero ? 0 : low - more, high + more];
    }

    drawNonfinite(u) {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      let free = -Infinity;
      for (const [first, last, , value] of this.chart.nonfinite) {
        const left = u.valToPos(first - 0.5, "x", true);
        const right = Math.max(u.valToPos(last + 0.5, "x", true), left + 3 * devicePixelRatio);
        if (right < bbox.left || left > bbox.left + bbox.width) continue;
        ctx.fillStyle = colour("--critical") + "30";
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.fillStyle = colour("--critical");
        ctx.textAlign = "left";
        ctx.textBaseline = "alphabetic";
        ctx.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
        const edge = Math.max(left, bbox.left) + 4 * devicePixelRatio;
        const width = ctx.measureText(value).width;
        const room = bbox.left + bbox.width - width - 4 * devicePixelRatio;
        if (edge > free) {
          ctx.fillText(value, Math.min(edge, room), bbox.top + 14 * devicePixelRatio);
          free = edge + width + 8 * devicePixelRatio;
        }
      }
      ctx.restore();
    }

    drawLimits(u) {
      const { ctx, bbox } = u;
      for (const limit of this.chart.limits) {
        const height = heightOf(this.layout, limit.value);
        const y = u.valToPos(height, "y", true);
        if (!(y >= bbox.top && y <= bbox.top + bbox.height)) continue;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = colour("--quiet");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
        ctx.textAlign = "right";
        ctx.textBaseline = "alphabetic";
        ctx.fillText(limit.label, bbox.left + bbox.width - 3 * devicePixelRatio, y - 4 * devicePixelRatio);
        ctx.restore();
      }
    }

    drawMarks(u) {
      const { ctx, bbox } = u;
      const size = 4.5 * devicePixelRatio;
      const bottom = bbox.top + bbox.height;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top - size, bbox.width, bbox.height + 2 * size);
      ctx.clip();
      for (const marks of this.chart.marks) {
        ctx.fillStyle = ctx.strokeStyle = colour(COLOURS[marks.kind]);
        ctx.lineWidth = 1.4 * devicePixelRatio;
        marks.step.forEach((step, i) => {
          const x = u.valToPos(step, "x", true);
          if (x < bbox.left - size || x > bbox.left + bbox.width + size) return;
          const at = heightOf(this.layout, marks.value[i] > 0 || this.chart.layout === "linear" ? marks.value[i] : null);
          const y = at == null ? bottom - size : u.valToPos(at, "y", true);
          ctx.beginPath();
          if (marks.kind === "skip") {
            ctx.moveTo(x, bottom);
            ctx.lineTo(x, bottom - 9 * devicePixelRatio);
            ctx.stroke();
          } else if (marks.kind === "routine") {
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + 7 * devicePixelRatio);
            ctx.stroke();
          } else if (marks.kind === "not-positive") {
            ctx.arc(x, bottom - size, size * 0.7, 0, 2 * Math.PI);
            ctx.stroke();
          } else {
            const tip = marks.kind === "growth" ? -size : size;
            ctx.moveTo(x, y + tip);
            ctx.lineTo(x - size, y - tip);
            ctx.lineTo(x + size, y - tip);
            ctx.fill();
          }
        });
      }
      ctx.restore();
    }

    makeLegend(figure) {
      const list = document.createElement("ul");
      list.className = "legend";
      this.at = entry(list, "at", "");
      this.values = this.chart.series.map((series, place) => {
        const item = entry(list, "", "");
        const key = document.createElement("span");
        key.className = `key k${place}${series.sparse ? " dot" : place % 2 ? " dash" : ""}`;
        key.setAttribute("aria-hidden", "true");
        const text = document.createElement("span");
        item.append(key, text);
        return text;
      });
      for (const marks of this.chart.marks) {
        const total = marks.count.reduce((sum, count) => sum + count, 0);
        const item = entry(list, "", "");
        const glyph = document.createElement("span");
        glyph.className = "glyph";
        glyph.style.color = `var(${COLOURS[marks.kind]})`;
        glyph.setAttribute("aria-hidden", "true");
        glyph.textContent = GLYPHS[marks.kind];
        item.append(glyph, `${eventName(marks)} × ${whole(total)}`);
      }
      this.happened = entry(list, "happened", "");
      figure.append(list);
      this.tell(null);
    }

    tell(idx) {
      const there = idx != null;
      const { step, unit } = this.run.data;
      const [first, end] = there ? this.run.view.range(idx) : [0, 0];
      this.at.textContent = there ? `${unit} ${whole(step[first])}` : "";
      this.at.hidden = !there;
      this.chart.series.forEach((series, place) => {
        this.values[place].textContent = there ? `${series.label} ${this.valueIn(series, first, end)}` : series.label;
      });
      const events = there ? this.eventsIn(first, end) : "";
      this.happened.textContent = events;
      this.happened.hidden = !events;
    }

    // A series in the places from one to before another: its middle, and how far it ranges.
    valueIn(series, first, end) {
      const middle = Places.median(series.middle, first, end);
      const { step } = this.run.data;
      const leads = series === this.chart.series[0];
      const bad = leads && this.chart.nonfinite.find(([from, to]) => step[end - 1] >= from && step[first] <= to);
      if (middle == null) return bad ? bad[3] : "–";
      const low = series.low ? Places.lowest(series.low, first, end) : middle;
      const high = series.high ? Places.highest(series.high, first, end) : middle;
      const range = low !== high ? ` (${this.written(low)} to ${this.written(high)})` : "";
      return this.written(middle) + range + (bad ? `, and ${bad[3]}` : "");
    }

    eventsIn(first, end) {
      const counts = new Map();
      for (let place = first; place < end; place++) {
        for (const [marks, count] of this.events.get(place) || []) counts.set(marks, (counts.get(marks) || 0) + count);
      }
      return [...counts].map(([marks, count]) => eventName(marks) + (count > 1 ? ` × ${whole(count)}` : "")).join(", ");
    }

    sentence(first, end) {
      const values = this.chart.series.map((series) => {
        const name = this.chart.series.length > 1 ? `${this.chart.title} ${series.label}` : this.chart.title;
        return `${name} ${this.valueIn(series, first, end)}`;
      });
      return [...values, this.eventsIn(first, end)].filter(Boolean).join(", ");
    }

    listen() {
      this.box.addEventListener("keydown", (event) => this.run.onKey(event));
      this.box.addEventListener(
        "wheel",
        (event) => {
          if (!event.ctrlKey && !event.metaKey) return;
          event.preventDefault();
          this.run.zoomBy(event.deltaY < 0 ? 0.75 : 1 / 0.75, this.shareAt(event.clientX));
        },
        { passive: false },
      );
      let apart = 0;
      const gap = (touches) => Math.abs(touches[0].clientX - touches[1].clientX) || 1;
      this.box.addEventListener("touchstart", (event) => {
        apart = event.touches.length === 2 ? gap(event.touches) : 0;
      }, { passive: true });
      this.box.addEventListener("touchmove", (event) => {
        if (!apart || event.touches.length !== 2) return;
        event.preventDefault();
        const now = gap(event.touches);
        this.run.zoomBy(apart / now, this.shareAt((event.touches[0].clientX + event.touches[1].clientX) / 2));
        apart = now;
      }, { passive: false });
    }

    shareAt(x) {
      const box = this.plot.over.getBoundingClientRect();
      return Math.min(1, Math.max(0, (x - box.left) / box.width));
    }
  }

  function eventName(marks) {
    const kind = WORDS[marks.kind] || marks.label;
    return marks.label === kind ? kind : `${kind}: ${marks.label}`;
  }

  // Is there one value at most?
  function flatIn(values) {
    const there = values.filter((value) => value != null);
    return there.every((value) => value === there[0]);
  }

  function entry(list, name, text) {
    const item = document.createElement("li");
    item.className = name;
    item.textContent = text;
    list.append(item);
    return item;
  }

  function eventsOf(steps, all) {
    const found = new Map();
    for (const marks of all) {
      marks.step.forEach((step, i) => {
        const place = placeOf(steps, step);
        if (!found.has(place)) found.set(place, []);
        found.get(place).push([marks, marks.count[i]]);
      });
    }
    return found;
  }

  return Panel;
})();

"use strict";
// The charts of each run: one cursor and one zoom for all of them, by mouse, touch and keys.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const ROOT = document.documentElement;
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [4, 4], [1, 4]];
  const GLYPHS = { growth: "▲", backoff: "▼", skip: "┃", "not-positive": "○", routine: "╵" };
  const WORDS = { growth: "growth", backoff: "backoff", skip: "skipped", "not-positive": "0 or less" };
  const COLOURS = { growth: "--c3", backoff: "--c2", skip: "--critical", "not-positive": "--quiet", routine: "--quiet" };

  const colour = (name) => getComputedStyle(ROOT).getPropertyValue(name).trim();
  const whole = (value) => Math.round(value).toLocaleString("en-US");

  function written(value) {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e7 || size < 1e-4)) {
      return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    if (Number.isInteger(value)) return whole(value);
    return value.toLocaleString("en-US", { maximumSignificantDigits: 5 });
  }

  // A loss scale: as a power of two where it is one and long to write; 2^-150 stands for 0.
  function scaleWritten(value) {
    if (value == null) return "–";
    const power = Math.round(Math.log2(value));
    if (power <= -150) return "0";
    const exact = Math.abs(Math.log2(value) - power) < 2e-6; // values have six digits
    return exact && (power < -6 || power > 23) ? `2^${power}` : written(value);
  }

  // On an axis there is room for seven characters.
  function tickWritten(value) {
    const size = Math.abs(value);
    return size > 0 && size < 0.01 ? Number(value.toPrecision(4)).toExponential() : written(value);
  }

  function powerWritten(height) {
    const whole = Number.isInteger(height) && (height < -6 || height > 16);
    return whole ? `2^${height}` : tickWritten(tidy(2 ** height));
  }

  // How a value becomes a height and back, so that uPlot only ever draws plain linear axes.
  function layoutOf(chart) {
    if (chart.layout === "log") return { up: Math.log10, down: (h) => 10 ** h, ticks: logTicks };
    if (chart.layout === "log2") return { up: Math.log2, down: (h) => 2 ** h, ticks: log2Ticks };
    if (chart.layout === "symlog") return symlog(chart.linearTo || 1);
    return { up: (v) => v, down: (h) => h, ticks: niceTicks };
  }

  function symlog(to) {
    const up = (v) => {
      const size = Math.abs(v);
      const far = Math.log10(size) - Math.log10(to) + Math.LOG10E * Math.LN2;
      return size > 1e3 * to ? Math.sign(v) * far : Math.asinh(v / to) * Math.LOG10E;
    };
    const down = (h) => Math.sinh(h * Math.LN10) * to;
    const ticks = (low, high) => {
      const found = new Set(low <= 0 && high >= 0 ? [0] : []);
      const far = Math.ceil(Math.max(Math.abs(low), Math.abs(high)));
      const start = Math.ceil(Math.log10(to));
      const every = Math.max(1, Math.ceil(far / 4));
      for (let power = 0; power <= far; power += every) {
        for (const sign of [1, -1]) {
          const height = up(sign * 10 ** (start + power));
          const apart = Math.abs(height) > (high - low) * 0.08; // else it is written over the 0
          if (height >= low && height <= high && apart) found.add(height);
        }
      }
      return [...found].sort((a, b) => a - b);
    };
    return { up, down, ticks };
  }

  function niceTicks(low, high, most = 5) {
    const raw = (high - low) / most;
    if (!(raw > 0)) return [low];
    const base = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => s >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high + step * 1e-9; k++) {
      found.push(Number((k * step).toPrecision(12)));
    }
    return found;
  }

  function logTicks(low, high) {
    if (high - low > 2.2) {
      const every = Math.max(1, Math.ceil((high - low) / 6));
      const found = [];
      for (let k = Math.ceil(low / every) * every; k <= high; k += every) found.push(k);
      return found;
    }
    if (high - low < 0.8) return niceTicks(10 ** low, 10 ** high, 4).filter((v) => v > 0).map(Math.log10);
    const found = [];
    for (let k = Math.floor(low); k <= high; k++) {
      for (const m of [1, 2, 5]) {
        const height = k + Math.log10(m);
        if (height >= low && height <= high) found.push(height);
      }
    }
    return found;
  }

  function log2Ticks(low, high) {
    const every = [1, 2, 4, 8, 16, 32, 64].find((s) => (high - low) / s <= 6) || 128;
    const found = [];
    for (let k = Math.ceil(low / every) * every; k <= high; k += every) found.push(k);
    return found.length > 1 ? found : niceTicks(2 ** low, 2 ** high, 3).filter((v) => v > 0).map(Math.log2);
  }

  const heightOf = (layout, value) => (value == null ? null : layout.up(value));

  // -- one chart ------------------------------------------------------------------------------

  class Panel {
    constructor(run, chart, figure) {
      this.run = run;
      this.chart = chart;
      this.layout = layoutOf(chart);
      this.written = chart.layout === "log2" ? scaleWritten : written;
      this.ticked = chart.layout === "log2" ? powerWritten : (h) => tickWritten(tidy(this.layout.down(h)));
      this.box = figure.querySelector(".plot");
      this.flat = chart.series.every((one) => flatIn(one.middle) && flatIn(one.high || []));
      this.events = eventsOf(run.data.step, chart.marks);
      this.makeLegend(figure);
      this.plot = new uPlot(this.options(), this.columns(), this.box);
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

    columns() {
      const columns = [this.run.data.step];
      for (const series of this.chart.series) {
        for (const part of ["high", "low", "middle"]) {
          if (series[part]) columns.push(series[part].map((v) => heightOf(this.layout, v)));
        }
      }
      return columns;
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
      this.at.textContent = there ? `${unit} ${whole(step[idx])}` : "";
      this.at.hidden = !there;
      this.chart.series.forEach((series, place) => {
        this.values[place].textContent = there ? `${series.label} ${this.valueAt(series, idx)}` : series.label;
      });
      const events = there ? this.eventsAt(idx) : "";
      this.happened.textContent = events;
      this.happened.hidden = !events;
    }

    valueAt(series, idx) {
      const middle = series.middle[idx];
      const step = this.run.data.step[idx];
      if (middle == null) {
        const bad = this.chart.nonfinite.find(([first, last]) => step >= first && step <= last);
        return bad && series === this.chart.series[0] ? bad[3] : "–";
      }
      const low = series.low && series.low[idx];
      const apart = series.low && low !== series.high[idx];
      const range = apart ? ` (${this.written(low)} to ${this.written(series.high[idx])})` : "";
      return this.written(middle) + range;
    }

    eventsAt(idx) {
      return (this.events.get(idx) || []).map(([marks, count]) => eventName(marks) + (count > 1 ? ` × ${whole(count)}` : "")).join(", ");
    }

    sentence(idx) {
      const values = this.chart.series.map((series) => {
        const name = this.chart.series.length > 1 ? `${this.chart.title} ${series.label}` : this.chart.title;
        return `${name} ${this.valueAt(series, idx)}`;
      });
      return [...values, this.eventsAt(idx)].filter(Boolean).join(", ");
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

  const tidy = (value) => (Number.isInteger(value) ? value : Number(value.toPrecision(6)));
  
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

  function placeOf(steps, step) {
    let low = 0;
    let high = steps.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (steps[middle] <= step) low = middle;
      else high = middle - 1;
    }
    return low;
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

  // -- the charts of one run ------------------------------------------------------------------

  class RunCharts {
    constructor(section) {
      this.key = section.dataset.run;
      this.data = DATA[this.key].charts;
      this.section = section;
      this.form = section.querySelector(".zoom");
      this.output = section.querySelector(".readout output");
      const single = this.data.first === this.data.last ? 1 : 0;
      this.ends = [this.data.first - single, this.data.last + single];
      this.shown = [...this.ends];
      for (const part of section.querySelectorAll(".zoom, .lanes, .help, .readout")) part.hidden = false;
      this.panels = [];
      for (const chart of this.data.charts) {
        this.panels.push(new Panel(this, chart, section.querySelector(`figure[data-chart="${chart.name}"]`)));
      }
      this.makeLanes();
      this.listen();
      this.show(...this.ends);
      this.ready = true;
    }

    follow(min, max) {
      if (this.ready && !this.busy && min != null && (min !== this.shown[0] || max !== this.shown[1])) this.show(min, max);
    }

    show(min, max) {
      const [first, last] = this.ends;
      const wide = Math.min(Math.max(max - min, Math.min(4, last - first)), last - first);
      const middle = (min + max) / 2;
      let from = Math.min(Math.max(middle - wide / 2, first), last - wide);
      if (!Number.isFinite(from)) from = first;
      this.shown = [from, from + wide];
      this.busy = true;
      for (const { plot } of this.panels) plot.batch(() => plot.setScale("x", { min: from, max: from + wide }));
      queueMicrotask(() => { this.busy = false; });
      this.form.elements.from.value = Math.round(this.shown[0]);
      this.form.elements.to.value = Math.round(this.shown[1]);
      this.placeLanes();
      this.section.dataset.from = Math.round(this.shown[0]);
      this.section.dataset.to = Math.round(this.shown[1]);
    }

    zoomBy(factor, share = 0.5) {
      const [from, to] = this.shown;
      const at = from + (to - from) * share;
      this.show(at - (at - from) * factor, at + (to - at) * factor);
    }

    pan(share) {
      const by = (this.shown[1] - this.shown[0]) * share;
      this.show(this.shown[0] + by, this.shown[1] + by);
    }

    act(what) {
      if (what === "in") this.zoomBy(0.5);
      if (what === "out") this.zoomBy(2);
      if (what === "left") this.pan(-0.5);
      if (what === "right") this.pan(0.5);
      if (what === "all") this.show(...this.ends);
    }

    onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const named = { "+": "in", "=": "in", "-": "out", 0: "all" }[event.key];
      if (sideways && event.shiftKey) this.pan(sideways * 0.25);
      else if (sideways) this.move(this.place == null ? null : this.place + sideways);
      else if (event.key === "Home") this.move(placeOf(this.data.step, this.shown[0]));
      else if (event.key === "End") this.move(placeOf(this.data.step, this.shown[1]));
      else if (named) this.act(named);
      else return;
      event.preventDefault();
    }

    move(place) {
      const steps = this.data.step;
      const centre = (this.shown[0] + this.shown[1]) / 2;
      const at = Math.min(Math.max(place == null ? placeOf(steps, centre) : place, 0), steps.length - 1);
      this.place = at;
      if (steps[at] < this.shown[0] || steps[at] > this.shown[1]) {
        const half = (this.shown[1] - this.shown[0]) / 2;
        this.show(steps[at] - half, steps[at] + half);
      }
      for (const { plot } of this.panels) {
        plot.setCursor({ left: plot.valToPos(steps[at], "x"), top: plot.over.clientHeight / 2 });
      }
      const told = this.panels.map((panel) => panel.sentence(at)).join("; ");
      this.output.textContent = `${this.data.unit} ${whole(steps[at])}: ${told}`;
    }

    listen() {
      for (const button of this.form.querySelectorAll("[data-zoom]")) {
        button.addEventListener("click", () => this.act(button.dataset.zoom));
      }
      const typed = () => {
        const from = Number(this.form.elements.from.value);
        const to = Number(this.form.elements.to.value);
        if (to > from) this.show(from, to);
      };
      this.form.addEventListener("change", typed);
      this.form.addEventListener("submit", (event) => {
        event.preventDefault();
        typed();
      });
      new ResizeObserver(() => this.resize()).observe(this.section);
      for (const panel of this.panels) {
        panel.plot.over.addEventListener("mousemove", () => { this.place = panel.plot.cursor.idx; });
      }
    }

    resize() {
      for (const panel of this.panels) {
        const width = panel.box.clientWidth;
        if (width && width !== panel.plot.width) panel.plot.setSize({ width, height: panel.height });
      }
    }

    redraw() {
      for (const { plot } of this.panels) plot.redraw(false, true);
    }

    makeLanes() {
      this.lanes = [...this.section.querySelectorAll(".lane")].map((lane) => {
        const band = this.data.bands.find((one) => one.number === Number(lane.dataset.band));
        const bars = band.spans.map(([first, last]) => {
          const bar = document.createElement("span");
          lane.querySelector(".track").append(bar);
          return { bar, first, last };
        });
        lane.addEventListener("click", () => this.showBand(band));
        return bars;
      });
    }

    showBand(band) {
      const [first, last] = band.spans[0];
      const room = Math.max((last - first) * 0.25, (this.ends[1] - this.ends[0]) * 0.02, 5);
      this.show(first - room, last + room);
    }

    placeLanes() {
      const [from, to] = this.shown;
      const share = (step) => (100 * (step - from)) / (to - from);
      for (const { bar, first, last } of (this.lanes || []).flat()) {
        bar.hidden = last < from || first > to;
        bar.style.left = `${Math.max(share(first), 0)}%`;
        bar.style.width = `${Math.min(share(last), 100) - Math.max(share(first), 0)}%`;
      }
    }
  }

  const runs = [...document.querySelectorAll("section.charts")].map((section) => new RunCharts(section));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => runs.forEach((run) => run.redraw()));
  window.addEventListener("beforeprint", () => {
    ROOT.classList.add("printing");
    runs.forEach((run) => run.redraw());
  });
  window.addEventListener("afterprint", () => {
    ROOT.classList.remove("printing");
    runs.forEach((run) => run.redraw());
  });
})();

"use strict";
// The charts of each run: one cursor and one zoom for all of them, by mouse, touch and keys.
(() => {
  const { whole, placeOf } = Axes;
  const CROWDED = 250; // places from which a narrow chart has several a pixel
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const ROOT = document.documentElement;

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
      this.crowded = this.data.step.length > CROWDED;
      this.look(...this.ends);
      this.panels = [];
      for (const chart of this.data.charts) {
        this.panels.push(new Panel(this, chart, section.querySelector(`figure[data-chart="${chart.name}"]`)));
      }
      this.makeLanes();
      this.listen();
      this.show(...this.ends);
      this.ready = true;
    }

    // Choose the places that are drawn from one step to another: one a pixel.
    look(from, to) {
      const width = Math.max(this.section.clientWidth - 64, 100);
      this.view = new Places.View(this.data.step, from, to, width);
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
      this.look(from, from + wide);
      for (const panel of this.panels) {
        panel.plot.batch(() => {
          panel.plot.setData(panel.viewed(), false);
          panel.plot.setScale("x", { min: from, max: from + wide });
        });
      }
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
      else if (sideways) this.move(this.place == null ? null : this.view.beside(this.place, sideways));
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
      const [first, end] = this.view.range(placeOf(this.view.starts, at));
      const told = this.panels.map((panel) => panel.sentence(first, end)).join("; ");
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
        panel.plot.over.addEventListener("mousemove", () => {
          const { idx } = panel.plot.cursor;
          this.place = idx == null ? null : this.view.starts[idx];
        });
      }
    }

    resize() {
      let changed = false;
      for (const panel of this.panels) {
        const width = panel.box.clientWidth;
        if (!width || width === panel.plot.width) continue;
        panel.plot.setSize({ width, height: panel.height });
        changed = true;
      }
      if (changed) this.show(...this.shown);
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
      // Near enough to see single rows, which a finding has around it.
      const room = Math.max((last - first) * 0.25, Math.min((this.ends[1] - this.ends[0]) * 0.02, 100), 5);
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

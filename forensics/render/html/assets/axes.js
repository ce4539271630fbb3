"use strict";
// How values are written, and how they are laid out along an axis.
const Axes = (() => {
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

  const tidy = (value) => (Number.isInteger(value) ? value : Number(value.toPrecision(6)));

  // The last place whose step is not after the one that is looked for.
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

  return { whole, written, scaleWritten, powerWritten, tickWritten, tidy, layoutOf, heightOf, placeOf };
})();

"use strict";
// Copy buttons, the tables that sort and filter, and details that open for the printer.
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // No clipboard for this page (an old browser, or a frame): the way that always was.
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "hear";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  for (const button of document.querySelectorAll(".copy-markdown")) {
    const said = document.getElementById(`${button.dataset.run}-copied`);
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(DATA[button.dataset.run].markdown);
      said.textContent = done ? "Copied: paste it into an issue." : "The browser refused to copy.";
    });
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    const label = button.firstChild;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(document.getElementById(button.dataset.copy).textContent);
      label.textContent = done ? "Copied" : "Not copied";
      setTimeout(() => { label.textContent = "Copy"; }, 2000);
    });
  }

  // -- tables -----------------------------------------------------------------------------------

  const texts = new Intl.Collator("en", { numeric: true });

  function compare(column, kind, sign) {
    const of = (row) => row.cells[column];
    if (kind === "text") return (a, b) => sign * texts.compare(of(a).textContent, of(b).textContent);
    const value = (row) => (of(row).dataset.value === "" ? null : Number(of(row).dataset.value));
    // What is unknown stays at the end, whichever way the rest is sorted.
    return (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return x === y ? 0 : sign * (x < y ? -1 : 1);
    };
  }

  function sortBy(table, head) {
    const first = head.dataset.sort === "number" ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare(head.cellIndex, head.dataset.sort, sign)));
  }

  for (const table of document.querySelectorAll(".sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, head));
      head.replaceChildren(button);
    }
  }

  for (const form of document.querySelectorAll(".filter")) {
    const input = form.elements.filter;
    const rows = [...document.getElementById(input.getAttribute("aria-controls")).tBodies[0].rows];
    const wholes = rows.map((row) => `${row.cells[0].textContent} ${row.lastElementChild.textContent}`.toLowerCase());
    const shown = form.querySelector(".shown");
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    const filter = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => wholes[i].includes(word));
        count += row.hidden ? 0 : 1;
      });
      shown.textContent = words.length ? `${count.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")}` : "";
    };
    input.addEventListener("input", filter);
    input.addEventListener("change", filter);
  }

  // -- a printer shows everything -----------------------------------------------------------------

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
  // A link to a finding opens what is folded in it.
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    const fold = target && target.querySelector(":scope > details");
    if (fold) fold.open = true;
  });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();

"use strict";
// The page, put together from its sections; built anew when another size is chosen.

function headSection() {
  const head = [h("h1", {}, doc.title)];
  if (doc.comparison) {
    head.push(h("p", { class: "soft" }, num("comparison.ranks_before", "count"), " ranks",
      doc.comparison.ranks_after !== doc.comparison.ranks_before ? [", ", num("comparison.ranks_after", "count"), " after the changes"] : ""));
  }
  if (doc.changes.length) head.push(h("ul", { class: "chips", "aria-label": "changes" }, doc.changes.map((change) => h("li", {}, change))));
  return head;
}

function answerSection() {
  const rows = doc.comparison && doc.comparison.rows;
  if (!rows || !rows.length) return null;
  const section = h("section", { id: "answer" });
  if (rows.length > 1) {
    const choice = h("fieldset", { class: "choice" }, h("legend", {}, doc.comparison.algorithm === "all" ? "size and algorithm" : "size"));
    rows.forEach((row, index) => {
      const one = row.after || row.before;
      choice.append(h("input", { type: "radio", name: "size", id: `size-${index}`, checked: index === state.size, onchange: () => { state.size = index; show(`size-${index}`); } }),
        h("label", { for: `size-${index}` }, num(`comparison.rows.${index}.size_bytes`, "bytes"), doc.comparison.algorithm === "all" ? ` ${one.way}` : ""));
    });
    section.append(choice);
  }
  const row = rows[state.size], here = `comparison.rows.${state.size}`;
  const name = row.after ? "after" : "before", both = row.before && row.after;
  const card = (title, key, kind, extra) => h("div", { class: `card ${extra || ""}` }, h("h3", {}, title), h("div", { class: "now" }, num(`${here}.${name}.${key}`, kind)),
    both ? h("div", { class: "was" }, "before ", num(`${here}.before.${key}`, kind)) : null);
  const worse = both && row.time_ratio > 1.005 ? "worse" : "";
  section.append(h("div", { class: "cards" },
    h("div", { class: `card ${worse}` }, h("h3", {}, "time"), h("div", { class: "now" }, num(`${here}.${name}.time_s`, "seconds")),
      both ? h("div", { class: "was" }, "before ", num(`${here}.before.time_s`, "seconds"), ": ", num(`${here}.time_ratio`, "change")) : null),
    card("bus bandwidth", "busbw_bytes_per_s", "rate"),
    card("of the bound's speed", "share_of_bound", "share"),
    card("bound: the least there is", "bound_s", "seconds"),
    h("div", { class: "card" }, h("h3", {}, "algorithm"), h("div", { class: "now words" }, words(row[name].way)),
      both ? h("div", { class: "was" }, row.before.way === row.after.way ? "as before" : ["before ", words(row.before.way)]) : null),
    h("div", { class: "card" }, h("h3", {}, "what binds"), h("div", { class: "now words" }, words(row[name].binding_link || "latency")),
      both ? h("div", { class: "was" }, row.before.binding_link === row.after.binding_link ? "as before" : ["before ", words(row.before.binding_link || "latency")]) : null)));
  if (row.why) section.append(h("p", { class: "why" }, words(row.why)));
  return section;
}

function numbersSection() {
  const rows = doc.comparison && doc.comparison.rows;
  const section = h("section", { id: "numbers" }, h("h2", {}, "The numbers"));
  if (rows) {
    const columns = [["time", "time_s", "seconds"], ["bus bandwidth", "busbw_bytes_per_s", "rate"], ["bound", "bound_s", "seconds"], ["of bound", "share_of_bound", "share"]];
    const body = h("tbody");
    rows.forEach((row, index) => ["before", "after"].forEach((name) => {
      if (!row[name]) return;
      const here = `comparison.rows.${index}`;
      body.append(h("tr", {}, h("td", {}, num(`${here}.size_bytes`, "bytes")), h("td", { class: "text" }, row.after && row.before ? name : ""),
        columns.map(([, key, kind]) => h("td", {}, num(`${here}.${name}.${key}`, kind))), h("td", { class: "text" }, row[name].way),
        h("td", { class: "text" }, words(row[name].binding_link || "latency")), h("td", {}, num(`${here}.${name}.binding_link_busy`, "share"))));
    }));
    section.append(h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "all sizes" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "size"), h("th", { class: "text" }, ""), columns.map(([text]) => h("th", {}, text)), h("th", { class: "text" }, "algorithm"), h("th", { class: "text" }, "binding link"), h("th", {}, "its load"))), body)));
  }
  section.append(h("div", { class: "bar" }, h("button", { type: "button", onclick: download }, "all of it as JSON")));
  return section;
}

function download() {
  const link = h("a", { href: URL.createObjectURL(new Blob([JSON.stringify(doc)], { type: "application/json" })), download: "whatif.json" });
  link.click();
  URL.revokeObjectURL(link.href);
}

function show(focus) {
  hideTip();
  const rows = doc.comparison ? doc.comparison.rows.length : 0;
  state.size = Math.min(state.size, Math.max(0, rows - 1));
  const top = scrollY;
  document.getElementById("head").replaceChildren(...headSection());
  const live = window.live && window.live.section;
  const sections = [live, answerSection(), stepSection(), machineSection(), timelineSection(), curveSection(), sweepSection(), scaleSection(), harmSection(), numbersSection()];
  const main = document.getElementById("main"), wanted = sections.filter(Boolean);
  // The sliders stay in the page while the rest is exchanged, so that a finger on one is not lost.
  [...main.children].forEach((child) => child !== live && child.remove());
  wanted.forEach((section) => section.parentNode !== main && main.append(section));
  scrollTo(0, top);
  if (focus) document.getElementById(focus).focus({ preventScroll: true });
  document.getElementById("foot").replaceChildren(h("p", {}, "Predicted by the simulator of pycoll ", doc.pycoll, ": collectives alone on the machine unless a change says otherwise.", doc.checked ? [" ", doc.checked] : ""));
}

state.size = doc.comparison ? Math.max(0, doc.comparison.rows.length - 1) : 0;
show();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show());
let lastWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== lastWidth) { lastWidth = innerWidth; show(); }
});

"use strict";
// What each rank sends when, and how busy links are over time; before over after on one axis, to be zoomed.

const timelineView = { from: 0, to: 1, whole: 1 };

function timelineSection() {
  const pair = doc.timelines && doc.timelines[state.size];
  if (!pair || !(pair.before || pair.after)) return null;
  const names = ["before", "after"].filter((name) => pair[name]);
  const whole = Math.max(...names.map((name) => pair[name].time_s)) || 1e-9;
  Object.assign(timelineView, { from: 0, to: whole, whole });
  const stages = [];
  const redraw = () => stages.forEach((stage) => stage.draw());
  const detail = h("p", { class: "detail", role: "status", "aria-live": "polite" }, hint());
  const section = h("section", { id: "timeline" }, h("h2", {}, "Over time"));
  const bar = h("div", { class: "bar" });
  const choice = h("fieldset", { class: "choice" }, h("legend", {}, "rows"));
  for (const [value, text] of [["ranks", "ranks: what each sends"], ["links", "links: how busy"]]) {
    const id = `rows-${value}`;
    choice.append(h("input", { type: "radio", name: "rows", id, value, checked: state.rows === value, onchange: () => { state.rows = value; redraw(); } }), h("label", { for: id }, text));
  }
  const zoom = (factor) => { scaleView(factor, 0.5); redraw(); };
  bar.append(choice,
    h("button", { type: "button", "aria-label": "zoom in", onclick: () => zoom(0.5) }, "+"),
    h("button", { type: "button", "aria-label": "zoom out", onclick: () => zoom(2) }, "\u2212"),
    h("button", { type: "button", onclick: () => { Object.assign(timelineView, { from: 0, to: whole }); redraw(); } }, "all"));
  section.append(bar);
  for (const name of names) {
    const stage = timelineStage(name, pair[name], detail, redraw);
    stages.push(stage);
    const path = `timelines.${state.size}.${name}`;
    const title = h("p", { class: `key ${name} small` }, names.length > 1 ? { before: "Before: ", after: "After: " }[name] : "", pair[name].way, ", ", num(`${path}.time_s`, "seconds"));
    if (pair[name].ranks.length < pair[name].ranks_of_all) {
      title.append("; ", num(`${path}.ranks.length`, "count"), " of ", num(`${path}.ranks_of_all`, "count"), " ranks are shown");
    }
    section.append(title, h("div", { class: "stage" }, stage.canvas));
  }
  section.append(legendOfTimeline(pair, names), detail);
  requestAnimationFrame(redraw);
  timelineSection.redraw = redraw;
  return section;
}

function hint() {
  return "Drag to move, Ctrl and wheel (or two fingers) to zoom; with the keyboard: arrows move, + and \u2212 zoom, N and P step along the transfers that the time is made of.";
}

function legendOfTimeline(pair, names) {
  const box = (fill, extra) => s("svg", { width: 22, height: 12 }, s("rect", { x: 1, y: 2, width: 20, height: 8, style: `fill:var(${fill});${extra || ""}` }));
  const legend = h("div", { class: "legend", "aria-hidden": "true" });
  if (names.some((name) => pair[name].transfers)) {
    legend.append(h("span", {}, box("--copy"), "sends, to be kept"), h("span", {}, box("--add"), "sends, to be added"),
      h("span", {}, box("--paper", "stroke:var(--ink);stroke-width:2"), "what the time is made of"));
  } else legend.append(h("span", {}, box("--copy"), "sends, to be kept"), h("span", {}, box("--add"), "sends, to be added; the taller, the more"));
  legend.append(h("span", {}, "\u25b8 comes late"));
  return legend;
}

function scaleView(factor, around) {
  const view = timelineView, width = Math.min(view.whole, Math.max(view.whole / 5000, (view.to - view.from) * factor));
  const centre = view.from + (view.to - view.from) * around;
  view.from = Math.max(0, Math.min(view.whole - width, centre - width * around));
  view.to = view.from + width;
}
function moveView(seconds) {
  const view = timelineView, width = view.to - view.from;
  view.from = Math.max(0, Math.min(view.whole - width, view.from + seconds));
  view.to = view.from + width;
}

function timelineStage(name, line, detail, redraw) {
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": `Timeline ${name}: ${line.way}. ${hint()}` });
  const path = `timelines.${state.size}.${name}`;
  const stage = { canvas, left: 70, right: 10, top: 6, low: 24, row: 16, chosen: -1, step: -1 };
  const rows = () => (state.rows === "links" ? line.links.map((link) => link.name) : line.ranks.map((rank) => String(rank.rank)));
  const rowOfRank = new Map(line.ranks.map((rank, row) => [rank.rank, row]));
  const critical = line.transfers ? new Set(line.transfers.critical) : new Set();
  const x = (seconds) => stage.left + ((seconds - timelineView.from) / (timelineView.to - timelineView.from)) * stage.plot;
  const secondsAt = (px) => timelineView.from + ((px - stage.left) / stage.plot) * (timelineView.to - timelineView.from);

  stage.draw = () => {
    const labels = rows();
    if (!canvas.clientWidth) return;
    const narrow = canvas.clientWidth < 500;
    stage.row = labels.length > 40 ? 9 : labels.length > 20 ? 13 : 18;
    stage.left = state.rows === "links" ? (narrow ? 118 : 190) : 70;
    stage.plot = canvas.clientWidth - stage.left - stage.right;
    const height = stage.top + stage.row * labels.length + stage.low;
    canvas.style.height = height + "px";
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const colours = { ink: style("--ink"), soft: style("--soft"), line: style("--line"), add: style("--add"), copy: style("--copy"), paper: style("--paper") };
    pen.strokeStyle = colours.line;
    pen.fillStyle = colours.soft;
    pen.textAlign = "center";
    const room = Math.max(2, Math.floor(stage.plot / 90));
    for (const tick of ticks(timelineView.from, timelineView.to, room)) {
      pen.beginPath(); pen.moveTo(x(tick), stage.top); pen.lineTo(x(tick), height - stage.low + 4); pen.stroke();
      pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      if (x(tick) < canvas.clientWidth - 24) pen.fillText(format.seconds(tick), x(tick), height - 7);
    }
    pen.textAlign = "right";
    pen.fillStyle = colours.ink;
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const every = Math.ceil(13 / stage.row);
    labels.forEach((label, row) => {
      if (row % every) return;
      const most = Math.floor((stage.left - 12) / 6.4);
      const text = label.length > most ? "\u2026" + label.slice(1 - most) : label;
      pen.fillText(state.rows === "links" ? text : `rank ${label}`, stage.left - 7, stage.top + stage.row * (row + 0.5) + 4);
    });
    pen.save();
    pen.beginPath(); pen.rect(stage.left, 0, stage.plot, height); pen.clip();
    if (state.rows === "links") drawLinks(pen);
    else if (line.transfers) drawTransfers(pen, colours);
    else if (line.sent) drawSent(pen, colours);
    if (state.rows === "ranks") line.ranks.forEach((rank, row) => {
      if (!rank.comes_s) return;
      pen.fillStyle = colours.ink; pen.textAlign = "center";
      pen.fillText("\u25b8", x(rank.comes_s), stage.top + stage.row * (row + 0.5) + 4);
    });
    pen.restore();
    pen.strokeStyle = colours.ink;
    const end = x(line.time_s);
    if (end <= stage.left + stage.plot + 1) { pen.beginPath(); pen.moveTo(end, stage.top); pen.lineTo(end, height - stage.low); pen.stroke(); }
  };

  function drawTransfers(pen, colours) {
    const t = line.transfers, pad = stage.row > 12 ? 2 : 1;
    const one = (index, mark) => {
      const from = x(t.start_s[index]), to = x(t.end_s[index]);
      if (to < stage.left || from > stage.left + stage.plot) return;
      const y = stage.top + stage.row * rowOfRank.get(t.src[index]) + pad, tall = stage.row - 2 * pad, wide = Math.max(0.7, to - from);
      pen.fillStyle = t.adds[index] ? colours.add : colours.copy;
      pen.globalAlpha = mark || !state.critical ? 1 : 0.72;
      pen.fillRect(from, y, wide, tall);
      pen.globalAlpha = 1;
      if (wide > 3) { pen.strokeStyle = colours.paper; pen.lineWidth = 0.8; pen.strokeRect(from, y, wide, tall); }
      if (mark) { pen.strokeStyle = colours.ink; pen.lineWidth = index === stage.chosen ? 3 : 1.4; pen.strokeRect(from, y, wide, tall); pen.lineWidth = 1; }
    };
    t.src.forEach((_, index) => critical.has(index) || one(index, false));
    critical.forEach((index) => one(index, true));
    if (stage.chosen >= 0) one(stage.chosen, true);
  }
  function drawSent(pen, colours) {
    line.ranks.forEach((_, row) => line.sent.kept[row].forEach((kept, part) => {
      const added = line.sent.added[row][part], from = x(part * line.part_s), to = x((part + 1) * line.part_s);
      if (to < stage.left || from > stage.left + stage.plot) return;
      const base = stage.top + stage.row * (row + 1) - 1, tall = stage.row - 2, wide = Math.max(1, to - from + 0.4);
      pen.fillStyle = colours.add;
      pen.fillRect(from, base - tall * added, wide, tall * added);
      pen.fillStyle = colours.copy;
      pen.fillRect(from, base - tall * (added + kept), wide, tall * kept);
    }));
  }
  function drawLinks(pen) {
    const fills = LOADS.map((_, index) => style(`--load${index}`));
    line.links.forEach((link, row) => link.over_time.forEach((share, part) => {
      if (!share) return;
      const from = x(part * line.part_s), to = x((part + 1) * line.part_s);
      if (to < stage.left || from > stage.left + stage.plot) return;
      const tall = (stage.row - 2) * (0.25 + 0.75 * share);
      pen.fillStyle = fills[loadClass(share)];
      pen.fillRect(from, stage.top + stage.row * (row + 1) - 1 - tall, Math.max(1, to - from + 0.4), tall);
    }));
  }

  function find(px, py) {
    const row = Math.floor((py - stage.top) / stage.row);
    if (row < 0 || row >= rows().length || px < stage.left) return null;
    const seconds = secondsAt(px);
    if (state.rows === "links") {
      const part = Math.floor(seconds / line.part_s);
      return part >= 0 && part < line.links[row].over_time.length ? linkWords(row, part) : null;
    }
    const rank = line.ranks[row];
    if (!line.transfers) {
      const part = Math.floor(seconds / line.part_s), known = line.sent && part >= 0 && part < line.sent.kept[row].length;
      return [h("b", {}, rank.device), "rank ", num(`${path}.ranks.${row}.rank`, "count"), ", done after ", num(`${path}.ranks.${row}.done_s`, "seconds"),
        known ? [h("br"), "sends here ", num(`${path}.sent.added.${row}.${part}`, "share"), " (to be added) and ", num(`${path}.sent.kept.${row}.${part}`, "share"), " (to be kept) of ", num(`${path}.sent.most_bytes_per_s`, "rate"), ", the most that any does"] : ""].flat(9);
    }
    const t = line.transfers, slack = (timelineView.to - timelineView.from) / stage.plot;
    let best = -1;
    t.src.forEach((src, index) => {
      if (src === rank.rank && t.start_s[index] <= seconds + slack && t.end_s[index] >= seconds - slack && (best < 0 || critical.has(index))) best = index;
    });
    return best < 0 ? null : told(best);
  }
  function linkWords(row, part) {
    return [h("b", {}, line.links[row].name), "busy ", num(`${path}.links.${row}.over_time.${part}`, "share"), " here, ", num(`${path}.links.${row}.busy`, "share"), " of the whole time"];
  }
  function told(index) {
    const t = line.transfers, here = `${path}.transfers`;
    const place = t.critical.indexOf(index);
    return [
      h("b", {}, "rank ", num(`${here}.src.${index}`, "count"), " to rank ", num(`${here}.dst.${index}`, "count")),
      "piece ", num(`${here}.piece.${index}`, "count"), " of ", num(`${here}.bytes`, "bytes"), t.adds[index] ? ", to be added" : "", ", round ", num(`${here}.round.${index}`, "count"), h("br"),
      num(`${here}.start_s.${index}`, "seconds"), " to ", num(`${here}.end_s.${index}`, "seconds"), ", limited by ", words(t.links[t.limited_by[index]]),
      place >= 0 ? [h("br"), "the time hangs on it; it waited for ", { nothing: "nothing", data: "its data", turn: "its turn", arrival: "its rank to come" }[t.reasons[place]] || "the " + t.reasons[place]] : "",
    ].flat(9);
  }

  canvas.addEventListener("keydown", (event) => {
    const width = timelineView.to - timelineView.from;
    if (event.key === "ArrowLeft") moveView(-width / 8);
    else if (event.key === "ArrowRight") moveView(width / 8);
    else if (event.key === "+" || event.key === "=") scaleView(0.6, 0.5);
    else if (event.key === "-") scaleView(1 / 0.6, 0.5);
    else if (event.key === "0") Object.assign(timelineView, { from: 0, to: timelineView.whole });
    else if ("npNP".includes(event.key) && line.transfers && line.transfers.critical.length) {
      const path_ = line.transfers.critical;
      stage.step = (stage.step + (event.key.toLowerCase() === "n" ? 1 : -1) + path_.length) % path_.length;
      stage.chosen = path_[stage.step];
      const start = line.transfers.start_s[stage.chosen], end = line.transfers.end_s[stage.chosen];
      if (start < timelineView.from || end > timelineView.to) moveView((start + end) / 2 - (timelineView.from + timelineView.to) / 2);
      detail.replaceChildren(...told(stage.chosen));
    } else return;
    event.preventDefault();
    redraw();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    scaleView(Math.exp(event.deltaY / 300), Math.min(1, Math.max(0, (event.offsetX - stage.left) / stage.plot)));
    redraw();
  }, { passive: false });
  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
    const found = find(event.offsetX, event.offsetY);
    if (found) showTip(event.clientX, event.clientY, found);
  });
  for (const kind of ["pointerup", "pointercancel", "pointerleave"]) {
    canvas.addEventListener(kind, (event) => { fingers.delete(event.pointerId); if (event.pointerType === "mouse" && kind === "pointerleave") hideTip(); });
  }
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before === undefined) {
      const found = find(event.offsetX, event.offsetY);
      if (found) showTip(event.clientX, event.clientY, found); else hideTip();
      return;
    }
    const width = timelineView.to - timelineView.from;
    if (fingers.size === 1) moveView(((before - event.offsetX) / stage.plot) * width);
    else {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const was = Math.abs(before - other) || 1, is = Math.abs(event.offsetX - other) || 1;
      scaleView(was / is, Math.min(1, Math.max(0, ((other + event.offsetX) / 2 - stage.left) / stage.plot)));
    }
    fingers.set(event.pointerId, event.offsetX);
    if (Math.abs(before - event.offsetX) > 1) hideTip();
    redraw();
  });
  return stage;
}

function ticks(from, to, most) {
  const raw = (to - from) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw) || raw;
  const found = [];
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to + step * 1e-6 && found.length < 50; tick += step) found.push(tick);
  return found;
}

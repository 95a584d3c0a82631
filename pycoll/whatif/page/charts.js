"use strict";
// Curves: time against size, a figure swept, a step's collectives; and the ranked list of harm.

// Powers of ten; over few of them two and five times each as well.
const logTicks = (low, high) => {
  const factors = high / low < 300 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) found.push(Number(`${factor}e${power}`));
  }
  return found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
};

// A frame with both axes; x and y turn values into places.
function frame(xs, ys, xTicks, yTicks, xText, yText, label, xLog) {
  const width = innerWidth < 600 ? 400 : 860, height = innerWidth < 600 ? 300 : 340;
  const left = 66, right = 28, top = 16, low = 34;
  const scale = (values, log) => {
    const put = log ? Math.log : (value) => value;
    const least = put(Math.min(...values)), most = put(Math.max(...values));
    return (value) => (most === least ? 0.5 : (put(value) - least) / (most - least));
  };
  const sx = scale(xs, xLog), sy = scale(ys, true);
  const x = (value) => left + sx(value) * (width - left - right);
  const y = (value) => height - low - sy(value) * (height - low - top);
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  for (const tick of yTicks) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      s("text", { class: "tick", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  let last = -Infinity;
  for (const tick of xTicks) {
    if (x(tick) - last < 62) continue;
    last = x(tick);
    svg.append(s("text", { class: "tick", x: x(tick), y: height - 10, "text-anchor": "middle" }, xText(tick)));
  }
  return { svg, x, y };
}

function dot(place, name, content) {
  const shape = name === "after"
    ? s("rect", { x: place[0] - 4, y: place[1] - 4, width: 8, height: 8, transform: `rotate(45 ${place[0]} ${place[1]})` })
    : s("circle", { cx: place[0], cy: place[1], r: 4.5 });
  build(shape, { class: `dot ${name}`, tabindex: 0, role: "img", "aria-label": content().map((each) => (each.textContent === undefined ? each : each.textContent)).join("") }, []);
  const tell = () => {
    const box = shape.getBoundingClientRect();
    showTip(box.x, box.y, content());
  };
  for (const kind of ["pointerenter", "pointerdown", "focus"]) shape.addEventListener(kind, tell);
  for (const kind of ["pointerleave", "blur"]) shape.addEventListener(kind, hideTip);
  return shape;
}

const polyline = (points) => points.map((point, index) => (index ? "L" : "M") + point.map((each) => each.toFixed(1))).join("");

function curveSection() {
  const points = doc.curve;
  if (!points || points.filter((point) => point.size_bytes > 0).length < 2) return null;
  const names = ["before", "after"].filter((name) => points.some((point) => point[`${name}_s`] !== undefined));
  const kept = points.map((point, index) => ({ ...point, index })).filter((point) => point.size_bytes > 0);
  const xs = kept.map((point) => point.size_bytes);
  const ys = kept.flatMap((point) => names.flatMap((name) => [point[`${name}_s`], point[`${name}_bound_s`]])).filter((value) => value > 0);
  const { svg, x, y } = frame(xs, ys, xs, logTicks(Math.min(...ys), Math.max(...ys)), format.bytes, format.seconds, "Time against size", true);
  for (const name of names) {
    const line = (key) => polyline(kept.filter((point) => point[key] > 0).map((point) => [x(point.size_bytes), y(point[key])]));
    svg.append(s("path", { class: `bound ${name}`, d: line(`${name}_bound_s`) }), s("path", { class: `curve ${name}`, d: line(`${name}_s`) }));
  }
  for (const name of names) {
    for (const point of kept) {
      if (!(point[`${name}_s`] > 0)) continue;
      const here = `curve.${point.index}`;
      svg.append(dot([x(point.size_bytes), y(point[`${name}_s`])], name, () => [
        h("b", {}, num(`${here}.size_bytes`, "bytes"), ` ${name}`), num(`${here}.${name}_s`, "seconds"), ` by ${point[`${name}_way`]}; `, "bound ", num(`${here}.${name}_bound_s`, "seconds"),
      ]));
    }
  }
  const legend = h("div", { class: "legend" });
  for (const name of names) legend.append(h("span", { class: `key ${name}` }, names.length > 1 ? name : "time"));
  legend.append(h("span", {}, "dotted: the bound, which no algorithm can beat"));
  return h("section", { id: "curve" }, h("h2", {}, "Time against size"), legend, svg);
}

function sweepSection() {
  const sweep = doc.sweep;
  if (!sweep) return null;
  const points = sweep.points.map((point, index) => ({ ...point, index })).filter((point) => point.best);
  const section = h("section", { id: "sweep" }, h("h2", {}, "Over a range: ", sweep.sweep));
  if (points.length > 1) {
    const xs = points.map((point) => point.value), log = Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 3;
    const ys = points.flatMap((point) => point.algorithms.filter((row) => !row.estimated).map((row) => row.time_s)).filter((value) => value > 0);
    const label = new Map(points.map((point) => [point.value, point.label]));
    const { svg, x, y } = frame(xs, ys, xs, logTicks(Math.min(...ys), Math.max(...ys)), (value) => label.get(value), format.seconds, `Time over ${sweep.sweep}`, log);
    const families = new Map();
    for (const point of points) for (const [place, row] of point.algorithms.entries()) {
      if (row.estimated || !(row.time_s > 0)) continue;
      if (!families.has(row.algorithm)) families.set(row.algorithm, []);
      families.get(row.algorithm).push([x(point.value), y(row.time_s), point, place]);
    }
    const winners = new Set(points.map((point) => point.best.algorithm));
    for (const [algorithm, line] of families) {
      const wins = winners.has(algorithm);
      svg.append(s("path", { d: polyline(line.map(([a, b]) => [a, b])), class: "curve", style: `stroke:var(${wins ? "--before" : "--line"});stroke-width:${wins ? 2.5 : 1.5}` }, s("title", {}, algorithm)));
      for (const [a, b, point, place] of line) {
        if (!wins) continue;
        const here = `sweep.points.${point.index}`, best = point.best.algorithm === algorithm;
        svg.append(dot([a, b], best ? "after" : "before", () => [h("b", {}, point.label, ", ", algorithm), num(`${here}.algorithms.${place}.time_s`, "seconds"), best ? ": the quickest" : ""]));
      }
    }
    // Names stand over the ends of their lines; where lines end close together, over one another.
    const ends = [...families].filter(([algorithm]) => winners.has(algorithm)).map(([algorithm, line]) => ({ algorithm, at: line[line.length - 1] }));
    let above = Infinity;
    for (const end of ends.sort((one, other) => other.at[1] - one.at[1])) {
      above = Math.min(end.at[1] - 9, above - 15);
      svg.append(s("text", { class: "name", x: end.at[0] - 8, y: above, "text-anchor": "end" }, end.algorithm));
    }
    section.append(h("p", { class: "soft small" }, "Diamonds: the quickest there; grey: algorithms that nowhere are."), svg);
  }
  for (const sentence of sweep.crossings) section.append(h("p", {}, sentence));
  return section;
}

function scaleSection() {
  const scale = doc.scale;
  if (!scale) return null;
  const points = scale.points.map((point, index) => ({ ...point, index })).filter((point) => point.time_s > 0);
  const section = h("section", { id: "scale" }, h("h2", {}, "On more and more ranks: ", scale.scale));
  const failed = scale.points.filter((point) => point.error).map((point) => h("p", { class: "soft small" }, num(`scale.points.${scale.points.indexOf(point)}.ranks`, "count"), " ranks: ", point.error));
  if (points.length < 2) return build(section, {}, failed);
  const xs = points.map((point) => point.ranks), step = points[0].efficiency !== null;
  const ys = points.flatMap((point) => [point.time_s, step ? point.time_s - point.exposed_s : point.bound_s]).filter((value) => value > 0);
  const close = Math.max(...ys) / Math.min(...ys) < 4;
  const marks = close ? ticks(Math.min(...ys), Math.max(...ys), 4).filter((value) => value > 0) : logTicks(Math.min(...ys), Math.max(...ys));
  const { svg, x, y } = frame(xs, ys, xs, marks, format.count, format.seconds, "Time over the number of ranks", true);
  const low = points.map((point) => [x(point.ranks), y(step ? point.time_s - point.exposed_s : point.bound_s || point.time_s)]);
  svg.append(s("path", { class: "bound before", d: polyline(low) }), s("path", { class: "curve before", d: polyline(points.map((point) => [x(point.ranks), y(point.time_s)])) }));
  for (const point of points) {
    const here = `scale.points.${point.index}`;
    svg.append(dot([x(point.ranks), y(point.time_s)], "before", () => [
      h("b", {}, num(`${here}.ranks`, "count"), " ranks"), num(`${here}.time_s`, "seconds"), point.way ? ` by ${point.way}` : "",
      ...(step ? ["; exposed ", num(`${here}.exposed_s`, "seconds"), ", efficiency ", num(`${here}.efficiency`, "share")] : ["; bound ", num(`${here}.bound_s`, "seconds")]),
    ]));
  }
  section.append(h("div", { class: "legend" }, h("span", { class: "key" }, step ? "a step" : "time"), h("span", {}, step ? "dotted: a step whose sending is all hidden" : "dotted: the bound")), svg, ...failed);
  return section;
}

function harmSection() {
  const harms = doc.harms;
  if (!harms) return null;
  // The worst in sight, the rest a tap away: a machine without symmetry has a class for each link.
  const many = harms.classes.length > 16;
  const list = h("ol", { class: "harms" }), rest = many ? h("ol", { class: "harms" }) : list;
  const most = Math.max(1.0001, ...harms.classes.map((row) => row.time_ratio || 1));
  harms.classes.forEach((row, index) => {
    const here = `harms.classes.${index}`, cut = row.time_ratio === null;
    const fill = h("span", { class: "fill" });
    fill.style.width = cut ? "100%" : Math.max(0, (100 * (row.time_ratio - 1)) / (most - 1)) + "%";
    (index < 12 ? list : rest).append(h("li", { class: cut ? "cut" : "" }, h("div", { class: "row" },
      h("strong", {}, cut ? "cut off" : num(`${here}.time_ratio`, "change")),
      cut ? null : h("span", {}, num(`${here}.after.time_s`, "seconds")),
      h("code", {}, harms.which[index]),
      h("span", { class: "soft small" }, row.stands_for > 1 ? [num(`${here}.stands_for`, "count"), " alike"] : "only one"),
      cut ? h("span", { class: "soft small" }, `cuts off ${row.cut_off}`) : null,
      row.after && row.after.binding_link ? h("span", { class: "soft small" }, ["then ", words(row.after.binding_link), " binds"]) : null,
      row.rechosen && row.after && row.rechosen.way !== row.after.way && row.rechosen.time_s < row.after.time_s * 0.995
        ? h("span", { class: "soft small" }, `${row.rechosen.way} would take `, num(`${here}.rechosen.time_s`, "seconds")) : null), fill));
  });
  return h("section", { id: "harm" }, h("h2", {}, `Which ${harms.each} matters most`),
    h("p", { class: "soft small" }, "Each of ", num("harms.members", "count"), ` fails in turn, ${harms.changes.length ? "after the changes" : "by itself"}; `, num("harms.size_bytes", "bytes"), " take ", num("harms.before.time_s", "seconds"), ` before, by ${harms.before.way}.`),
    list, many ? h("details", {}, h("summary", {}, "the others of ", num("harms.classes.length", "count"), " classes"), rest) : null, harms.notes.map((note) => h("p", { class: "soft small" }, note)));
}

function stepSection() {
  const steps = doc.steps;
  if (!steps) return null;
  const names = ["before", "after"].filter((name) => steps[name]);
  const section = h("section", { id: "step" }, h("h2", {}, "A training step: ", `${steps.before.workload}, ${steps.before.pattern}`));
  const cards = h("div", { class: "cards" });
  const idle = [["bubble_s", "waiting for other stages: the bubble", "seconds"], ["waiting_s", "waiting for the rank that comes last", "seconds"]].filter(([key]) => names.some((name) => steps[name][key] > 0));
  for (const [key, text, kind] of [["time_s", "a step", "seconds"], ["exposed_s", "communication that nothing hides", "seconds"], ...idle, ["overlap", "of it hidden by computing", "share"], ["efficiency", "of a step without communication", "share"]]) {
    const last = names[names.length - 1];
    cards.append(h("div", { class: "card" }, h("h3", {}, text), h("div", { class: "now" }, num(`steps.${last}.${key}`, kind)),
      names.length > 1 ? h("div", { class: "was" }, "before ", num(`steps.before.${key}`, kind)) : null));
  }
  section.append(cards);
  if (steps.measured_s) section.append(h("p", {}, "In the trace a step takes ", num("steps.measured_s", "seconds"), "."));
  const whole = Math.max(...names.map((name) => steps[name].time_s));
  const width = innerWidth < 600 ? 400 : 860, left = 70, tall = 22;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${names.length * (2 * tall + 22) + 30}`, role: "group", "aria-label": "When collectives run" });
  const x = (seconds) => left + (seconds / whole) * (width - left - 14);
  for (const tick of ticks(0, whole, Math.floor(width / 110))) {
    svg.append(s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 6, y2: names.length * (2 * tall + 22) + 6 }), s("text", { class: "tick", x: x(tick), y: names.length * (2 * tall + 22) + 22, "text-anchor": "middle" }, format.seconds(tick)));
  }
  names.forEach((name, side) => {
    const step = steps[name], y = 12 + side * (2 * tall + 22);
    svg.append(s("text", { x: left - 8, y: y + tall + 4, "text-anchor": "end" }, names.length > 1 ? name : "sends"));
    step.transfers.forEach((transfer, index) => {
      const here = `steps.${name}.transfers.${index}`;
      const bar = s("rect", { x: x(transfer.start), y: y + (index % 2) * (tall + 1), width: Math.max(0.8, x(transfer.end) - x(transfer.start)), height: tall, style: `fill:var(--${name})` });
      const tell = (event) => showTip(event.clientX, event.clientY, [h("b", {}, transfer.what), transfer.collective, " of ", num(`${here}.bytes`, "bytes"), h("br"), num(`${here}.start`, "seconds"), " to ", num(`${here}.end`, "seconds"), "; ready at ", num(`${here}.ready`, "seconds")]);
      bar.addEventListener("pointermove", tell);
      bar.addEventListener("pointerdown", tell);
      bar.addEventListener("pointerleave", hideTip);
      svg.append(bar);
    });
    svg.append(s("line", { x1: x(step.time_s), x2: x(step.time_s), y1: y - 3, y2: y + 2 * tall + 4, style: "stroke:var(--ink);stroke-width:2" }));
  });
  section.append(h("p", { class: "soft small" }, "Each bar is a collective; the line is the end of the step."), svg);
  return section;
}

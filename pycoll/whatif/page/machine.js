"use strict";
// The machine before and after: nodes, and a line for each direction of each cable, dark and wide by load.

// The longest text that its row has room for: the name, its last part, its number.
function nodeBox(side, node) {
  const beside = side.nodes.filter((other) => other !== node && Math.abs(other.y - node.y) < 20).map((other) => Math.abs(other.x - node.x));
  const room = Math.min(160, ...beside) - 4;
  const last = node.label.slice(node.label.lastIndexOf(".") + 1);
  const fitting = (texts, wide) => texts.find((text) => text.length * wide + 8 <= room);
  const number = (text) => (text.match(/[0-9]+$/) || [""])[0];
  const label = fitting([node.label, last, number(last)], 7.3) || "";
  const under = fitting([node.under, node.under.replace(/[^0-9]/g, "")], 6.4) || "";
  const width = Math.max(Math.min(30, room), label.length * 7.3 + 10, under.length * 6.4 + 10);
  return { label, under, width: Math.min(width, Math.max(room, 12)), height: under ? 36 : 24 };
}

function cablePath(side, a, b, offset) {
  // Each direction keeps to its own side, as traffic does. In a row, cables bow around what stands between.
  const dx = b.x - a.x, dy = b.y - a.y, far = Math.hypot(dx, dy) || 1;
  const ox = (-dy / far) * offset, oy = (dx / far) * offset;
  const start = [a.x + ox, a.y + oy], end = [b.x + ox, b.y + oy];
  const level = Math.abs(dy) < 1 && Math.abs(dx) > 110;
  const upright = Math.abs(dx) < 1 && Math.abs(dy) > 110 && side.sort === "grid";
  let middle = [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2];
  if (side.sort !== "circle" && (level || upright)) {
    const bow = side.sort === "tiers" && a.kind === "device" && b.kind === "device"
      ? Math.min(90, 18 + 0.12 * far)
      : -Math.min(60, 14 + 0.1 * far);
    middle = level ? [middle[0], middle[1] + 2 * bow + (dx < 0 ? -1 : 1) * offset] : [middle[0] + 2 * bow, middle[1]];
    return [`M${start}Q${middle} ${end}`, [0.25 * start[0] + 0.5 * middle[0] + 0.25 * end[0], 0.25 * start[1] + 0.5 * middle[1] + 0.25 * end[1]]];
  }
  return [`M${start}L${end}`, middle];
}

// How far cables bow out above and below the nodes.
function roomFor(side) {
  let top = 16, low = 14;
  for (const cable of side.cables) {
    const [, middle] = cablePath(side, side.nodes[cable.a], side.nodes[cable.b], 3);
    top = Math.max(top, 36 - middle[1]);
    low = Math.max(low, middle[1] + 12 - side.height);
  }
  return [top, low];
}

function machineSvg(name) {
  const side = doc.picture[name], size = Math.min(state.size, side.loads.length - 1);
  const loads = side.loads[size], path = `picture.${name}`;
  const row = doc.comparison.rows[state.size] && doc.comparison.rows[state.size][name];
  const binding = row && row.binding_link ? row.binding_link : "";
  const [top, low_] = roomFor(side);
  const svg = s("svg", {
    viewBox: `0 ${-top} ${side.width} ${side.height + top + low_}`, role: "group", tabindex: 0,
    "aria-label": `The machine ${name}. Arrow keys go from link to link, the busiest first.`,
  });
  const thin = side.cables.length > 200 ? 0.6 : 1;
  const low = s("g"), high = s("g"), marks = s("g"), boxes = s("g");
  svg.append(low, high, boxes, marks);
  const order = side.cables.map((_, index) => index);
  order.sort((a, b) => Math.max(...loads.cables[a]) - Math.max(...loads.cables[b]));
  const groups = new Map();
  for (const index of order) {
    const cable = side.cables[index], a = side.nodes[cable.a], b = side.nodes[cable.b];
    const gone = cable.state === "gone";
    const ways = gone ? [0] : [0, 1].filter((way) => cable.links[way] > 0);
    const busy = Math.max(...loads.cables[index]);
    const group = s("g", { class: `cable ${cable.state}` });
    const [both, middle] = cablePath(side, a, b, 0);
    group.append(s("path", { d: both, class: "hit" }));
    for (const way of ways) {
      const share = loads.cables[index][way];
      const offset = gone || ways.length === 1 ? 0 : 2.6;
      const [line] = way ? cablePath(side, b, a, offset) : cablePath(side, a, b, offset);
      group.append(s("path", {
        d: line,
        style: gone ? null : `stroke:var(--load${loadClass(share)});stroke-width:${(loadWidth(share) * thin).toFixed(1)}`,
      }));
    }
    const tell = (x, y) => showTip(x, y, cableTip(path, size, index, name));
    group.addEventListener("pointermove", (event) => tell(event.clientX, event.clientY));
    group.addEventListener("pointerdown", (event) => tell(event.clientX, event.clientY));
    group.addEventListener("pointerleave", hideTip);
    if (window.live) group.addEventListener("dblclick", () => window.live.toggle(cable));
    groups.set(index, group);
    (busy > 0 ? high : low).append(group);
    const mark = { gone: "\u2715", changed: "\u25c6", new: "+" }[cable.state];
    const near = [middle[0] * 0.5 + a.x * 0.25 + b.x * 0.25, middle[1]];
    if (mark) marks.append(s("text", { class: `mark ${cable.state}`, x: near[0], y: near[1] + 5, "text-anchor": "middle" }, mark));
    if (binding && isOf(binding, a.name, b.name, cable.name)) {
      const edge = middle[0] > side.width - 60 ? "end" : middle[0] < 60 ? "start" : "middle";
      marks.append(s("text", { class: "binds", x: middle[0], y: middle[1] - 8 - (mark ? 12 : 0), "text-anchor": edge }, "binds"));
    }
  }
  side.nodes.forEach((node, index) => {
    const box = nodeBox(side, node), inside = loads.inside[index];
    const rect = { x: node.x - box.width / 2, y: node.y - box.height / 2, width: box.width, height: box.height, rx: node.kind === "switch" ? 4 : 9 };
    if (inside > 0) rect.style = `stroke:var(--load${loadClass(inside)});stroke-width:${loadWidth(inside).toFixed(1)}`;
    const group = s("g", { class: `node ${node.kind} ${node.state || ""}` }, s("rect", rect),
      s("text", { x: node.x, y: node.y + (box.under ? -2 : 4), "text-anchor": "middle" }, box.label),
      box.under && s("text", { class: "under", x: node.x, y: node.y + 12, "text-anchor": "middle" }, box.under));
    const tell = (event) => showTip(event.clientX, event.clientY, [
      h("b", {}, node.name), node.kind, node.under ? ", " + node.under : "",
      node.stands_for > 1 ? [", ", num(`${path}.nodes.${index}.stands_for`, "count"), " nodes"] : "",
      inside > 0 ? [h("br"), "links inside busy up to ", num(`${path}.loads.${size}.inside.${index}`, "share"), " of the time"] : "",
    ].flat(9));
    group.addEventListener("pointermove", tell);
    group.addEventListener("pointerdown", tell);
    group.addEventListener("pointerleave", hideTip);
    boxes.append(group);
  });
  const byLoad = order.slice().reverse();
  let place = -1;
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: "first", End: "last" }[event.key];
    if (!step) return;
    event.preventDefault();
    place = step === "first" ? 0 : step === "last" ? byLoad.length - 1 : (place + step + byLoad.length) % byLoad.length;
    groups.forEach((group) => group.classList.remove("chosen"));
    const group = groups.get(byLoad[place]);
    group.classList.add("chosen");
    const box = group.getBoundingClientRect();
    showTip(box.x + box.width / 2, Math.min(box.bottom, innerHeight - 120), cableTip(path, size, byLoad[place], name));
  });
  svg.addEventListener("blur", () => {
    groups.forEach((group) => group.classList.remove("chosen"));
    hideTip();
  });
  return svg;
}

// Whether a directed link's name is one of the cable between these two, or between members of groups so named.
function isOf(link, a, b, cable) {
  const [from, to] = link.replace(/#.*/, "").split("->");
  if (to === undefined) return link === cable;
  const within = (node, group) => node === group || node.startsWith(group + ".");
  return (within(from, a) && within(to, b)) || (within(from, b) && within(to, a));
}

function cableTip(path, size, index, name) {
  const cable = at(`${path}.cables.${index}`), here = `${path}.cables.${index}`;
  const side = at(path), a = side.nodes[cable.a].name, b = side.nodes[cable.b].name;
  const lines = [h("b", {}, cable.name, cable.kind ? ` (${cable.kind})` : "")];
  if (cable.state === "gone") lines.push("gone; it was ");
  if (cable.state === "changed") lines.push("changed; now ");
  if (cable.state === "new") lines.push("new: ");
  lines.push(num(`${here}.bandwidth_bytes_per_s`, "rate"), " a direction, ", num(`${here}.latency_s`, "seconds"));
  if (cable.links[0] > 1) lines.push(", ", num(`${here}.links.0`, "count"), " links");
  if (cable.state !== "gone") {
    const busy = `${path}.loads.${size}.cables.${index}`;
    if (cable.links[0]) lines.push(h("br"), `${a} \u2192 ${b}: busy `, num(`${busy}.0`, "share"));
    if (cable.links[1]) lines.push(h("br"), `${b} \u2192 ${a}: busy `, num(`${busy}.1`, "share"));
  }
  return lines;
}

function machineSection() {
  if (!doc.picture) return null;
  const both = doc.picture.after !== null;
  const natural = Math.max(...["before", "after"].map((name) => (doc.picture[name] ? doc.picture[name].width : 0)));
  const sides = h("div", { class: "sides" });
  // Wide machines stand below one another, others side by side.
  const column = natural * 0.6 > 560 ? 4000 : Math.min(natural * 0.8, 560);
  sides.style.gridTemplateColumns = `repeat(auto-fit, minmax(min(100%, ${Math.round(column)}px), 1fr))`;
  for (const name of both ? ["before", "after"] : ["before"]) {
    const svg = machineSvg(name);
    svg.style.width = "100%";
    // A little too small to read at ease is better than out of sight; a lot too small is not.
    const wide = doc.picture[name].width;
    svg.style.minWidth = wide * 0.6 <= innerWidth - 30 ? 0 : Math.round(Math.min(wide * 0.8, 1500)) + "px";
    svg.style.maxHeight = "min(78vh, 720px)";
    sides.append(h("div", { class: `side ${name}${both ? "" : " alone"}` }, h("h3", {}, both ? { before: "Before", after: "After" }[name] : "The machine"), h("div", { class: "scroll" }, svg)));
  }
  const legend = h("div", { class: "legend", "aria-hidden": "true" }, "busy:");
  const shares = ["idle or little", "a fifth", "two fifths", "three fifths", "four fifths", "all the time"];
  LOADS.forEach((_, index) => {
    const line = s("svg", { width: 30, height: 10 }, s("line", { x1: 2, x2: 28, y1: 5, y2: 5, "stroke-linecap": "round", style: `stroke:var(--load${index});stroke-width:${loadWidth(index / 5)}` }));
    legend.append(h("span", {}, line, shares[index]));
  });
  if (both) legend.append(h("span", {}, "\u2715 gone"), h("span", {}, "\u25c6 changed"));
  return h("section", { id: "machine" }, h("h2", {}, "Where the time goes on the machine"),
    h("p", { class: "soft small" }, "Each cable is a line a direction: the darker (on a dark page, the lighter) and wider, the busier. Point, tap, or use the arrow keys for figures."),
    legend, sides);
}

"use strict";
// Elements, and numbers: each is taken from the document by its path and says so in data-path.

let doc = JSON.parse(document.getElementById("document").textContent);
const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}
const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

function at(path) {
  return path.split(".").reduce((value, key) => (value === null || value === undefined ? value : value[key]), doc);
}

const digits = (value, count) => {
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(value)) + 1e-12);
  return power >= count ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(count)));
};
const format = {
  seconds(value) {
    for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]]) {
      if (value >= scale * 0.9995) return digits(value / scale, 3) + " " + unit;
    }
    return value === 0 ? "0 s" : digits(value / 1e-9, 3) + " ns";
  },
  bytes(value) {
    let unit = "B", scale = 1;
    for (const [name, size] of [["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]]) {
      if (value >= size) [unit, scale] = [name, size];
    }
    return digits(value / scale, 4) + " " + unit;
  },
  rate(value) {
    return digits(value / 1e9, 4) + " GB/s";
  },
  share(value) {
    return digits(value * 100, 2) + "%";
  },
  times(value) {
    return digits(value, 3) + " x";
  },
  change(value) {
    const percent = 100 * (value - 1);
    if (Math.abs(percent) < 0.05) return "unchanged";
    if (value >= 3) return digits(value, 3) + " x";
    return (percent > 0 ? "+" : "\u2212") + digits(Math.abs(percent), 2) + "%";
  },
  count(value) {
    return value.toLocaleString("en");
  },
};

// A number of the document, or a dash where there is none.
function num(path, kind) {
  const value = at(path);
  if (value === null || value === undefined) return h("span", {}, "\u2013");
  return h("data", { value, "data-path": path, "data-kind": kind }, format[kind](value));
}

// Text of the document, to be read: links have arrows, and long names may break.
function words(text) {
  return text.replaceAll("->", "\u2192").split("/").flatMap((part, index) => (index ? ["/", h("wbr"), part] : [part]));
}

// ---- what is chosen on the page

const state = { size: 0, rows: "ranks", critical: true };

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LOADS = [0, 0.2, 0.4, 0.6, 0.8, 0.95];
const loadClass = (share) => LOADS.reduce((found, least, index) => (share > least || index === 0 ? index : found), 0);
const loadWidth = (share) => 1.4 + 4.2 * Math.min(1, share);

// ---- the tip

const tip = document.getElementById("tip");
function showTip(x, y, content) {
  tip.replaceChildren(...content);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.max(6, Math.min(innerWidth - box.width - 6, x + 14));
  const top = y + 18 + box.height > innerHeight ? y - box.height - 14 : y + 18;
  tip.style.left = left + "px";
  tip.style.top = Math.max(6, top) + "px";
}
function hideTip() {
  tip.hidden = true;
}
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
addEventListener("scroll", hideTip, { passive: true });

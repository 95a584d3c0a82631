"use strict";
// Sliders of a page that is served: each change asks the server anew, the newest question wins.

(function () {
  const setup = JSON.parse(document.getElementById("live").textContent);
  if (!setup) return;
  const values = new Map();
  let asked = 0, timer = 0, running = null;
  const refusal = h("p", { class: "refusal", role: "alert" });
  const flags = h("input", { type: "text", class: "flags", id: "flags", spellcheck: "false", autocomplete: "off", placeholder: setup.example, value: setup.flags, onchange: () => soon(0) });
  const size = h("select", { id: "size", onchange: () => soon(0) }, setup.sizes.map((each) => h("option", { value: each, selected: each === setup.size }, each)));
  const algorithm = h("select", { id: "algorithm", onchange: () => soon(0) }, setup.algorithms.map((each) => h("option", { value: each, selected: each === setup.algorithm }, each)));
  const collective = h("select", { id: "collective", onchange: () => soon(0) }, setup.collectives.map((each) => h("option", { value: each, selected: each === setup.collective }, each)));

  function slider(spec) {
    const input = h("input", { type: "range", id: spec.id, min: 0, max: spec.steps.length - 1, step: 1, value: spec.start });
    const output = h("output", { for: spec.id }, spec.labels[spec.start]);
    const box = h("div", { class: "slider" }, h("label", { for: spec.id }, h("span", {}, spec.text), output), input);
    input.setAttribute("aria-valuetext", spec.labels[spec.start]);
    input.addEventListener("input", () => {
      output.textContent = spec.labels[input.value];
      input.setAttribute("aria-valuetext", spec.labels[input.value]);
      const touched = Number(input.value) !== spec.start;
      box.classList.toggle("touched", touched);
      if (touched) values.set(spec.id, spec.steps[input.value]); else values.delete(spec.id);
      soon(180);
    });
    return { box, reset: () => { input.value = spec.start; input.dispatchEvent(new Event("input")); } };
  }
  const sliders = setup.sliders.map(slider);
  const reset = h("button", { type: "button", onclick: () => { flags.value = ""; sliders.forEach((each) => each.reset()); soon(0); } }, "as it was");

  function soon(delay) {
    clearTimeout(timer);
    timer = setTimeout(ask, delay);
  }
  async function ask() {
    const mine = ++asked;
    if (running) running.abort();
    running = new AbortController();
    document.body.classList.add("busy");
    const question = { collective: collective.value, size: size.value, algorithm: algorithm.value, flags: [...values.values(), flags.value].join(" ").trim() };
    try {
      const answer = await fetch("answer", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question), signal: running.signal });
      const found = await answer.json();
      if (mine !== asked) return;
      if (!answer.ok) refusal.textContent = found.error;
      else { refusal.textContent = ""; doc = found; show(); }
    } catch (error) {
      if (error.name !== "AbortError") refusal.textContent = "The server no longer answers: start it again.";
    }
    if (mine === asked) document.body.classList.remove("busy");
  }

  window.live = {
    section: h("section", { id: "live", "aria-label": "What if" }, h("h2", {}, "What if"),
      h("div", { class: "bar" }, [["collective", collective], ["size", size], ["algorithm", algorithm]].map(([text, select]) => h("span", { class: "pick" }, h("label", { for: text }, text), select)), reset),
      h("div", { class: "sliders" }, sliders.map((each) => each.box)),
      h("label", { for: "flags", class: "small soft" }, "more changes, as on the command line; a double click on a link fails it"), flags, refusal),
    toggle(cable) {
      const flag = `--fail link:${cable.name}`, all = flags.value.trim();
      flags.value = all.includes(flag) ? all.replace(flag, "").replace(/\s+/g, " ").trim() : `${all} ${flag}`.trim();
      soon(0);
    },
  };
})();

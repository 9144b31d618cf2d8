// What the reader does with the page: read points, zoom, hide series, print, watch a run.
(() => {
  const view = {range: null, smoothing: 0, log: false, groups: new Set(), lines: new Set()};
  let panels = [], all = [0, 1], scales = [], alts = [], drag = null;
  const data = () => JSON.parse(document.getElementById("data").textContent);
  const plots = () => [...document.querySelectorAll(".plot")];
  const indexOf = (plot) => Number(plot.closest("figure").dataset.panel);
  const number = (y) => Math.abs(y) >= 1e5 || (y !== 0 && Math.abs(y) < 1e-3)
    ? y.toExponential(2) : y.toLocaleString("en", {maximumSignificantDigits: 5});
  const steps = (x) => Math.round(x).toLocaleString("en");

  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) { low = middle; } else { high = middle; }
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  const drawPlot = (plot) => {
    const i = indexOf(plot), drawn = chart.draw(panels[i], view, all, alts[i], i);
    scales[i] = drawn.scales;
    plot.querySelector("svg").replaceWith(drawn.svg);
    plot.querySelector(".tip").hidden = true;
  };
  const drawAll = () => {
    plots().forEach(drawPlot);
    document.querySelectorAll("[data-group]").forEach((button) => button.setAttribute(
      "aria-pressed", String(!view.groups.has(Number(button.dataset.group)))));
    document.querySelectorAll("[data-line]").forEach((button) => button.setAttribute(
      "aria-pressed", String(!view.lines.has(button.dataset.line))));
    const smoothing = document.querySelector("[data-tool=smoothing]");
    smoothing.value = view.smoothing;
    smoothing.nextElementSibling.textContent = view.smoothing.toFixed(2);
    document.querySelector("[data-tool=log]").checked = view.log;
    document.querySelectorAll("[data-needs-zoom]").forEach((button) => {
      button.disabled = !view.range;
    });
  };

  // -- reading points ----------------------------------------------------------------------------

  const hideTips = () => document.querySelectorAll(".plot").forEach((plot) => {
    plot.querySelector(".tip").hidden = true;
    const reading = plot.querySelector(".reading");
    if (reading) { reading.replaceChildren(); }
  });
  const where = (plot, event) => {
    const at = plot.querySelector("svg").getBoundingClientRect();
    return [(event.clientX - at.left) * chart.SIZE.width / at.width,
      (event.clientY - at.top) * chart.SIZE.height / at.height];
  };
  const inBox = (x) => x >= chart.BOX.left && x <= chart.BOX.left + chart.BOX.width;

  // The point that is closest to a place in the picture: [line, index]; null without lines.
  const closest = (panel, scale, x, y) => {
    let best = null, least = Infinity;
    chart.shownLines(panel, view).forEach((line) => {
      const i = nearest(line.x, scale.step(x)), value = chart.valuesOf(line, view, scale.log)[i];
      if (value === null) { return; }
      const distance = Math.hypot(scale.x(line.x[i]) - x, (scale.y(value) - y) / 4);
      if (distance < least) { [best, least] = [[line, i], distance]; }
    });
    return best;
  };

  const described = (line, i, step) => {
    const band = line.low ? ` (${number(line.low[i])} to ${number(line.high[i])})` : "";
    const smooth = view.smoothing
      ? `, smoothed ${number(chart.smoothed(line.y, view.smoothing)[i])}` : "";
    const other = line.x[i] === step ? "" : ` at ${steps(line.x[i])}`;
    return `${line.label}: ${number(line.y[i])}${band}${smooth}${other}`;
  };

  // Show a point of one line, and the nearest points of the others with their steps.
  const showPoint = (plot, [line, i]) => {
    const panel = panels[indexOf(plot)], scale = scales[indexOf(plot)], step = line.x[i];
    const marks = [chart.element("line", {x1: scale.x(step), x2: scale.x(step), y1: chart.BOX.top,
      y2: chart.BOX.top + chart.BOX.height, class: "cursor"})];
    const rows = chart.shownLines(panel, view).map((other) => {
      const j = other === line ? i : nearest(other.x, step);
      const value = chart.valuesOf(other, view, scale.log)[j];
      if (value !== null) {
        marks.push(chart.element("circle", {cx: scale.x(other.x[j]), cy: scale.y(value), r: 3,
          fill: `var(--c${other.colour})`}));
      }
      return described(other, j, step);
    });
    hideTips();
    plot.querySelector(".reading").replaceChildren(...marks);
    const tip = plot.querySelector(".tip"), width = plot.clientWidth;
    const over = scale.x(step) / chart.SIZE.width * width;
    tip.textContent = [`${steps(step)} steps`, ...rows].join("\n");
    tip.style.left = over < width / 2 ? `${over + 12}px` : "auto";
    tip.style.right = over < width / 2 ? "auto" : `${width - over + 12}px`;
    tip.style.maxWidth = `${Math.max(over, width - over) - 12}px`;
    tip.hidden = false;
  };

  const read = (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    if (!plot || !scales.length) { hideTips(); return; }
    const [x, y] = where(plot, event);
    const point = inBox(x) && closest(panels[indexOf(plot)], scales[indexOf(plot)], x, y);
    if (point) { showPoint(plot, point); } else { hideTips(); }
  };

  // -- zoom and pan ------------------------------------------------------------------------------

  const show = (range) => {
    const [low, high] = all, least = (high - low) / 1000;
    if (range && range[1] - range[0] < high - low) {
      const size = Math.max(least, range[1] - range[0]);
      const from = Math.min(Math.max(low, range[0]), high - size);
      view.range = [from, from + size];
    } else { view.range = null; }
    drawAll();
  };
  const zoom = (factor) => {
    const [from, to] = view.range || all, middle = (from + to) / 2;
    show([middle - (to - from) * factor / 2, middle + (to - from) * factor / 2]);
  };
  const pan = (share) => {
    const [from, to] = view.range || all, by = share * (to - from);
    show([from + by, to + by]);
  };

  const beginDrag = (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    if (!plot || event.pointerType === "touch" || event.button !== 0) { return; }
    const scale = scales[indexOf(plot)], x = where(plot, event)[0];
    if (inBox(x)) { drag = {plot, scale, x, pans: event.shiftKey, range: view.range || all}; }
  };
  const moveDrag = (event) => {
    if (!event.buttons) { drag = null; drawAll(); return; }  // it was released outside
    const {BOX} = chart, x = where(drag.plot, event)[0];
    if (drag.pans) {
      const by = drag.scale.step(drag.x) - drag.scale.step(x);
      show([drag.range[0] + by, drag.range[1] + by]);
      return;
    }
    const ends = [drag.x, x].map((end) => Math.min(Math.max(end, BOX.left), BOX.left + BOX.width));
    drag.ends = ends.sort((a, b) => a - b);
    hideTips();
    drag.plot.querySelector(".reading").replaceChildren(chart.element("rect", {x: ends[0],
      y: BOX.top, width: ends[1] - ends[0], height: BOX.height, class: "selection"}));
  };
  const endDrag = () => {
    const {ends, scale} = drag;
    drag = null;
    if (ends && ends[1] - ends[0] > 4) { show(ends.map(scale.step)); }
  };

  document.addEventListener("pointerdown", (event) => { beginDrag(event); read(event); });
  document.addEventListener("pointermove", (event) => (drag ? moveDrag : read)(event));
  document.addEventListener("pointerup", () => { if (drag) { endDrag(); } });
  document.addEventListener("pointercancel", () => { drag = null; });
  document.addEventListener("dblclick", (event) => {
    if (event.target.closest(".plot")) { show(null); }
  });

  // -- keys and controls -------------------------------------------------------------------------

  const tools = {in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25),
    right: () => pan(0.25), reset: () => show(null)};
  const KEYS = {"+": "in", "=": "in", "-": "out", "0": "reset"};
  let reading = 0;
  const step = (plot, by) => {
    const line = chart.shownLines(panels[indexOf(plot)], view)[0];
    if (!line) { return; }
    const [from, to] = view.range || all;
    const seen = line.x.map((_, i) => i).filter((i) => line.x[i] >= from && line.x[i] <= to);
    if (!seen.length) { return; }
    const known = seen.includes(reading) && !plot.querySelector(".tip").hidden;
    reading = known ? seen[Math.min(Math.max(seen.indexOf(reading) + by, 0), seen.length - 1)]
      : seen[by > 0 ? 0 : seen.length - 1];
    showPoint(plot, [line, reading]);
  };
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) { return; }
    const arrow = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (arrow) { step(plot, arrow); } else if (event.key === "Escape") { hideTips(); }
    else if (KEYS[event.key]) { tools[KEYS[event.key]](); } else { return; }
    event.preventDefault();
  });
  const toggle = (set, value) => { if (!set.delete(value)) { set.add(value); } };
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("button");
    if (!button) { return; }
    const {tool, group, line} = button.dataset;
    if (tool) { tools[tool](); return; }
    if (group !== undefined) { toggle(view.groups, Number(group)); }
    if (line !== undefined) { toggle(view.lines, line); }
    drawAll();
  });
  document.addEventListener("input", (event) => {
    const {tool} = event.target.dataset;
    if (tool === "smoothing") { view.smoothing = Number(event.target.value); }
    if (tool === "log") { view.log = event.target.checked; }
    if (tool) { drawAll(); }
  });

  // -- the page ----------------------------------------------------------------------------------

  const begin = () => {
    panels = data();
    if (!panels.length) { return; }
    all = chart.allSteps(panels);
    alts = plots().map((plot) => plot.querySelector("svg").getAttribute("aria-label"));
    plots().forEach((plot) => { plot.tabIndex = 0; });
    document.querySelectorAll(".tools, .legend button").forEach((one) => {
      one.hidden = one.disabled = false;
    });
    drawAll();
  };
  begin();

  // Paper shows what is folded on the screen, too.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => { folded.forEach((one) => { one.open = false; }); });

  // A page of a run in progress replaces its content regularly; view, focus and details stay.
  const FOCUSABLE = "a, button, input, summary, .plot";
  const replace = (html) => {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    const open = [...document.querySelectorAll("details")].map((one) => one.open);
    const at = [...document.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(open[i]); });
    begin();
    const focused = at < 0 ? null : document.querySelectorAll(FOCUSABLE)[at];
    if (focused) { focused.focus({preventScroll: true}); }
  };
  const seconds = Number(document.body.dataset.refresh);
  const again = async () => {
    try {
      const busy = drag || document.querySelector(".tools :active");
      const answer = busy ? null : await fetch(location.href, {cache: "no-store"});
      if (answer && answer.ok) { replace(await answer.text()); }
    } catch { /* the server has stopped: the content stays */ }
    setTimeout(again, 1000 * seconds);
  };
  if (seconds) { setTimeout(again, 1000 * seconds); }
})();

"use strict";
// Draws a panel of the page's data as SVG, in the view that the reader has chosen.
//
// view: {range: [from, to] in steps or null for all, smoothing: 0 to 1, log: boolean,
//        groups: Set of hidden groups, lines: Set of hidden lines, as lineKey names them}
const chart = (() => {
  const SIZE = {width: 331, height: 180}, BOX = {left: 42, top: 8, width: 281, height: 150};
  const element = (name, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    node.append(...children);
    return node;
  };

  // A number with at most four digits: 1.5M, 0.02.
  const short = (value) => {
    const size = Math.abs(value), digits = (x) => String(Number(x.toPrecision(4)));
    for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= factor && (factor > 1e3 || size >= 1e4)) { return digits(value / factor) + unit; }
    }
    return size === 0 || size >= 1e-3 ? digits(value) : value.toExponential(3)
      .replace(/\.?0+e/, "e");
  };

  // An exponential moving average, without bias towards the first value; null stays null.
  const smoothed = (values, weight) => {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value === null) { return null; }
      sum = weight * sum + value;
      total = weight * total + 1;
      return sum / total;
    });
  };

  const linearTicks = (low, high, count = 5) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
    const first = Math.ceil(low / step - 1e-9), ticks = [];
    for (let i = first; i * step <= high + 1e-9 * step && ticks.length < 20; i++) {
      ticks.push(i * step);
    }
    return ticks;
  };

  const logTicks = (low, high) => {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    const every = Math.ceil((to - from) / 6), ticks = [];
    const factors = high / low <= 100 ? [1, 2, 5] : [1];
    for (let power = from; power <= to; power += every) {
      factors.forEach((factor) => ticks.push(factor * 10 ** power));
    }
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  };

  const lineKey = (panel, line) => `${panel.title}|${line.at}`;
  const shownLines = (panel, view) => panel.lines.filter(
    (line) => !view.groups.has(line.group) && !view.lines.has(lineKey(panel, line)));

  // All steps of a panel, with a small margin; hidden lines count, so that plots stay comparable.
  const allSteps = (panels) => {
    const ends = panels.flatMap((panel) => panel.lines.flatMap(
      (line) => line.x.length ? [line.x[0], line.x[line.x.length - 1]] : []));
    const low = Math.min(...ends), high = Math.max(...ends), margin = 0.03 * (high - low) || 1;
    return [low - margin, high + margin];
  };

  // What a line shows: its values, smoothed if asked, null where a logarithm has none.
  const valuesOf = (line, view, log) => {
    const values = view.smoothing ? smoothed(line.y, view.smoothing) : line.y;
    return log ? values.map((value) => value > 0 ? value : null) : values;
  };

  // The range of values in view; null if there are none.
  const valueRange = (panel, view, log, [from, to]) => {
    const seen = panel.level !== null && (!log || panel.level > 0) ? [panel.level] : [];
    shownLines(panel, view).forEach((line) => {
      const curves = [valuesOf(line, view, log), ...(line.low ? [line.low, line.high] : [])];
      if (view.smoothing) { curves.push(line.y); }
      line.x.forEach((x, i) => {
        if (x >= from && x <= to) { curves.forEach((values) => seen.push(values[i])); }
      });
    });
    const known = seen.filter((y) => y !== null && Number.isFinite(y) && (!log || y > 0));
    if (!known.length) { return null; }
    let low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
    if (log) { return [low / 1.15, high * 1.15]; }
    if (panel.share) { return [-0.03, 1.03]; }
    const size = Math.max(Math.abs(low), Math.abs(high)), isFlat = high - low < 1e-6 * size;
    const margin = isFlat ? 0.05 * size : 0.05 * (high - low) || 1;
    return [low - margin, high + margin];
  };

  // Scales of a panel: from steps and values to the picture, and back to steps.
  const scalesOf = (panel, view, all) => {
    const steps = view.range || all;
    let log = view.log, values = log ? valueRange(panel, view, true, steps) : null;
    if (!values) { log = false; values = valueRange(panel, view, false, steps) || [0, 1]; }
    const to = log ? Math.log : (y) => y, [low, high] = values.map(to);
    return {
      log, steps, values,
      x: (step) => BOX.left + BOX.width * (step - steps[0]) / (steps[1] - steps[0]),
      y: (value) => BOX.top + BOX.height * (high - to(value)) / (high - low),
      step: (x) => steps[0] + (x - BOX.left) / BOX.width * (steps[1] - steps[0]),
    };
  };

  const pathOf = (xs, ys, scales) => {
    let text = "", pen = "M";
    xs.forEach((x, i) => {
      if (ys[i] === null || (scales.log && ys[i] <= 0)) { pen = "M"; return; }
      text += `${pen}${scales.x(x).toFixed(1)},${scales.y(ys[i]).toFixed(1)}`;
      pen = "L";
    });
    return text;
  };

  const bandOf = (line, scales) => {
    const ends = line.x.map((_, i) => i).filter((i) => !scales.log || line.low[i] > 0);
    const points = [...ends.map((i) => [i, line.high]), ...ends.reverse().map((i) => [i, line.low])];
    const text = points.map(
      ([i, values]) => `${scales.x(line.x[i]).toFixed(1)},${scales.y(values[i]).toFixed(1)}`);
    return element("polygon", {points: text.join(" "), fill: `var(--c${line.colour})`,
      "fill-opacity": 0.2});
  };

  const drawnLine = (line, view, scales) => {
    const colour = `var(--c${line.colour})`, values = valuesOf(line, view, scales.log);
    const node = element("g", {class: "line"});
    if (line.low) { node.append(bandOf(line, scales)); }
    const look = {fill: "none", stroke: colour, "stroke-linejoin": "round"};
    if (view.smoothing) {
      node.append(element("path", {...look, d: pathOf(line.x, line.y, scales),
        "stroke-width": 1, "stroke-opacity": 0.35}));
    }
    node.append(element("path", {...look, d: pathOf(line.x, values, scales),
      "stroke-width": 1.4, class: `s${line.at}`}));
    const marked = line.points || line.x.length === 1;
    line.x.forEach((x, i) => {
      if (marked && values[i] !== null) {
        node.append(element("circle", {cx: scales.x(x).toFixed(1),
          cy: scales.y(values[i]).toFixed(1), r: 1.8, fill: colour}));
      }
    });
    return node;
  };

  const axes = (scales) => {
    const node = element("g", {class: "axes"}), [bottom, right] =
      [BOX.top + BOX.height, BOX.left + BOX.width];
    const grid = (x1, y1, x2, y2) => node.append(element("line", {x1, y1, x2, y2}));
    const text = (x, y, anchor, content) => node.append(
      element("text", {x, y, "text-anchor": anchor}, content));
    linearTicks(...scales.steps).forEach((step) => {
      const x = scales.x(step);
      grid(x, BOX.top, x, bottom);
      text(x, bottom + 13, "middle", short(step));
    });
    const ticks = scales.log ? logTicks(...scales.values) : linearTicks(...scales.values);
    (ticks.length ? ticks : scales.values).forEach((value) => {
      const y = scales.y(value);
      grid(BOX.left, y, right, y);
      text(BOX.left - 5, y + 3, "end", short(value));
    });
    if (scales.log) { text(0, bottom + 13, "start", "log"); }
    return node;
  };

  // The picture of a panel, and its scales. alt describes it to those who don't see it.
  const draw = (panel, view, all, alt, id) => {
    const scales = scalesOf(panel, view, all), clip = `clip-${id}`;
    const svg = element("svg", {viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img",
      "aria-label": alt});
    svg.append(element("clipPath", {id: clip}, element("rect",
      {x: BOX.left, y: BOX.top - 2, width: BOX.width, height: BOX.height + 4})));
    svg.append(axes(scales));
    const inside = element("g", {"clip-path": `url(#${clip})`});
    if (panel.level !== null && (!scales.log || panel.level > 0)) {
      const y = scales.y(panel.level);
      inside.append(element("line", {x1: BOX.left, y1: y, x2: BOX.left + BOX.width, y2: y,
        class: "level"}));
    }
    inside.append(...shownLines(panel, view).map((line) => drawnLine(line, view, scales)));
    inside.append(element("g", {class: "reading"}));
    svg.append(inside);
    return {svg, scales};
  };

  return {BOX, SIZE, allSteps, draw, element, lineKey, linearTicks, logTicks, short, shownLines,
    smoothed, valuesOf};
})();

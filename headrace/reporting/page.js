"use strict";
(() => {
  const number = (y) => Math.abs(y) >= 1e5 || (y !== 0 && Math.abs(y) < 1e-3)
    ? y.toExponential(2) : y.toLocaleString("en", {maximumSignificantDigits: 5});
  const held = () => JSON.parse(document.getElementById("data").textContent);
  let panels = held();
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) { low = middle; } else { high = middle; }
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  // Beside the pointer: the values of all curves at the steps that it is over.
  const show = (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    document.querySelectorAll(".tip").forEach((tip) => { tip.hidden = true; });
    if (!plot) { return; }
    const panel = panels[Number(plot.parentElement.dataset.panel)];
    const svg = plot.querySelector("svg"), at = svg.getBoundingClientRect();
    const [left, , width] = panel.box, [from, to] = panel.xlim;
    const part = ((event.clientX - at.left) * svg.viewBox.baseVal.width / at.width - left) / width;
    if (part < 0 || part > 1) { return; }
    const x = from + part * (to - from), tip = plot.querySelector(".tip");
    const lines = panel.lines.map((line) => {
      const i = nearest(line.x, x);
      const band = line.low ? ` (${number(line.low[i])} to ${number(line.high[i])})` : "";
      return `${line.label}: ${number(line.y[i])}${band}`;
    });
    tip.textContent = [`${Math.round(x).toLocaleString("en")} steps`, ...lines].join("\n");
    tip.hidden = false;
    const over = event.clientX - at.left;
    tip.style.left = over < at.width / 2 ? `${over + 14}px` : "auto";
    tip.style.right = over < at.width / 2 ? "auto" : `${at.width - over + 14}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  // Paper shows what is folded on the screen, too.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => { folded.forEach((one) => { one.open = false; }); });
  const seconds = Number(document.body.dataset.refresh);
  const again = async () => {
    try {
      const answer = await fetch(location.href, {cache: "no-store"});
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const open = [...document.querySelectorAll("details")].map((one) => one.open);
        document.querySelector("main").replaceWith(fresh.querySelector("main"));
        document.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(open[i]); });
        panels = held();
      }
    } catch { /* the run's watcher has ended: what is shown stays */ }
    setTimeout(again, 1000 * seconds);
  };
  if (seconds) { setTimeout(again, 1000 * seconds); }
})();

// Evaluated in a page by browse.py; returns a list of problems as strings.
(() => {
  const problems = [];
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide > 0) problems.push(`the page is ${wide} px wider than the window`);
  for (const image of document.images) {
    if (!image.hasAttribute("alt")) problems.push(`no alternative text: ${image.src}`);
    if (image.complete && !image.naturalWidth) problems.push(`not loaded: ${image.src}`);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((x) => +x.tagName[1]);
  if (levels.filter((x) => x === 1).length !== 1 || levels[0] !== 1) problems.push("the page needs one h1, as its first heading");
  if (levels.some((x, i) => i && x > levels[i - 1] + 1)) problems.push("a heading level is skipped");

  const parsed = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return text.startsWith("color(") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((x, i) => a * x + (1 - a) * below[i]);
  const luminance = (colour) => {
    const [r, g, b] = colour.map((x) => x / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  // Returns the colour behind an element, or null behind an image.
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== "none") return null;
      layers.push(parsed(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const opacity = (element) => {
    let product = 1;
    for (let at = element; at; at = at.parentElement) product *= getComputedStyle(at).opacity;
    return product;
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || !element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    const style = getComputedStyle(element);
    const below = background(element);
    const isSvg = element.namespaceURI.endsWith("svg");
    if (!below || (isSvg && style.fill === "none")) continue;
    const [r, g, b, a] = parsed(isSvg ? style.fill : style.color);
    const colour = over([r, g, b, a * opacity(element)], below);
    const [low, high] = [luminance(colour), luminance(below)].sort((x, y) => x - y);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const kind = `contrast ${ratio.toFixed(2)} < ${least}: ${element.tagName.toLowerCase()}.${element.className}`;
    if (ratio < least - 0.005 && !seen.has(kind)) {
      seen.add(kind);
      problems.push(`${kind} "${text.slice(0, 30)}"`);
    }
  }
  return problems;
})();

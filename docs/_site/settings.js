// Adds a field above each table of settings that filters rows by the typed words.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("div.settings")) {
    const rows = [...box.querySelectorAll("tbody tr")];
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = `Filter ${rows.length} settings`;
    field.setAttribute("aria-label", field.placeholder);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    box.prepend(field);
  }
});

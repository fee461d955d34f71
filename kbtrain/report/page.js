"use strict";
// Sorting and sliding, in the page alone: nothing is loaded, nothing is sent.
(() => {
  const value = (text) => {
    const first = text.replace(/\s\[.*$/, "").replace(/^\[(.*), .*\]$/, "$1"); // an interval stands where it begins
    const number = Number(first.replace(/[<%,\s]/g, "").replace("\u2212", "-")) / (first.startsWith("<") ? 2 : 1);
    return text.trim() === "" || Number.isNaN(number) ? null : number;
  };

  const compare = (a, b, down) => {
    const [x, y] = [value(a), value(b)];
    if (x !== null && y !== null) return down ? y - x : x - y;
    if (x !== null || y !== null) return x === null ? 1 : -1; // what is undefined stands last, either way
    return down ? b.localeCompare(a) : a.localeCompare(b);
  };

  const sort = (table, heads, column) => {
    const down = heads[column].getAttribute("aria-sort") !== "descending";
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(a.cells[column].textContent, b.cells[column].textContent, down));
    table.tBodies[0].append(...rows);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", down ? "descending" : "ascending");
  };

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, heads, column));
      head.append(button);
    });
  };

  // The curve of the first screen: searches, right answers and money where the slider stands.
  const slide = (input) => {
    const [right, tops, money] = ["right", "tops", "money"].map((name) => JSON.parse(input.dataset[name] ?? "null"));
    const mark = document.getElementById("slide-mark");
    const say = (name, text) => (document.getElementById(`slide-${name}`).textContent = text);
    input.addEventListener("input", () => {
      const at = Number(input.value);
      mark.style.left = `${at}%`;
      mark.style.top = `${tops[at]}%`;
      say("searches", Math.round((input.dataset.n * at) / 100));
      say("right", right[at].toFixed(1));
      if (money) say("money", money[at].toFixed(2));
    });
    input.hidden = false;
  };

  document.querySelectorAll("table.sortable").forEach(sortable);
  const input = document.getElementById("slide");
  if (input) slide(input);
})();

"use strict";
// Sorting and choosing, in the page alone: nothing is loaded, nothing is sent.
(() => {
  const value = (text) => {
    const first = text.replace(/\s\[.*$/, "").replace(/^\[(.*), .*\]$/, "$1"); // an interval stands where it begins
    const number = Number(first.replace(/[%,\s]/g, "").replace("\u2212", "-"));
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

  const percent = (share) => (100 * share).toFixed(1);
  const signed = (share) => (percent(share).startsWith("-") ? percent(share) : "+" + percent(share));

  // One gate on the chosen questions: accuracy, ratio, random at that ratio, the difference and 1.96 standard errors.
  const measure = (data, chosen, retrieve) => {
    const n = chosen.length;
    let llm = 0, rag = 0, right = 0, searched = 0;
    for (const i of chosen) {
      llm += data.llm[i];
      rag += data.rag[i];
      right += retrieve(i) ? data.rag[i] : data.llm[i];
      searched += retrieve(i);
    }
    const ratio = searched / n, random = ((1 - ratio) * llm + ratio * rag) / n, gain = right / n - random;
    const slope = (rag - llm) / n, sums = new Map(); // of what goes together: an entity's questions, or each alone
    for (const i of chosen) {
      const own = (retrieve(i) - ratio) * (data.rag[i] - data.llm[i]) - (retrieve(i) - ratio) * slope;
      const cluster = data.clusters.length ? data.clusters[i] : i;
      sums.set(cluster, (sums.get(cluster) ?? 0) + own - gain);
    }
    const squares = [...sums.values()].reduce((total, sum) => total + sum ** 2, 0);
    return [percent(right / n), percent(ratio), percent(random), signed(gain), percent((1.96 * Math.sqrt(squares)) / n)];
  };

  const fill = (data, form) => {
    const wanted = [...form.querySelectorAll("select")].map((select) => (select.value === "" ? null : Number(select.value)));
    const chosen = [];
    for (let i = 0; i < data.llm.length; i += 1) {
      if (wanted.every((place, d) => place === null || data.dimensions[d][i] === place)) chosen.push(i);
    }
    const body = document.querySelector("#selected tbody");
    body.replaceChildren();
    document.getElementById("selected-n").textContent = `${chosen.length} of ${data.llm.length} questions.`;
    if (chosen.length === 0) return;
    for (const [name, retrieve] of data.gates) {
      const row = body.insertRow();
      for (const text of [data.words[name] ?? name, ...measure(data, chosen, retrieve)]) row.insertCell().textContent = text;
    }
  };

  const selection = (source) => {
    const read = JSON.parse(source.textContent);
    const bits = (text) => Uint8Array.from(text, Number);
    const data = { ...read, llm: bits(read.llm), rag: bits(read.rag) };
    data.gates = [
      ["llm_only", () => 0],
      ["all_rag", () => 1],
      ["oracle", (i) => (data.rag[i] > data.llm[i] ? 1 : 0)],
      ...Object.entries(read.decisions).map(([name, text]) => {
        const decisions = bits(text);
        return [name, (i) => decisions[i]];
      }),
    ];
    const form = document.getElementById("filters");
    form.addEventListener("change", () => fill(data, form));
    form.addEventListener("reset", () => setTimeout(() => fill(data, form)));
    form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("no-script").hidden = true;
    form.hidden = document.getElementById("selected").hidden = false;
    fill(data, form);
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

  // The cards of a gate's page: shown if they are of the chosen data set, relation, ...
  const cards = (form) => {
    const show = () => {
      const wanted = [...form.querySelectorAll("select")];
      let n = 0;
      document.querySelectorAll("[data-card]").forEach((card) => {
        card.hidden = !wanted.every((select) => select.value === "" || card.dataset[select.name] === select.value);
        n += !card.hidden;
      });
      document.getElementById("shown-n").textContent = `${n} shown.`;
    };
    form.hidden = false;
    form.addEventListener("change", show);
    form.addEventListener("reset", () => setTimeout(show));
    form.addEventListener("submit", (event) => event.preventDefault());
    show();
  };

  document.querySelectorAll("table.sortable").forEach(sortable);
  const source = document.getElementById("selection-data");
  if (source) selection(source);
  const form = document.getElementById("card-filters");
  if (form) cards(form);
  const input = document.getElementById("slide");
  if (input) slide(input);
})();

"use strict";
// Everything that a model wrote goes into the page by textContent, so it is text whatever it says.
(() => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const PAGE = 100;
  const chunks = new Map();
  let data, rows, shown = [], limit = PAGE, sorted = -1, descending = false;

  async function unpack(id) {
    const bytes = Uint8Array.from(atob($(id).textContent), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  }

  async function storyOf(row) {
    if (row.chunk === null) return null;
    if (!chunks.has(row.chunk)) chunks.set(row.chunk, unpack("c" + row.chunk));
    return (await chunks.get(row.chunk))[row.place];
  }

  function asRow(values) {
    const [entry, task, sample, verdict, cause, attempts, cost, tokens, seconds, chunk, place] = values;
    const { label, run, model, solver } = data.entries[entry];
    const text = [task, label, run, model, solver, verdict, cause].join(" ").toLowerCase();
    return { entry, task, sample, verdict, cause, attempts, cost, tokens, seconds, chunk, place, label, run, solver, text };
  }

  const natural = new Intl.Collator("en", { numeric: true }).compare;
  const KEYS = [
    (row) => row.task, (row) => row.label, (row) => row.verdict + " " + row.cause,
    (row) => row.attempts, (row) => row.cost, (row) => row.tokens, (row) => row.seconds,
  ];

  function choose() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = $("verdict").value, entry = $("run").value;
    shown = rows.filter((row) =>
      (!entry || row.entry === Number(entry)) &&
      (!verdict || (verdict === "not" ? row.verdict !== "passed" : row.verdict === verdict)) &&
      words.every((word) => row.text.includes(word)));
    if (sorted >= 0) {
      const key = KEYS[sorted], sign = descending ? -1 : 1;
      shown.sort((a, b) => {
        const x = key(a), y = key(b);
        return sign * (typeof x === "number" ? x - y : natural(x, y));
      });
    }
    limit = PAGE;
    draw();
  }

  function draw() {
    const body = $("table").tBodies[0];
    body.replaceChildren(...shown.slice(0, limit).map(line));
    $("more").hidden = shown.length <= limit;
    $("more").textContent = `Show ${Math.min(PAGE, shown.length - limit)} more of ${shown.length - limit}`;
    const seen = Math.min(limit, shown.length);
    $("count").textContent = shown.length === 0 ? "nothing fits"
      : `${seen.toLocaleString("en")} of ${shown.length.toLocaleString("en")}` +
        (shown.length === rows.length ? " experiments" : ` that fit, of ${rows.length.toLocaleString("en")} experiments`);
  }

  function line(row) {
    const tr = document.createElement("tr");
    const button = make("button", row.sample ? `${row.task} #${row.sample}` : row.task);
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => toggle(row, tr, button));
    const first = make("td");
    first.append(button);
    const label = make("td");
    const dot = make("i", undefined, "dot");
    dot.style.setProperty("--c", `var(--s${data.entries[row.entry].colour})`);
    label.append(dot, row.label);
    const verdict = make("td");
    verdict.append(make("span", row.verdict, "word " + row.verdict));
    if (row.cause) verdict.append(make("span", " " + row.cause, "cause"));
    tr.append(first, label, verdict, ...[
      row.attempts, "$" + row.cost.toFixed(4), row.tokens.toLocaleString("en"), row.seconds.toFixed(1) + " s",
    ].map((text) => make("td", text, "n")));
    return tr;
  }

  async function toggle(row, tr, button) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { tr.nextElementSibling.remove(); return; }
    const story = document.createElement("tr");
    story.className = "story";
    const cell = make("td");
    cell.colSpan = 7;
    story.append(cell);
    tr.after(story);
    const told = make("div", undefined, "told");
    cell.append(told);
    told.append(make("code", commandOf(row), "command"));
    const blocks = await storyOf(row);
    if (!blocks) told.append(make("p", "Its story is not in this file, to keep it small. The command above prints it."));
    else for (const block of blocks) told.append(...drawn(block));
  }

  function commandOf(row) {
    const sample = row.sample ? ` --sample ${row.sample}` : "";
    return `koderz benchmark show ${row.run} --problem ${row.task} --arm ${row.solver}${sample}`;
  }

  function drawn([kind, heading, text]) {
    const [word, tone] = kind.split("-");
    const parts = heading ? [make("h4", heading, tone)] : [];
    if (!text) return parts;
    const pre = make("pre");
    pre.tabIndex = 0;
    if (word === "diff") pre.append(...text.split("\n").map(changed));
    else if (word === "code") pre.append(...highlighted(text));
    else pre.textContent = text;
    return [...parts, pre];
  }

  const MARKS = { "+": "add", "-": "del", "@": "at" };
  const changed = (text) => make("span", text + "\n", MARKS[text[0]]);

  const PYTHON = /(#[^\n]*)|("""[^]*?"""|'''[^]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\b(def|class|return|if|elif|else|for|while|in|not|and|or|is|import|from|as|with|try|except|finally|raise|yield|lambda|pass|break|continue|None|True|False|async|await|global|nonlocal|assert|del)\b|\b(\d[\d_.]*(?:e[+-]?\d+)?)\b/g;
  function* highlighted(text) {
    let end = 0;
    for (const found of text.matchAll(PYTHON)) {
      yield document.createTextNode(text.slice(end, found.index));
      yield make("span", found[0], found[1] ? "c" : found[2] ? "s" : found[3] ? "k" : "d");
      end = found.index + found[0].length;
    }
    yield document.createTextNode(text.slice(end));
  }

  function sortBy(th, column) {
    descending = sorted === column ? !descending : column >= 3;
    sorted = column;
    for (const other of $("table").tHead.rows[0].cells) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", descending ? "descending" : "ascending");
    choose();
  }

  function pointing(heat) {
    const tasks = data.maps[Number(heat.dataset.map)], told = heat.querySelector(".pointed");
    const taskAt = (event) => {
      const strip = event.target.closest("svg");
      if (!strip) return null;
      const box = strip.getBoundingClientRect();
      return tasks[Math.floor((event.clientX - box.left) / box.width * tasks.length)];
    };
    heat.addEventListener("pointermove", (event) => { told.textContent = taskAt(event) || "\u00a0"; });
    heat.addEventListener("pointerleave", () => { told.textContent = "\u00a0"; });
    heat.addEventListener("click", (event) => {
      const task = taskAt(event);
      if (!task) return;
      $("search").value = task;
      choose();
      $("experiments").scrollIntoView();
    });
  }

  async function begin() {
    data = await unpack("data");
    rows = data.rows.map(asRow);
    for (const id of ["search", "verdict", "run"]) $(id).addEventListener("input", choose);
    document.querySelector(".tools").addEventListener("submit", (event) => event.preventDefault());
    for (const th of $("table").tHead.rows[0].cells) {
      const button = th.firstElementChild;
      button.addEventListener("click", () => sortBy(th, Number(button.dataset.column)));
    }
    $("more").addEventListener("click", () => { limit += PAGE; draw(); });
    document.querySelectorAll(".heat").forEach(pointing);
    choose();
    document.documentElement.dataset.ready = "true";
  }
  begin();
})();

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
  const IDS = /(\d{4}-\d\d-\d\d(?: \d\d:\d\d)?|\b(?:bench|exp)_\w+)/;
  const whole = (text) => text.split(IDS).map((part, n) => n % 2 ? make("span", part, "id") : part);
  const PAGE = 100;
  const chunks = new Map();
  let data, rows, shown = [], limit = PAGE, sorted = "", descending = false;

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
    const { label, run, model, arm } = data.entries[entry];
    const text = [task, label, run, model, arm, verdict, cause].join(" ").toLowerCase();
    return { entry, task, sample, verdict, cause, attempts, cost, tokens, seconds, chunk, place, label, run, arm, text };
  }

  const natural = new Intl.Collator("en", { numeric: true }).compare;
  const keyOf = (row) => sorted === "verdict" ? row.verdict + " " + row.cause : row[sorted];

  function choose() {
    const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = $("verdict").value, entry = $("run").value;
    shown = rows.filter((row) =>
      (!entry || row.entry === Number(entry)) &&
      (!verdict || (verdict === "not" ? row.verdict !== "passed" : row.verdict === verdict)) &&
      words.every((word) => row.text.includes(word)));
    if (sorted) {
      const sign = descending ? -1 : 1;
      shown.sort((a, b) => {
        const x = keyOf(a), y = keyOf(b);
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
    tr.append(...data.columns.map((key) => CELLS[key](row, tr)));
    return tr;
  }

  const CELLS = {
    task(row, tr) {
      const cell = make("td"), name = row.sample ? `${row.task} #${row.sample}` : row.task;
      const button = make("button", name, name.length > 24 ? "" : "id");
      button.type = "button";
      button.setAttribute("aria-expanded", "false");
      button.addEventListener("click", () => toggle(row, tr, button));
      cell.append(button);
      return cell;
    },
    label(row) {
      const cell = make("td"), dot = make("i", undefined, "dot");
      dot.style.setProperty("--c", `var(--s${data.entries[row.entry].colour})`);
      cell.append(dot, ...whole(row.label));
      return cell;
    },
    verdict(row) {
      const cell = make("td");
      cell.append(make("span", row.verdict, "word " + row.verdict));
      if (row.cause) cell.append(make("span", " " + row.cause, "cause"));
      return cell;
    },
    attempts: (row) => make("td", row.attempts, "n"),
    cost: (row) => make("td", "$" + row.cost.toFixed(4), "n"),
    tokens: (row) => make("td", row.tokens.toLocaleString("en"), "n"),
    seconds: (row) => make("td", row.seconds.toFixed(1) + " s", "n"),
  };

  async function toggle(row, tr, button) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) { tr.nextElementSibling.remove(); return; }
    const story = document.createElement("tr");
    story.className = "story";
    const cell = make("td");
    cell.colSpan = data.columns.length;
    story.append(cell);
    tr.after(story);
    const told = make("div", undefined, "told");
    cell.append(told);
    if (data.entries[row.entry].bare) {
      told.append(make("p", "Its story is in the run's journal, which wasn't at hand when this page was made."));
      return;
    }
    told.append(make("code", commandOf(row), "command"));
    const blocks = await storyOf(row);
    if (!blocks) told.append(make("p", "Its story is not in this file, to keep it small. The command above prints it."));
    else for (const block of blocks) told.append(...drawn(block, "h3"));
  }

  // as a shell takes it for one word, whatever is in it
  function quoted(text) {
    const plain = text.replace(/[\u0000-\u001f\u007f-\u009f]/g, " ");
    return /^[\w./:@+,=-]+$/.test(plain) ? plain : "'" + plain.replaceAll("'", "'\\''") + "'";
  }

  function commandOf(row) {
    const sample = row.sample ? ` --sample ${row.sample}` : "";
    return `koderz benchmark show ${quoted(row.run)} --problem ${quoted(row.task)} --arm ${quoted(row.arm)}${sample}`;
  }

  function drawn([kind, heading, text], level, other) {
    const [word, tone] = kind.split("-");
    const parts = heading ? [make(level, heading, tone)] : [];
    if (!text) return parts;
    const pre = make("pre");
    pre.tabIndex = 0;
    if (other !== undefined) pre.append(...unlike(text, other));
    else if (word === "diff") pre.append(...text.split("\n").map(changed));
    else if (word === "code") pre.append(...highlighted(text));
    else pre.textContent = text;
    return [...parts, pre];
  }

  // Two experiments side by side

  // The longest list of pairs, in order, of what is the same in both: [place in a, place in b].
  function common(a, b) {
    const width = b.length + 1, best = new Uint16Array((a.length + 1) * width), pairs = [];
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1
          : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    for (let i = 0, j = 0; i < a.length && j < b.length;) {
      if (a[i] === b[j]) pairs.push([i++, j++]);
      else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i++;
      else j++;
    }
    return pairs;
  }

  // The lines of a text; those that the other text doesn't have stand out.
  function unlike(text, other) {
    const lines = text.split("\n"), same = new Set(common(lines, other.split("\n")).map(([i]) => i));
    return lines.map((line, n) => {
      const end = n < lines.length - 1 ? "\n" : "";
      return same.has(n) || !line.trim() ? line + end : make("mark", line + end);
    });
  }

  const ROLES = { code: "program", diff: "program" };
  const roleOf = ([kind, heading]) => kind === "said" ? heading : ROLES[kind] || kind.split("-")[0];

  // Blocks of two stories, those of one role beside each other: [of a or undefined, of b or undefined].
  function besides(a, b) {
    const found = [];
    let i = 0, j = 0;
    for (const [x, y] of [...common(a.map(roleOf), b.map(roleOf)), [a.length, b.length]]) {
      while (i < x) found.push([a[i++], undefined]);
      while (j < y) found.push([undefined, b[j++]]);
      if (i < a.length && j < b.length) found.push([a[i++], b[j++]]);
    }
    return found;
  }

  const isSame = (a, b) => a && b && a[0] === b[0] && a[2] === b[2];

  function sideBySide(stories) {
    const parts = [];
    let parted = false, ended = false;
    const rows = besides(...stories);
    for (const [n, [a, b]] of rows.entries()) {
      if (isSame(a, b) && !parted) {
        const same = make("details", undefined, "same");
        const pre = make("pre", a[2]);
        pre.tabIndex = 0;
        same.append(make("summary", `${a[1].replace(/ \(.*/, "")}: the same in both`), pre);
        parts.push(same);
        continue;
      }
      if (!parted) parts.push(make("p", "Here they part", "parting"));
      parted = true;
      const pair = make("div", undefined, "pair");
      [[a, b], [b, a]].forEach(([own, other], side) => {
        const cell = make("div", undefined, "side");
        const lines = own && other && own[0] !== "diff" && other[0] !== "diff" ? other[2] : undefined;
        if (own) cell.append(make("span", "AB"[side], "tag"), ...drawn(own, "h4", lines));
        else if (!ended && rows.slice(n).every((later) => !later[side])) {
          ended = true;
          cell.append(make("span", "AB"[side], "tag"), make("p", "ended here"));
        }
        pair.append(cell);
      });
      parts.push(pair);
    }
    if (!parted) parts.push(make("p", "They are the same word for word.", "parting"));
    return parts;
  }

  // The experiment of an entry at a task that shows what flipped: one that passed, or one that didn't.
  function example(entry, task, passed) {
    const found = rows.filter((row) => row.entry === entry && row.task === task);
    return found.find((row) => (row.verdict === "passed") === passed) || found[0];
  }

  async function flip(button) {
    const article = button.closest(".versus"), open = button.getAttribute("aria-expanded") === "true";
    article.querySelectorAll(".duel").forEach((duel) => duel.remove());
    article.querySelectorAll(".flip").forEach((other) => other.setAttribute("aria-expanded", "false"));
    if (open) return;
    button.setAttribute("aria-expanded", "true");
    const task = button.textContent, better = Number(button.dataset.better);
    const both = data.versus[Number(button.dataset.versus)].map((entry, side) => example(entry, task, side === better));
    const duel = make("div", undefined, "duel"), heads = make("div", undefined, "pair");
    heads.append(...both.map((row, side) => {
      const cell = make("div", undefined, "side");
      const head = make("p", undefined, "who");
      head.append(make("span", "AB"[side], "tag"), ...whole(row.label), " ", make("span", row.verdict, "word " + row.verdict));
      cell.append(head);
      if (!data.entries[row.entry].bare) cell.append(make("code", commandOf(row), "command"));
      return cell;
    }));
    duel.append(make("p", task, "task"), heads);
    button.closest("details").append(duel);
    const stories = await Promise.all(both.map(storyOf));
    if (stories.every(Boolean)) duel.append(...sideBySide(stories));
    else if (both.some((row) => data.entries[row.entry].bare))
      duel.append(make("p", "A story of these is in a journal that wasn't at hand when this page was made."));
    else duel.append(make("p", "A story of these is not in this file, to keep it small. The commands above print them."));
    duel.scrollIntoView({ block: "nearest" });
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
    descending = sorted === column ? !descending : typeof rows[0][column] === "number";
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
      button.addEventListener("click", () => sortBy(th, button.dataset.column));
    }
    $("more").addEventListener("click", () => { limit += PAGE; draw(); });
    document.querySelectorAll(".heat").forEach(pointing);
    for (const button of document.querySelectorAll(".flip")) button.addEventListener("click", () => flip(button));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && document.activeElement.classList.contains("band")) document.activeElement.blur();
    });
    const asked = location.hash.match(/^#task=(.+)$/);  // a link to one task
    if (asked) $("search").value = decodeURIComponent(asked[1]);
    choose();
    if (asked) $("experiments").scrollIntoView();
    document.documentElement.dataset.ready = "true";
  }
  begin();
})();
